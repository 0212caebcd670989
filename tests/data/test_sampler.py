"""P x K batches: no repeats, everyone's turn, small classes served."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from harness.data.sampler import Balanced, Shuffled


def batches(labels: Tensor, classes: int, samples: int, seed: int = 0) -> list[Tensor]:
    return list(Balanced(labels, classes, samples).epoch(torch.Generator().manual_seed(seed)))


UNEVEN = torch.cat([torch.full((size,), label) for label, size in enumerate([1, 2, 3, 5, 8, 13, 7, 7, 7, 7])])


@pytest.mark.parametrize("seed", range(5))
def test_no_image_is_twice_in_a_batch_and_no_class_gives_more_than_k(seed: int) -> None:
    for batch in batches(UNEVEN, 4, 5, seed):
        assert len(set(batch.tolist())) == len(batch)
        counts = Counter(UNEVEN[batch].tolist())
        assert len(counts) == 4
        assert all(count == min(5, int(UNEVEN.eq(label).sum())) for label, count in counts.items())


def test_a_class_smaller_than_k_gives_what_it_has() -> None:
    labels = torch.tensor([0, 0, 1, 1, 1, 1])
    for batch in batches(labels, 2, 4):
        assert Counter(labels[batch].tolist()) == {0: 2, 1: 4}


@pytest.mark.parametrize("seed", range(5))
def test_every_class_has_its_turn_in_an_epoch_and_none_comes_far_more_often(seed: int) -> None:
    labels = torch.arange(23).repeat_interleave(6)
    turns = Counter(label for batch in batches(labels, 5, 4, seed) for label in set(labels[batch].tolist()))
    assert set(turns) == set(range(23))
    assert max(turns.values()) - min(turns.values()) <= 1


def test_every_class_has_its_turn_even_where_classes_are_many_and_small() -> None:
    labels = torch.arange(50).repeat_interleave(2)
    seen = {label for batch in batches(labels, 5, 6) for label in labels[batch].tolist()}
    assert seen == set(range(50))


def test_every_image_of_a_class_comes_before_one_comes_again() -> None:
    labels = torch.zeros(10, dtype=torch.long).repeat(2)
    labels[10:] = 1
    seen: Counter[int] = Counter()
    for batch in batches(labels, 2, 5):
        seen.update(batch.tolist())
    assert set(seen.values()) == {1}


def test_an_epoch_holds_the_dataset_about_once() -> None:
    labels = torch.arange(16).repeat_interleave(8)
    drawn = batches(labels, 4, 4)
    assert len(drawn) == len(Balanced(labels, 4, 4)) == 8
    assert sum(map(len, drawn)) == len(labels)


def test_an_epoch_of_classes_smaller_than_k_draws_fewer_images_than_there_are() -> None:
    """Ten batches give each of the 40 classes one turn: 30 of them have 2 images, 10 give 6 of their 12."""
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate([2] * 30 + [12] * 10)])
    drawn = batches(labels, 4, 6)
    assert len(drawn) == len(Balanced(labels, 4, 6)) == 10
    assert sum(map(len, drawn)) == 30 * 2 + 10 * 6 < len(labels) == 180


def test_more_classes_asked_for_than_there_are_takes_them_all() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    assert all(set(labels[batch].tolist()) == {0, 1} for batch in batches(labels, 9, 2))


def test_the_same_seed_gives_the_same_batches_and_another_gives_others() -> None:
    def flat(seed: int) -> list[int]:
        return torch.cat(batches(UNEVEN, 4, 5, seed)).tolist()

    assert flat(1) == flat(1)
    assert flat(1) != flat(2)


def test_shuffled_batches_hold_every_image_at_most_once_and_have_one_size() -> None:
    drawn = list(Shuffled(21, 4).epoch(torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in drawn] == [4] * 5
    assert len(set(torch.cat(drawn).tolist())) == 20
    assert [len(b) for b in Shuffled(3, 16).epoch(torch.Generator().manual_seed(0))] == [3]

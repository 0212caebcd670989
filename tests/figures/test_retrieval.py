"""Which queries are shown, and which images are nearest."""

from typing import Any

import pytest
import torch

from harness.figures import retrieval
from harness.figures.pictures import EmbeddedImages
from harness.spec import UserError
from tests.factories import a_result


def embedded(points: list[list[float]], labels: list[int], queries: list[bool] | None = None) -> EmbeddedImages:
    no_images: Any = None
    apart = torch.tensor(queries) if queries is not None else None
    return EmbeddedImages(
        a_result(), torch.tensor(points), torch.tensor(labels), apart, no_images, torch.arange(len(labels))
    )


def test_neighbours_come_by_distance_then_index_and_never_the_query_itself() -> None:
    # the twin of the query lies on it, and comes before it by index
    images = embedded([[0.0], [0.0], [3.0], [-1.0], [1.0], [2.0]], [0, 0, 0, 1, 1, 0])
    found = retrieval.neighbours(images, 1)
    assert found.nearest == (0, 3, 4, 5)
    assert found.right == (True, False, False, True)


def test_neighbours_of_a_query_come_from_the_gallery_where_the_two_are_apart() -> None:
    images = embedded([[0.0], [0.1], [0.5], [0.2], [0.9]], [0, 0, 0, 1, 1], [True, True, False, False, False])
    assert retrieval.neighbours(images, 0) == retrieval.Neighbours(0, (3, 2, 4), (False, True, False))


def test_the_worst_queries_have_the_most_wrong_images_before_the_first_right_one() -> None:
    """0 and 4, ten apart, see three wrong ones first: 0 the nearest at 1.0, 4 at 8.8, so 0 is worse. 1, 2 and 3 find
    theirs at 0.1 and the nearest wrong one at 1.0, 1.1, 1.2. 5 is alone in its class."""
    images = embedded([[0.0], [1.0], [1.1], [1.2], [10.0], [50.0]], [0, 1, 1, 1, 0, 2])
    assert retrieval.worst(images, 9) == [0, 4, 1, 2, 3]
    assert retrieval.worst(images, 1) == [0]


def test_random_queries_repeat_with_their_seed_and_are_queries() -> None:
    images = embedded([[float(n)] for n in range(40)], [n // 2 for n in range(40)], [n % 2 == 0 for n in range(40)])
    first = retrieval.pick(images, "random:0")
    assert first == retrieval.pick(images, "random:0") != retrieval.pick(images, "random:1")
    assert len(set(first)) == 6
    assert all(number % 2 == 0 for number in first)
    assert retrieval.pick(images, "4, 2") == [4, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("best", "--queries best: must be random:SEED, worst, or indices"),
        ("random:x", "must be random:SEED"),
        ("1,,2", "must be random:SEED"),
        ("9", "--queries 9: must be 0 to 3"),
        ("-1", "must be"),
        ("1", "--queries 1: is an image of the gallery; the first query is 0"),
    ],
)
def test_queries_that_are_none_are_refused(text: str, complaint: str) -> None:
    images = embedded([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1], [True, False, True, False])
    with pytest.raises(UserError, match=complaint):
        retrieval.pick(images, text)

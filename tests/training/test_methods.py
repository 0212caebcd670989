"""Methods that are more than a loss, in training: their heads, their plans, what is compared, and resuming."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import losses
from harness import config, plan
from harness.backbones import network
from harness.evaluation import ensembles
from harness.evaluation.clustering import nmi
from harness.spec import Experiment, Measurement, Trial, UserError, finish, pretraining_key
from harness.storage import Storage
from harness.training import inference, loop, planning, setup
from harness.training.checkpoint import Checkpoint
from harness.training.measuring import embed_images
from losses.base import Batch, Loss, Planned, View
from tests.training.trials import blobs, run, run_until, set_up, trial

METHODS: dict[str, dict[str, Any]] = {
    "bier": {},
    "a_bier": {},
    "hdc": {},
    "abe": {"learners": 2},
    "divide_conquer": {"clusters": 2},
    "hierarchical_triplet": {},
}
HEADS = [name for name in METHODS if name != "hierarchical_triplet"]


def method(name: str, **settings: Any) -> Trial:
    return trial(name, METHODS[name], **{"dim": 16, "epochs": 3, **settings})


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_method_continues_to_the_bit(small: Path, tmp_path: Path, name: str) -> None:
    """Broken off after the first epoch, in which plans and clusters were made."""
    killed = method(name)
    expected, _ = run(killed, tmp_path / "whole")
    run_until(killed, tmp_path / "resumed", "train", 1)
    found, _ = run(killed, tmp_path / "resumed")
    assert found.metrics == expected.metrics
    assert [row["loss"] for row in found.curve] == [row["loss"] for row in expected.curve]
    assert found.per_query == expected.per_query
    assert len(expected.curve) == 3


@pytest.mark.parametrize("name", HEADS)
def test_a_warm_up_trains_the_head_and_not_the_trunk(small: Path, tmp_path: Path, name: str) -> None:
    warmed = method(name, warmup_epochs=1.0, epochs=0)
    before, _ = set_up(warmed)
    result, _ = run(dataclasses.replace(warmed), tmp_path, keep_weights=True)
    after = inference.load(result, Storage(str(tmp_path)))
    trunks = [dict(model.trunk.named_parameters()) for model in (before.model, after)]
    heads = [dict(model.head.named_parameters()) for model in (before.model, after)]
    assert all(torch.equal(trunks[0][key], trunks[1][key]) for key in trunks[0])
    assert not all(torch.equal(heads[0][key], heads[1][key]) for key in heads[0])


def test_the_copy_of_a_part_of_the_network_keeps_its_statistics_too(small: Path) -> None:
    """freeze_bn holds for abe's attention, which is a copy of stages, also in a warm-up."""
    for frozen, kept in ((True, True), (False, False)):
        ready, _ = set_up(method("abe", freeze_bn=frozen, backbone="tf_efficientnet_lite0", weights="none"))
        model = ready.model
        model.trunk_frozen = True
        model.train()
        before = {name: value.clone() for name, value in model.head.state_dict().items() if "running" in name}
        model(torch.rand(2, 3, 32, 32))
        after = model.head.state_dict()
        assert before
        assert all(torch.equal(before[name], after[name]) for name in before) is kept


@pytest.mark.parametrize("name", METHODS)
def test_a_stored_network_embeds_as_its_run_did(small: Path, tmp_path: Path, name: str) -> None:
    result, _ = run(method(name, epochs=1), tmp_path, keep_weights=True)
    storage = Storage(str(tmp_path))
    stored = ensembles.load(result, storage)["embeddings"]
    at_work, _ = set_up(method(name, epochs=1))
    again = dataclasses.replace(at_work, model=inference.load(result, storage))
    found = finish(embed_images(again, again.fold.test))
    torch.testing.assert_close(found, stored)
    torch.testing.assert_close(stored.norm(dim=1), torch.ones(len(stored)))


# --- dimensions and settings ---


def planned(name: str, **settings: Any) -> Trial:
    settings = {"dim": None, **settings}
    return plan.final(Experiment(blobs(), config.protocol("tiny"), (config.loss(name),), settings=settings), {})[0]


def test_without_a_dimension_a_method_has_its_published_one(small: Path) -> None:
    assert planned("bier").dim == 512
    assert planned("hdc").dim == 384
    assert planned("bier", dim=64).dim == 64
    assert planned("hierarchical_triplet").dim is None  # it has no head of its own
    assert planned("triplet").dim is None


def test_a_layer_norm_together_with_a_head_of_its_own_is_refused(small: Path) -> None:
    with pytest.raises(UserError, match=r"layer_norm=true: bier builds its own head, without LayerNorm; must be false"):
        planned("bier", layer_norm=True)
    assert planned("triplet", layer_norm=True).layer_norm


def test_a_dimension_that_a_method_cannot_divide_is_one_line(small: Path) -> None:
    with pytest.raises(UserError, match=r"abe: dim=9: must be a multiple of learners=2"):
        set_up(trial("abe", {"learners": 2}, dim=9))


def test_a_backbone_that_cannot_be_cut_is_one_line(small: Path) -> None:
    with pytest.raises(UserError, match="backbone=test_mambaout: cannot be cut into stages"):
        set_up(method("hdc", backbone="test_mambaout"))


def test_a_method_trains_at_the_heads_rate_and_its_trunk_at_the_trunks(small: Path) -> None:
    model = set_up(method("hdc"))[0].model
    trunk, head = model.parameter_groups(0.1, 0.5)
    assert (trunk["lr"], head["lr"]) == (0.1, 0.5)
    assert {id(p) for p in trunk["params"]} == {id(p) for p in model.trunk.parameters()}
    every = sorted(map(id, model.parameters()))
    assert sorted(id(p) for group in (trunk, head) for p in group["params"]) == every


def test_pre_training_is_that_of_the_trunk_which_other_losses_share(small: Path, tmp_path: Path) -> None:
    run(trial("triplet", dim=None, pretrain_epochs=1), tmp_path)
    (file,) = (tmp_path / "pretrained").glob("*.safetensors")
    written = file.stat().st_mtime_ns
    result, reports = run(method("bier", pretrain_epochs=1, epochs=1), tmp_path)
    assert [file] == list((tmp_path / "pretrained").glob("*.safetensors"))
    assert file.stat().st_mtime_ns == written
    assert "pretrain" not in {report.stage for report in reports}
    assert "pretrain" not in result.seconds or not result.seconds["pretrain"]
    key = pretraining_key
    assert key(trial("triplet", dim=None)) == key(method("bier"), own_head=True) != key(trial("triplet", dim=16))


# --- what is compared ---


class Raw(Loss):
    """The mean square, compared by lengths too."""

    title, cite, distance = "Raw", "tests", "euclidean"

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return embeddings.square().mean()

    def represent(self, z: Any) -> Tensor:
        return 3 * z


def test_a_loss_may_compare_raw_embeddings(small: Path) -> None:
    model = network.create(trial(dim=8)).eval()
    images = torch.rand(2, 3, 32, 32)
    model.follow(Raw(2, 8))
    assert torch.equal(model.embed(images), 3 * model(images))
    assert model.distance == "Euclidean on raw embeddings"
    model.follow(Raw.__mro__[1](2, 8))  # a usual loss
    torch.testing.assert_close(model.embed(images).norm(dim=1), torch.ones(2))


def test_raw_embeddings_far_from_the_origin_have_not_collapsed(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their cosines are near 1, but they are compared by distances, which do not depend on the origin."""
    usual = network.Embedder.forward

    def far(self: network.Embedder, images: Tensor) -> Tensor:
        return usual(self, images) + 1000

    def one_point(self: network.Embedder, images: Tensor) -> Tensor:
        return 0 * usual(self, images) + 1000

    monkeypatch.setattr(losses.get("triplet"), "distance", "euclidean")
    for forward, collapsed in ((far, False), (one_point, True)):
        monkeypatch.setattr(network.Embedder, "forward", forward)
        result, reports = run(trial(epochs=1), tmp_path / forward.__name__)
        assert result.has_collapsed is collapsed
        assert (result.collapsed_in == 1) is collapsed
        assert any(report.collapsed for report in reports) is collapsed


def test_raw_embeddings_are_stored_with_their_lengths(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses.get("triplet"), "distance", "euclidean")
    result, _ = run(trial(epochs=0), tmp_path)
    stored = ensembles.load(result, Storage(str(tmp_path)))
    lengths = stored["embeddings"].norm(dim=1)
    assert lengths.std() > 0.01 * lengths.mean()
    distances = torch.cdist(stored["embeddings"].double(), stored["embeddings"].double()).fill_diagonal_(torch.inf)
    hits = stored["labels"][distances.argmin(dim=1)] == stored["labels"]
    assert result.metrics["R@1"] == pytest.approx(hits.double().mean().item())
    assert result.metrics["NMI"] == pytest.approx(nmi(stored["embeddings"], stored["labels"], 0))


def test_an_ensemble_of_raw_embeddings_says_so(small: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    labels = torch.arange(12) // 3
    members = []
    for seed in range(2):
        result, _ = run(trial(seed=seed, epochs=0), tmp_path / str(seed))
        points = torch.randn(12, 4, generator=torch.Generator().manual_seed(seed)) * (1 + seed)
        content = safetensors.torch.save({"embeddings": points, "labels": labels})
        artifacts = {"embeddings": storage.write_artifact("embeddings", result.id, content)}
        conventions = {**result.conventions, "distance": network.DISTANCES["euclidean"]}
        members.append(dataclasses.replace(result, artifacts=artifacts, conventions=conventions))
    joined = Measurement(runs=tuple(member.trial for member in members), ensemble=2)
    ensemble = finish(ensembles.measure(joined, members, (1,), storage))
    assert "raw embeddings, concatenated" in ensemble.conventions["ensemble"]
    assert ensemble.conventions["distance"] == "Euclidean on raw embeddings"


def test_a_record_says_that_the_embedding_is_the_methods(small: Path, tmp_path: Path) -> None:
    result, _ = run(method("hdc", epochs=1), tmp_path)
    assert result.conventions["embedding"] == "built by hdc, of dimension 16"
    usual, _ = run(trial(epochs=1), tmp_path)
    assert "embedding" not in usual.conventions


def test_code_that_came_with_a_result_is_not_run_to_embed(small: Path, tmp_path: Path) -> None:
    result, _ = run(method("hdc", epochs=1), tmp_path, keep_weights=True)
    foreign = dataclasses.replace(result, trial=dataclasses.replace(result.trial, loss="mine.Own"))
    with pytest.raises(
        UserError, match=r"its loss, mine.Own, builds the embedding by code of its own, which is not run"
    ):
        inference.load(foreign, Storage(str(tmp_path)))


# --- plans and batches ---


def test_a_loss_gets_the_batch_if_its_forward_names_one() -> None:
    class Asking(Raw):
        def forward(self, embeddings: Tensor, labels: Tensor, batch: Batch | None = None) -> Tensor:  # type: ignore[override]
            assert batch is not None
            return embeddings.sum() + batch.tag

    x, y = torch.ones(2, 3), torch.arange(2)
    batch = Batch(torch.zeros(2, 3, 4, 4), y, torch.arange(2), tag=5)
    assert Asking(2, 3).value(x, y, batch) == 11
    assert Raw(2, 3).value(x, y, batch) == 1


class Fixed(Raw):
    """Plans the batches it is given."""

    batches: Sequence[Planned] = ()

    def plan(self, epoch: int, view: View) -> Sequence[Planned]:
        return self.batches


def at_work(**settings: Any) -> tuple[setup.TrialSetup, setup.Stage]:
    ready, loss = set_up(trial(dim=8, **settings))
    return ready, setup.main_stage(ready, loss)


def test_a_plan_sees_the_training_images_as_they_are_evaluated(small: Path) -> None:
    ready, stage = at_work(augment="crop", epochs=2)
    view = planning.View(ready, stage, 2)
    expected = finish(embed_images(ready, ready.fold.train))
    ready.model.train()
    torch.testing.assert_close(view.embed(), expected)
    assert view.features().shape == (72, ready.model.width)
    assert not view.embed().is_inference()
    assert (view.steps, view.classes, view.samples, view.epochs, view.warmup) == (6, 4, 3, 2, False)
    again = planning.View(ready, stage, 2).generator
    assert torch.equal(torch.rand(3, generator=view.generator), torch.rand(3, generator=again))
    other = planning.View(ready, stage, 1).generator
    assert not torch.equal(torch.rand(3, generator=again), torch.rand(3, generator=other))


def test_a_trial_that_stops_early_plans_as_the_whole_one(small: Path) -> None:
    """The phases of a method follow the schedule, which is that of all epochs."""
    from harness.training import feeding

    ready, stage = at_work(epochs=4, stop_after=2)
    assert (stage.last_epoch, planning.View(ready, stage, 2).epochs) == (2, 4)
    assert {batch.epochs for batch in feeding.load(ready, stage, 2)} == {4}


def test_planned_batches_are_what_the_loss_trains_on(small: Path) -> None:
    from harness.training import feeding

    ready, stage = at_work()
    batches = [Planned(torch.tensor([step, step + 20, 71]), step) for step in range(6)]
    fed = list(feeding.load(ready, stage, 1, batches))
    assert [batch.tag for batch in fed] == list(range(6))
    assert [batch.indices.tolist() for batch in fed] == [[step, step + 20, 71] for step in range(6)]
    assert torch.equal(fed[2].labels, ready.fold.train_labels[[2, 22, 71]])
    assert (fed[0].epoch, fed[0].epochs, fed[0].warmup) == (1, 1, False)
    usual = list(feeding.load(ready, stage, 1))
    assert all(torch.equal(batch.labels, ready.fold.train_labels[batch.indices]) for batch in usual)


def test_the_seconds_in_which_a_loss_plans_count_as_training(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]  # nothing else takes time

    class Slow(Raw):
        def plan(self, epoch: int, view: View) -> None:
            clock[0] += 100

    ready, stage = at_work(epochs=2)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    storage = Storage(str(tmp_path))
    curve, seconds = finish(loop.fit(ready, dataclasses.replace(stage, loss=Slow(12, 8)), storage, Checkpoint()))
    assert seconds == {"train": 200, "validate": 0}
    assert [row["images_per_second"] for row in curve] == [round(row["images"] / 100, 1) for row in curve]


@pytest.mark.parametrize(
    ("count", "indices", "error"),
    [
        (5, [0, 1], "Fixed.plan: 5 batches; must be 6, the steps of epoch 1"),
        (6, [], "Fixed.plan: batch 1 has 0 images; must be 1 to 12"),
        (6, list(range(13)), "Fixed.plan: batch 1 has 13 images; must be 1 to 12"),
        (6, [0, 72], "Fixed.plan: batch 1 names an image that is not among the 72"),
    ],
)
def test_a_plan_that_no_epoch_could_have_is_refused(small: Path, count: int, indices: list[int], error: str) -> None:
    ready, stage = at_work()
    loss = Fixed(12, 8)
    loss.batches = [Planned(torch.tensor(indices, dtype=torch.long))] * count
    with pytest.raises(ValueError, match=error):
        planning.plan(ready, dataclasses.replace(stage, loss=loss), 1)


def test_an_empty_buffer_takes_the_shape_that_is_loaded() -> None:
    class Remembering(Raw):
        def __init__(self, num_classes: int, dim: int) -> None:
            super().__init__(num_classes, dim)
            self.register_buffer("seen", torch.empty(0, dtype=torch.long))

    first, second = Remembering(2, 3), Remembering(2, 3)
    first.seen = torch.arange(5)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.seen, torch.arange(5))
    third = Remembering(2, 3)
    third.seen = torch.arange(4)
    with pytest.raises(RuntimeError, match="size mismatch"):
        third.load_state_dict(first.state_dict())

"""The training loop on a small dataset: it learns, repeats to the bit, shares pre-training, and names a NaN."""

import dataclasses
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import losses
from harness import config, plan
from harness.backbones import network
from harness.data import listing, loading, transforms
from harness.evaluation import metrics as evaluate
from harness.execution import estimate
from harness.execution.local import execute
from harness.spec import Dataset, Event, Experiment, Failure, Job, Progress, Result, Trial
from harness.storage import Storage
from harness.training import allocator, loop, measuring, optimizers, pretraining, setup
from harness.training import trial as train
from losses.base import Loss

MEASURE = measuring.measure
FOUR = ("group", "triplet", "proxy_nca", "normalized_softmax")


def trial(loss: str = "triplet", knobs: dict[str, Any] | None = None, **settings: Any) -> Trial:
    specs = (config.loss(loss),)
    asked = Experiment(blobs(), config.protocol("tiny"), specs, settings=settings, knobs={loss: knobs or {}})
    return plan.final(asked, {})[0]


def blobs() -> Dataset:
    return listing.identify(config.dataset("blobs"), Path())


def set_up(one: Trial) -> tuple[setup.Bench, Any]:
    images = loading.embedded(blobs())
    return setup.set_up(Job(one, blobs(), ""), images, loading.fold(images, blobs(), one.fold))


def run(one: Trial, artifacts: Path, **options: Any) -> tuple[Result, list[Progress]]:
    running = train.run(Job(one, blobs(), str(artifacts), threads=1, **options))
    seen = []
    while True:
        try:
            seen.append(next(running))
        except StopIteration as end:
            return end.value, seen


def finish(steps: Generator[Any, None, Any]) -> Any:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_the_same_trial_twice_gives_the_same_bits(small: Path, tmp_path: Path) -> None:
    one = trial("group", augment="drawings", epochs=2)
    (first, _), (second, _) = run(one, tmp_path), run(one, tmp_path)
    assert first.metrics == second.metrics
    assert [row["loss"] for row in first.curve] == [row["loss"] for row in second.curve]


def test_another_seed_gives_another_run(small: Path, tmp_path: Path) -> None:
    first, second = run(trial(seed=0), tmp_path)[0], run(trial(seed=1), tmp_path)[0]
    assert first.curve[0]["loss"] != second.curve[0]["loss"]


@pytest.mark.parametrize("loss", FOUR)
def test_every_core_loss_trains_and_its_loss_falls(small: Path, tmp_path: Path, loss: str) -> None:
    knobs = {"temperature": 2.0} if loss == "group" else {}
    result, _ = run(trial(loss, knobs, epochs=12, lr=3e-3), tmp_path)
    assert result.curve[-1]["loss"] < result.curve[0]["loss"] - 0.02
    assert set(result.metrics) == {"R@1", "R@2", "R@4", "R@8", "MAP@R", "RP", "NMI"}
    assert all(0 <= value <= 1 for value in result.metrics.values())
    assert result.title == losses.get(loss).title
    assert result.conventions["NMI"].startswith("k-means++")


def test_training_beats_the_untrained_network(small: Path, tmp_path: Path) -> None:
    asked = Experiment(blobs(), config.protocol("tiny"), ())
    _, untrained = plan.baselines(asked)
    trained = trial("normalized_softmax", epochs=15, lr=3e-3)
    assert run(trained, tmp_path)[0].metrics["MAP@R"] > run(untrained, tmp_path)[0].metrics["MAP@R"]


def test_baselines_train_nothing(small: Path, tmp_path: Path) -> None:
    pixels, network = plan.baselines(Experiment(blobs(), config.protocol("tiny"), ()))
    for one, title in ((pixels, "Raw pixels"), (network, "Untrained network")):
        result, seen = run(one, tmp_path)
        assert result.title == title
        assert result.curve == ()
        assert {event.stage for event in seen} == {"evaluate"}
    assert run(pixels, tmp_path)[0].parameters == 0


def test_progress_tells_epoch_step_loss_and_speed(small: Path, tmp_path: Path) -> None:
    result, seen = run(trial(epochs=2), tmp_path)
    closing = [event for event in seen if event.stage == "train" and event.step == event.steps]
    assert [event.epoch for event in closing] == [1, 2]
    assert [event.loss for event in closing] == pytest.approx([row["loss"] for row in result.curve])
    assert all(event.images_per_second > 0 and event.seconds_left >= 0 for event in seen)


def test_the_curve_counts_the_images_each_epoch_saw(small: Path, tmp_path: Path) -> None:
    """72 images of 12 classes in batches of 5 classes x 3: 5 batches of 15, whatever the 72. A class has 6 images, so
    of the 8 asked for it gives 6: 3 turns of 5 classes, 30 a batch."""
    for samples, images in ((3, 5 * 15), (8, 3 * 30)):
        result, _ = run(trial(epochs=2, classes_per_batch=5, samples_per_class=samples), tmp_path)
        assert [(row["epoch"], row["images"]) for row in result.curve] == [(1, images), (2, images)]


def test_evaluation_is_not_in_the_training_seconds(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = evaluate.metrics

    def slow(*arguments: Any) -> dict[str, float]:
        time.sleep(1.0)
        return real(*arguments)

    monkeypatch.setattr(evaluate, "metrics", slow)
    begun = time.perf_counter()
    seconds = run(trial(), tmp_path)[0].seconds
    assert seconds["evaluate"] >= 1.0
    assert seconds["train"] <= time.perf_counter() - begun - 1.0
    assert seconds["total"] == pytest.approx(seconds["train"] + seconds["evaluate"], abs=0.01)


class Poisoned(Loss):
    """Not a number from the third step on."""

    title, cite = "Poisoned", "nobody"
    calls = 0

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return embeddings.sum() * (float("nan") if self.calls >= 3 else 0.0)


def test_a_nan_fails_with_epoch_and_step_and_the_next_trial_goes_on(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = losses.get
    monkeypatch.setattr(losses, "get", lambda name, _="": Poisoned if name == "softmax" else real(name))
    bad = dataclasses.replace(trial("softmax"), knobs={})
    jobs = [Job(one, blobs(), str(tmp_path), threads=1) for one in (bad, trial("triplet"))]
    ends: list[Event] = []
    execute(jobs, lambda _, event: None if isinstance(event, Progress) else ends.append(event))
    assert isinstance(ends[0], Failure)
    assert ends[0].error == "FloatingPointError: loss is nan at epoch 1, step 3"
    assert "check_finite" in ends[0].traceback
    assert isinstance(ends[1], Result)


def test_running_out_of_gpu_memory_says_what_to_turn(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(train, "set_up", full)
    *_, failure = train.events(Job(trial(), blobs(), str(tmp_path)))
    assert isinstance(failure, Failure)
    for knob in ("--gpus-per-trial", "--set classes_per_batch", "--set precision=amp"):
        assert knob in failure.error


def test_a_trial_goes_on_from_its_checkpoint_with_the_same_bits(small: Path, tmp_path: Path) -> None:
    one = trial("group", epochs=3, pretrain_epochs=2, augment="drawings")
    whole, _ = run(one, tmp_path / "whole")
    for stage, epoch in (("pretrain", 1), ("train", 1), ("train", 2)):
        folder = tmp_path / f"{stage}{epoch}"
        broken = train.run(Job(one, blobs(), str(folder), threads=1))
        for event in broken:
            if event.closes_epoch and (event.stage, event.epoch) == (stage, epoch):
                break
        broken.close()
        resumed, seen = run(one, folder)
        assert resumed.metrics == whole.metrics
        for fact in ("epoch", "loss", "images"):
            assert [row[fact] for row in resumed.curve] == [row[fact] for row in whole.curve]
        first = seen[0]
        assert (first.stage, first.epoch) == (stage, epoch + 1) or (stage, epoch) == ("pretrain", 2)


# --- pre-training ---


def test_pretraining_runs_once_and_is_shared_by_every_loss(small: Path, tmp_path: Path) -> None:
    stages = []
    for loss in ("group", "triplet", "normalized_softmax"):
        _, seen = run(trial(loss, pretrain_epochs=2), tmp_path)
        stages.append({event.stage for event in seen})
    assert stages == [{"pretrain", "train", "evaluate"}, {"train", "evaluate"}, {"train", "evaluate"}]
    assert len(list((tmp_path / "pretrained").glob("*.safetensors"))) == 1


def test_shared_pretraining_gives_the_same_bits_as_ones_own(small: Path, tmp_path: Path) -> None:
    alone, _ = run(trial("group", pretrain_epochs=1), tmp_path / "a")
    run(trial("triplet", pretrain_epochs=1), tmp_path / "b")
    shared, _ = run(trial("group", pretrain_epochs=1), tmp_path / "b")
    assert alone.metrics == shared.metrics


def test_pretraining_is_its_own_for_another_seed_fold_or_network_and_shared_across_knobs(small: Path) -> None:
    key = pretraining.pretraining_key(trial(pretrain_epochs=1))
    for change in ({"seed": 1}, {"fold": "val0"}, {"dim": 4}, {"pretrain_lr": 0.1}, {"pretrain_epochs": 2}):
        assert pretraining.pretraining_key(trial(**{"pretrain_epochs": 1, **change})) != key
    for change in ({"lr": 0.5}, {"weight_decay": 0.5}, {"epochs": 9}, {"augment": "drawings"}):
        assert pretraining.pretraining_key(trial(pretrain_epochs=1, **change)) == key
    assert pretraining.pretraining_key(trial("group", pretrain_epochs=1)) == key


@pytest.mark.parametrize(("loss", "handed"), [("group", True), ("normalized_softmax", True), ("proxy_nca", False)])
def test_the_classifier_is_handed_on_where_shapes_match(small: Path, tmp_path: Path, loss: str, handed: bool) -> None:
    one = trial(loss, pretrain_epochs=1)
    bench, module = set_up(one)
    list(pretraining.pretrain(bench, module, Storage(str(tmp_path)), loop.Checkpoint()))
    (file,) = (tmp_path / "pretrained").glob("*.safetensors")
    stored = load_file(file)
    assert torch.equal(bench.model.head.weight, stored["model.head.weight"])
    if handed:
        assert torch.equal(module.classifier.weight, stored["loss.classifier.weight"])
    else:
        assert "classifier.weight" not in module.state_dict()


# --- learning rates ---


def rates(one: Trial) -> list[float]:
    bench, loss = set_up(one)
    return [group["lr"] for group in optimizers.parameter_groups(bench, setup.main_stage(bench, loss))]


def test_head_and_loss_have_their_own_learning_rates(small: Path) -> None:
    one = trial("proxy_nca", {"lr_factor": 10.0}, lr=1e-3, head_lr_factor=2.0)
    assert rates(one) == pytest.approx([1e-3, 2e-3, 2e-2])
    assert rates(trial("triplet", lr=1e-3)) == pytest.approx([1e-3, 1e-3])
    assert rates(trial("triplet", lr=1e-3, dim=None)) == pytest.approx([1e-3])


def test_a_loss_may_keep_weight_decay_off_what_it_owns(small: Path) -> None:
    """The margin loss's beta is a distance: decayed, it would sink where there is nothing to learn."""
    for name, decays in (("margin", False), ("proxy_nca", True)):
        bench, loss = set_up(trial(name, weight_decay=0.5))
        *network, owned = optimizers.parameter_groups(bench, setup.main_stage(bench, loss))
        assert all(group["weight_decay"] == 0.5 for group in network)
        assert owned["weight_decay"] == (0.5 if decays else 0.0)


def schedule(one: Trial) -> list[float]:
    """The trunk's learning rate at each step of each epoch."""
    bench, loss = set_up(one)
    stage = setup.main_stage(bench, loss)
    optimizer = torch.optim.Adam(optimizers.parameter_groups(bench, stage))
    scheduler = optimizers.make_scheduler(optimizer, stage)
    seen = []
    for _ in range(stage.epochs * len(stage.batches)):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_drops_multiply_the_rate_by_a_tenth_after_those_epochs(small: Path) -> None:
    seen = schedule(trial(schedule="drops", drops=(1, 3), epochs=4, lr=1e-2))
    steps = len(seen) // 4
    assert seen[0] == seen[steps - 1] == pytest.approx(1e-2)
    assert seen[steps] == seen[3 * steps - 1] == pytest.approx(1e-3)
    assert seen[3 * steps] == seen[-1] == pytest.approx(1e-4)


def test_one_cycle_rises_to_the_rate_and_falls_to_nothing(small: Path) -> None:
    seen = schedule(trial(schedule="one-cycle", epochs=5, lr=1e-2))
    assert max(seen) == pytest.approx(1e-2, rel=0.02)
    assert seen[0] < 1e-3
    assert seen[-1] < 1e-4
    peak = seen.index(max(seen))
    assert seen[:peak] == sorted(seen[:peak])
    assert seen[peak:] == sorted(seen[peak:], reverse=True)


def test_reloads_set_the_rate_to_a_tenth_once(small: Path) -> None:
    seen = schedule(trial(schedule="reloads", checkpoint="best-test", drops=(1, 3), epochs=4, lr=1e-2))
    steps = len(seen) // 4
    assert seen[steps - 1] == pytest.approx(1e-2)
    assert seen[steps] == seen[3 * steps] == seen[-1] == pytest.approx(1e-3)


# --- the best epoch on the held-out classes, as the released code has it ---


def scripted(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """The held-out R@1 after each epoch is what the script says; the networks are real."""
    rest = iter(scores)

    def measure(*arguments: Any) -> Generator[Progress, None, dict[str, float]]:
        found = yield from MEASURE(*arguments)
        return {**found, "R@1": next(rest)}

    monkeypatch.setattr(measuring, "measure", measure)


def kept_states(one: Trial, folder: Path) -> list[dict[str, torch.Tensor]]:
    """The network after each epoch, from its checkpoints."""
    states = []
    running = train.run(Job(one, blobs(), str(folder), threads=1, keep_weights=True))
    for event in running:
        if event.closes_epoch and event.stage == "train":
            states.append(loop.Checkpoint.read(Storage(str(folder)), one).state["model"])
    return states


def test_best_test_ends_with_the_network_of_the_best_epoch(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trial(epochs=4, checkpoint="best-test", schedule="drops", lr=1e-2)
    scripted(monkeypatch, [0.1, 0.6, 0.6, 0.3])
    states = kept_states(one, tmp_path)
    final = load_file(tmp_path / "weights" / f"{one.id}.safetensors")
    assert all(torch.equal(final[name], states[1][name]) for name in final)  # the first of the two best
    assert not all(torch.equal(final[name], states[3][name]) for name in final)


def test_best_test_records_what_it_chose_on_and_last_looks_at_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [0.1, 0.6])
    chosen, _ = run(trial(epochs=2, checkpoint="best-test"), tmp_path)
    assert [row["R@1"] for row in chosen.curve] == [0.1, 0.6]
    monkeypatch.setattr(measuring, "measure", lambda *_: pytest.fail("looked at the held-out classes"))
    last, _ = run(trial(epochs=2), tmp_path)
    assert all("R@1" not in row for row in last.curve)


def test_reloads_go_on_from_the_best_network(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch 3 after a reload of epoch 1's network: a run whose epoch 2 leaves no trace but the optimizer's moments."""
    began: list[dict[str, torch.Tensor]] = []
    real = loop.load

    def spy(bench: setup.Bench, *more: Any) -> Any:
        began.append({name: value.clone() for name, value in bench.model.state_dict().items()})
        return real(bench, *more)

    monkeypatch.setattr(loop, "load", spy)
    scripted(monkeypatch, [0.9, 0.2, 0.3])
    one = trial(epochs=3, checkpoint="best-test", schedule="reloads", drops=(2,), lr=1e-2)
    states = kept_states(one, tmp_path)
    assert all(torch.equal(began[2][name], states[0][name]) for name in states[0])
    assert not all(torch.equal(began[2][name], states[1][name]) for name in states[1])


def test_a_reloading_trial_goes_on_from_its_checkpoint_with_the_same_bits(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trial(epochs=4, checkpoint="best-test", schedule="reloads", drops=(2,), lr=1e-2)
    scores = [0.5, 0.2, 0.4, 0.1]
    scripted(monkeypatch, scores)
    whole, _ = run(one, tmp_path / "whole")
    scripted(monkeypatch, scores[:2])
    running = train.run(Job(one, blobs(), str(tmp_path / "cut"), threads=1))
    for event in running:
        if event.closes_epoch and event.epoch == 2:
            break
    running.close()
    scripted(monkeypatch, scores[2:])
    resumed, _ = run(one, tmp_path / "cut")
    assert resumed.metrics == whole.metrics
    assert [row["loss"] for row in resumed.curve] == [row["loss"] for row in whole.curve]


def test_a_trial_on_a_cpu_keeps_the_memory_it_frees(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(allocator, "keep_freed", lambda: asked.append(True))
    set_up(trial())
    assert asked


# --- curves ---


@pytest.mark.parametrize(
    "settings",
    [{"augment": "drawings"}, {"checkpoint": "best-test", "schedule": "reloads", "drops": (1,), "lr": 1e-2}],
    ids=["last", "best-test"],
)
def test_curves_change_neither_the_network_nor_its_metrics(
    small: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    one = trial("group", epochs=3, **settings)
    plain, _ = run(one, tmp_path / "plain", keep_weights=True)
    watched, _ = run(one, tmp_path / "watched", keep_weights=True, curves=True)
    assert watched.metrics == plain.metrics
    assert watched.artifacts == plain.artifacts  # with their sha256
    assert [row["loss"] for row in watched.curve] == [row["loss"] for row in plain.curve]
    for kind in ("weights", "embeddings"):
        first, second = ((tmp_path / way / kind / f"{one.id}.safetensors").read_bytes() for way in ("plain", "watched"))
        assert first == second
    assert all("train R@1" in row for row in watched.curve)
    assert not any("train R@1" in row for row in plain.curve)


def nearest_is_right(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    """Recall@1 by a loop."""
    hits = 0
    for query in range(len(labels)):
        distances = (embeddings.double() - embeddings[query].double()).square().sum(1)
        distances[query] = float("inf")
        hits += int(labels[distances.argmin()] == labels[query])
    return hits / len(labels)


def test_curves_hold_recall_of_the_held_out_and_of_the_training_images(small: Path, tmp_path: Path) -> None:
    one = trial("normalized_softmax", epochs=3, lr=3e-3, augment="drawings")
    result, seen = run(one, tmp_path, keep_weights=True, curves=True)
    first_epoch = [event.stage for event in seen[: [event.closes_epoch for event in seen].index(True)]]
    assert first_epoch.count("evaluate") >= 2  # it is told that both are embedded: that may take long
    bench, _ = set_up(one)
    bench.model.load_state_dict(load_file(tmp_path / "weights" / f"{one.id}.safetensors"))
    bench.model.eval()
    fold, last = bench.fold, result.curve[-1]
    for name, images, labels in (("R@1", fold.test, fold.test_labels), ("train R@1", fold.train, fold.train_labels)):
        batch = transforms.to_float(transforms.plain(bench.images, images, one))
        assert last[name] == pytest.approx(nearest_is_right(measuring.embed(bench, batch), labels))
    assert last["R@1"] == result.metrics["R@1"]
    assert last["R@1"] != last["train R@1"]  # else the comparison shows little
    assert len({row["train R@1"] for row in result.curve}) > 1


def test_curves_take_no_training_time_and_no_k_means(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrieval, metrics, calls = evaluate.retrieval, evaluate.metrics, []

    def slow(*arguments: Any) -> dict[str, float]:
        time.sleep(0.5)
        return retrieval(*arguments)

    def counted(*arguments: Any) -> dict[str, float]:
        calls.append(arguments)
        return metrics(*arguments)

    monkeypatch.setattr(evaluate, "retrieval", slow)
    monkeypatch.setattr(evaluate, "metrics", counted)  # with NMI
    begun = time.perf_counter()
    result, _ = run(trial(epochs=2), tmp_path, curves=True)
    # twice in each epoch, and once in the end
    assert result.seconds["train"] <= time.perf_counter() - begun - 5 * 0.5
    assert len(calls) == 1


@pytest.mark.parametrize("begun_with", [True, False])
def test_a_curve_has_no_holes_whatever_it_began_with(small: Path, tmp_path: Path, begun_with: bool) -> None:
    """With curves a trial goes on where it was; without, its first epochs were not measured, so it starts again."""
    one = trial(epochs=3, pretrain_epochs=1)
    whole, _ = run(one, tmp_path / "whole", curves=True)
    broken = train.run(Job(one, blobs(), str(tmp_path / "cut"), threads=1, curves=begun_with))
    for event in broken:
        if event.closes_epoch and (event.stage, event.epoch) == ("train", 2):
            break
    broken.close()
    resumed, seen = run(one, tmp_path / "cut", curves=True)
    stages = [event.stage for event in seen]
    assert "pretrain" not in stages  # it is shared
    assert seen[stages.index("train")].epoch == (3 if begun_with else 1)
    assert resumed.metrics == whole.metrics
    for fact in ("epoch", "loss", "images", "R@1", "train R@1"):
        assert [row[fact] for row in resumed.curve] == [row[fact] for row in whole.curve]


@pytest.mark.parametrize(
    ("name", "kind", "has"),
    [
        ("adam", torch.optim.Adam, {"eps": 1e-8}),
        ("radam", torch.optim.RAdam, {"decoupled_weight_decay": True}),
        ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9}),
    ],
)
def test_the_optimizer_is_the_trials(small: Path, name: str, kind: type, has: dict[str, Any]) -> None:
    bench, loss = set_up(trial(optimizer=name, weight_decay=0.5))
    made = optimizers.make_optimizer(bench, setup.main_stage(bench, loss))
    assert type(made) is kind
    assert all(group["weight_decay"] == 0.5 and has.items() <= group.items() for group in made.param_groups)


# --- networks ---


def test_dim_none_is_the_backbones_own_width(small: Path) -> None:
    wide, narrow = network.create(trial(dim=None)), network.create(trial(dim=8))
    images = torch.rand(2, 3, 32, 32)
    assert wide.eval()(images).shape == (2, wide.dim)
    assert narrow.eval()(images).shape == (2, 8)
    assert wide.dim > 8


@pytest.mark.parametrize("pooling", ["avg", "max", "avgmax"])
def test_pooling_is_the_trials(small: Path, pooling: str) -> None:
    model = network.create(trial(dim=None, pooling=pooling)).eval()
    features = model.trunk.forward_features((torch.ones(1, 3, 32, 32) - model.mean) / model.std)
    average, largest = features.mean((2, 3)), features.amax((2, 3))
    expected = {"avg": average, "max": largest, "avgmax": (average + largest) / 2}[pooling]
    torch.testing.assert_close(model(torch.ones(1, 3, 32, 32)), expected)


def test_layer_norm_stands_before_the_embedding_and_has_no_parameters(small: Path) -> None:
    plain, normed = network.create(trial(dim=None)), network.create(trial(dim=None, layer_norm=True))
    normed.trunk.load_state_dict(plain.trunk.state_dict())
    images = torch.rand(2, 3, 32, 32)
    features = plain.eval()(images)
    expected = (features - features.mean(1, keepdim=True)) / (features.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(normed.eval()(images), expected)
    assert sum(p.numel() for p in normed.parameters()) == sum(p.numel() for p in plain.parameters())


def test_freeze_bn_keeps_the_statistics_and_only_then(small: Path) -> None:
    for frozen in (True, False):
        model = network.create(trial(freeze_bn=frozen))
        before = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
        model.train()
        model(torch.rand(4, 3, 32, 32))
        same = all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
        assert same == frozen
        assert before


def test_packaged_weights_load_strictly_and_see_what_the_network_was_trained_to_see() -> None:
    import timm

    from harness.backbones import packaged

    model = timm.create_model("tf_efficientnet_lite0").eval()
    state = packaged.state_dict("tf_efficientnet_lite0", model)
    assert len(state) == 296
    model.load_state_dict(state, strict=True)
    assert len(packaged.sha256("tf_efficientnet_lite0")) == 64
    assert packaged.sha256("tf_efficientnet_lite0").startswith("57934424")  # the file carries its own hash


def test_packaged_weights_are_those_of_the_trial() -> None:
    asked = Experiment(config.dataset("emoji"), config.protocol("quick"), ())
    _, untrained = plan.baselines(asked)
    first, second = network.create(untrained), network.create(untrained)
    assert torch.equal(first.trunk.conv_stem.weight, second.trunk.conv_stem.weight)
    scratch = network.create(dataclasses.replace(untrained, weights="none"))
    assert not torch.equal(first.trunk.conv_stem.weight, scratch.trunk.conv_stem.weight)


def test_data_is_loaded_once_for_many_trials(small: Path) -> None:
    first, second = (finish(loading.load(blobs(), trial(seed=seed))) for seed in (0, 1))
    assert first is second


def test_a_probe_costs_an_image_in_seconds(small: Path) -> None:
    cost = estimate.probe(Job(trial(), blobs(), ""))
    assert cost.train > 0
    assert cost.evaluate > 0
    assert cost.parameters == run(trial(), small)[0].parameters

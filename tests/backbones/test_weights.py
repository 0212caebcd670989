"""Where weights come from: packages, files under several namings, the hub; and what a misfit says."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from harness import config, plan
from harness.backbones import downloads, network, packaged, weights
from harness.spec import Experiment, Trial, UserError
from tests.conftest import Harness


def trial_of(backbone: str, source: str = "none", **settings: Any) -> Trial:
    asked = Experiment(
        config.dataset("emoji"),
        config.protocol("quick"),
        (),
        settings={"backbone": backbone, "weights": source, "resize": 32, "crop": 32, **settings},
    )
    return plan.baselines(asked)[1]


def state_of(backbone: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return timm.create_model(backbone).state_dict()


def loaded(backbone: str, file: Path) -> network.Embedder:
    which, path = weights.resolve(backbone, str(file))
    model = network.create(trial_of(backbone, which), path)
    assert isinstance(model, network.Embedder)
    return model


def holds(model: network.Embedder, state: dict[str, Tensor]) -> bool:
    own = model.trunk.state_dict()
    return bool(own) and all(torch.equal(own[name], state[name]) for name in own)


@pytest.mark.parametrize("backbone", packaged.FILES)
def test_every_packaged_file_loads_strictly_and_carries_its_own_hash(backbone: str) -> None:
    model = timm.create_model(backbone).eval()
    model.load_state_dict(packaged.state_dict(backbone, model), strict=True)
    assert packaged.sha256(backbone)[:8] in packaged.FILES[backbone][1]


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}])
def test_a_timm_file_loads_whatever_it_is_wrapped_in(tmp_path: Path, wrap: Any) -> None:
    state = state_of("test_resnet")
    torch.save(wrap(state), tmp_path / "mine.pth")
    assert holds(loaded("test_resnet", tmp_path / "mine.pth"), state)


def test_a_parallel_model_and_safetensors_load(tmp_path: Path) -> None:
    state = state_of("test_resnet")
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "mine.pth")
    save_file(state, tmp_path / "mine.safetensors")
    assert holds(loaded("test_resnet", tmp_path / "mine.pth"), state)
    assert holds(loaded("test_resnet", tmp_path / "mine.safetensors"), state)


@pytest.mark.parametrize("classes", [7, None])
def test_the_classifier_of_a_file_does_not_matter(tmp_path: Path, classes: int | None) -> None:
    state = state_of("test_resnet")
    for name in [name for name in state if name.startswith("fc.")]:
        value = state.pop(name)
        if classes:
            state[name] = value[:classes]
    torch.save(state, tmp_path / "mine.pth")
    assert holds(loaded("test_resnet", tmp_path / "mine.pth"), state)


def test_torchvisions_names_load(tmp_path: Path) -> None:
    from torchvision.models import densenet121, resnet18

    torch.manual_seed(2)
    state = resnet18().state_dict()
    torch.save(state, tmp_path / "resnet.pth")
    assert holds(loaded("resnet18", tmp_path / "resnet.pth"), state)

    # torchvision's published DenseNet files have a dot where the layers' names have none: norm.1, conv.2
    state = densenet121().state_dict()
    old = {
        name.replace("norm1", "norm.1").replace("norm2", "norm.2").replace("conv1", "conv.1").replace("conv2", "conv.2")
        if "denselayer" in name
        else name: value
        for name, value in state.items()
        if not name.endswith("num_batches_tracked")  # which they are older than
    }
    assert set(old) != set(state)
    torch.save(old, tmp_path / "densenet.pth")
    assert holds(loaded("densenet121", tmp_path / "densenet.pth"), state)


def test_the_caffe_names_of_bn_inception_load(tmp_path: Path) -> None:
    state = state_of("bn_inception")
    assert "inception_3a_double_3x3_1.weight" in state
    torch.save(state, tmp_path / "mine.pth")
    assert holds(loaded("bn_inception", tmp_path / "mine.pth"), state)


def test_missing_unexpected_and_misshapen_keys_are_listed(tmp_path: Path) -> None:
    state = state_of("test_resnet")
    first, second = [name for name in state if name.endswith(".weight")][:2]
    state["stray.weight"] = state.pop(first)
    state[second] = state[second][:1]
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(UserError) as error:
        loaded("test_resnet", tmp_path / "mine.pth")
    story = str(error.value)
    assert "does not fit test_resnet" in story
    assert f"missing {first}" in story
    assert "unexpected stray.weight" in story
    assert f"wrong shape {second}" in story
    assert "\n" not in story


def test_a_long_list_of_keys_is_cut_and_counted() -> None:
    assert weights.listed([f"k{i}" for i in range(9)]) == "k0, k1, k2, k3, k4, k5 and 3 more"


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("touched"),))


def test_a_file_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match=r"evil\.pth cannot be read as weights"):
        loaded("test_resnet", tmp_path / "evil.pth")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"{}"])
def test_what_is_no_weight_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    for name in ("mine.pth", "mine.safetensors"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            loaded("test_resnet", tmp_path / name)


def test_which_weights_are_part_of_the_trial_but_not_where_they_lie(tmp_path: Path) -> None:
    state = state_of("test_resnet")
    files = [tmp_path / "a.pth", tmp_path / "deeper" / "b.pth", tmp_path / "c.pth"]
    files[1].parent.mkdir()
    torch.save(state, files[0])
    files[1].write_bytes(files[0].read_bytes())
    first = next(iter(state))
    torch.save({**state, first: state[first] + 1}, files[2])
    names = [weights.resolve("test_resnet", str(file))[0] for file in files]
    assert names[0] == f"file:{hashlib.sha256(files[0].read_bytes()).hexdigest()[:12]}"
    assert names[0] == names[1] != names[2]
    trials = [trial_of("test_resnet", name) for name in names]
    assert trials[0].id == trials[1].id != trials[2].id
    with pytest.raises(UserError, match="the trial's weights have"):
        network.create(trials[0], str(files[2]))


def test_the_sha256_of_the_weights_is_known(tmp_path: Path) -> None:
    torch.save(state_of("test_resnet"), tmp_path / "mine.pth")
    model = loaded("test_resnet", tmp_path / "mine.pth")
    assert model.weights_sha256 == hashlib.sha256((tmp_path / "mine.pth").read_bytes()).hexdigest()
    assert network.create(trial_of("test_resnet")).weights_sha256 is None
    lite = network.create(trial_of("tf_efficientnet_lite0", "package"))
    assert lite.weights_sha256 == packaged.sha256("tf_efficientnet_lite0")


def test_a_known_file_has_to_be_what_its_name_says(tmp_path: Path) -> None:
    file = tmp_path / downloads.file_name("bn_inception")
    torch.save(state_of("test_resnet"), file)
    with pytest.raises(UserError, match="its name says 52deb4733"):
        weights.resolve("bn_inception", str(file))


# --- the hub ---


def test_the_hub_is_named_by_its_default_tag() -> None:
    assert weights.resolve("resnet50", "hub") == ("hub:a1_in1k", "")
    assert weights.resolve("resnet50.tv_in1k", "hub") == ("hub:tv_in1k", "")


def test_a_backbone_without_hub_weights_says_so() -> None:
    bare = next(name for name in timm.list_models("densenet*") if not timm.is_model_pretrained(name))
    with pytest.raises(UserError, match=r"the hub has no weights of .*; from scratch: --weights none"):
        weights.resolve(bare, "hub")


def test_a_hub_that_cannot_be_reached_is_one_line_with_the_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    real = timm.create_model

    def offline(name: str, pretrained: bool = False, **options: Any) -> Any:
        if pretrained:
            raise OSError("We couldn't connect to the hub.\nmore lines")
        return real(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UserError) as error:
        network.create(trial_of("resnet18", "hub:a1_in1k"))
    story = str(error.value)
    assert story.startswith(
        "the weights resnet18.a1_in1k cannot be downloaded from the hub: We couldn't connect to the hub. Without"
    )
    assert "--weights FILE" in story
    assert "--weights package" in story


def test_hub_weights_are_loaded_and_hashed_by_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is asked for by timm; here a state dict stands in for it."""
    state, real, asked = state_of("test_resnet"), timm.create_model, []

    def hub(name: str, pretrained: bool = False, **options: Any) -> Any:
        if not pretrained:
            return real(name, pretrained=False, **options)
        asked.append(name)
        return real("test_resnet", pretrained=True, pretrained_cfg_overlay={"state_dict": dict(state)}, **options)

    monkeypatch.setattr(timm, "create_model", hub)
    model = network.create(trial_of("test_resnet", "hub:r160_in1k"))
    assert asked == ["test_resnet.r160_in1k"]
    assert holds(model, state)
    assert model.weights_sha256 == weights.of_tensors(state)


# --- preprocessing is the backbone's ---


def test_bn_inception_sees_bgr_from_0_to_255_less_its_mean() -> None:
    model = network.create(trial_of("bn_inception", resize=64, crop=64)).eval()
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    seen: list[Tensor] = []
    model.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(image)
    red, green, blue = (255 * image[0]).unbind()
    expected = torch.stack([blue - 104, green - 117, red - 128])
    torch.testing.assert_close(seen[0][0], expected, rtol=0, atol=1e-3)


def test_other_backbones_see_rgb_with_their_own_mean_and_deviation() -> None:
    for backbone, mean, std in (
        ("tf_efficientnet_lite0", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("densenet121", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ):
        model = network.create(trial_of(backbone)).eval()
        image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        seen: list[Tensor] = []
        model.trunk.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        model(image)
        expected = torch.stack([(image[0, c] - mean[c]) / std[c] for c in range(3)])
        torch.testing.assert_close(seen[0][0], expected)


# --- from the command line ---


def test_a_file_on_the_command_line_is_stored_by_its_hash_and_reproduced_by_its_name(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    torch.save(state_of("test_efficientnet"), tmp_path / "mine.pth")
    said = harness("run", "--losses", "none", "--dataset", "blobs", "--weights", str(tmp_path / "mine.pth"))
    assert said.code == 0
    (one,) = [file for file in (tmp_path / "results" / "runs").rglob("*.json") if '"file:' in file.read_text()]
    shown = harness("show", one.stem).out
    assert hashlib.sha256((tmp_path / "mine.pth").read_bytes()).hexdigest() in shown
    assert "--weights mine.pth" in shown


def test_weights_that_do_not_fit_are_told_before_anything_runs(small: Path, harness: Harness, tmp_path: Path) -> None:
    torch.save(state_of("test_resnet"), tmp_path / "mine.pth")
    said = harness("run", "--losses", "triplet", "--dataset", "blobs", "--weights", str(tmp_path / "mine.pth"))
    assert said.code == 2
    assert "does not fit test_efficientnet" in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "results" / "runs").exists()


def test_pretrained_false_needs_no_file(tmp_path: Path) -> None:
    trial = dataclasses.replace(trial_of("test_resnet"), weights="file:0123456789ab")
    assert network.create(trial, pretrained=False).weights_sha256 is None

"""The networks: width, pooling, normalisation, weights."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness import config, plan
from harness.backbones import network
from harness.spec import Experiment
from tests.training.trials import trial


def random_images(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_dim_none_is_the_backbones_own_width(small: Path) -> None:
    wide, narrow = network.create(trial(dim=None)), network.create(trial(dim=8))
    images = random_images()
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
    images = random_images()
    features = plain.eval()(images)
    expected = (features - features.mean(1, keepdim=True)) / (features.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(normed.eval()(images), expected)
    assert sum(p.numel() for p in normed.parameters()) == sum(p.numel() for p in plain.parameters())


def test_freeze_bn_keeps_the_statistics_and_only_then(small: Path) -> None:
    for frozen in (True, False):
        model = network.create(trial(freeze_bn=frozen))
        before = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
        model.train()
        model(random_images(4))
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
    _, untrained = plan.baselines(Experiment(config.dataset("emoji"), config.protocol("quick"), ()))
    first, second = network.create(untrained), network.create(untrained)
    assert torch.equal(first.trunk.conv_stem.weight, second.trunk.conv_stem.weight)
    scratch = network.create(dataclasses.replace(untrained, weights="none"))
    assert not torch.equal(first.trunk.conv_stem.weight, scratch.trunk.conv_stem.weight)


# --- what training and evaluation ask of a network ---


def test_embeddings_are_compared_at_unit_length_and_pixels_as_they_are(small: Path) -> None:
    model, images = network.create(trial(dim=8)).eval(), random_images()
    raw, compared = model(images), model.embed(images)
    torch.testing.assert_close(compared.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(compared, raw / raw.square().sum(dim=1, keepdim=True).sqrt())
    assert model.distance == "Euclidean on unit-length embeddings"
    pixels = network.Pixels()
    assert torch.equal(pixels.embed(images), images.flatten(1))
    assert pixels.distance == "Euclidean on raw pixels"


def test_the_second_version_of_the_raw_pixels_is_half_as_wide(small: Path) -> None:
    """Stripes of two pixels: each becomes one."""
    images = torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(8).expand(2, 3, 32, 32)
    pixels = network.Pixels(version=2)
    found = pixels.embed(images).view(2, 3, 16, 16)
    assert (found[:, :, :, 0] < 0.5).all()
    assert (found[:, :, :, 1] > 0.5).all()
    assert pixels.dim == 3 * 16 * 16
    assert pixels.distance == "Euclidean on raw pixels, 16 px"


def test_the_trunk_has_one_learning_rate_and_the_embedding_layer_another(small: Path) -> None:
    model = network.create(trial(dim=8))
    trunk, head = model.parameter_groups(0.1, 0.5)
    assert (trunk["lr"], head["lr"]) == (0.1, 0.5)
    assert [id(p) for p in head["params"]] == [id(model.head.weight), id(model.head.bias)]
    assert {id(p) for group in (trunk, head) for p in group["params"]} == {id(p) for p in model.parameters()}


def test_what_has_no_parameters_has_no_group(small: Path) -> None:
    (trunk,) = network.create(trial(dim=None)).parameter_groups(0.1, 0.5)
    assert trunk["lr"] == 0.1
    assert network.Pixels().parameter_groups(0.1, 0.5) == []

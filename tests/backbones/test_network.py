"""The networks: width, pooling, normalisation, weights."""

import dataclasses
from pathlib import Path

import pytest
import torch

from harness import config, plan
from harness.backbones import network
from harness.spec import Experiment
from tests.training.trials import trial


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

"""Networks cut into stages: one after another they are the network, for each family."""

import copy

import pytest
import timm
import torch
from torch import nn

import losses
from harness.backbones import (
    bn_inception,  # noqa: F401 registers the model
    stages,
)
from harness.spec import UserError

# A small network of each family, its crop, and how many stages it has.
NETWORKS = {
    "test_efficientnet": (32, 5),
    "test_resnet": (32, 4),
    "densenet121": (32, 4),
    "test_convnext": (32, 4),
    "test_vit": (160, 6),
    "bn_inception": (64, 10),
    "inception_v3": (96, 11),
    "inception_v4": (96, 16),
}


def network(name: str, pooling: str | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model(name)
    model.reset_classifier(0, **({"global_pool": pooling} if pooling else {}))
    return model.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_running_the_stages_one_after_another_is_the_network(name: str) -> None:
    crop, count = NETWORKS[name]
    model = network(name)
    trunk = stages.cut(model, name, crop)
    images = torch.randn(2, 3, crop, crop, generator=torch.Generator().manual_seed(1))
    assert len(trunk.stages) == count
    with torch.no_grad():
        x = images
        for stage, shape in zip(trunk.stages, trunk.shapes, strict=True):
            x = stage(x)
            assert x.shape[1:] == shape
        assert torch.equal(trunk.pool(x), model(images))
        assert torch.equal(trunk(images), model(images))
    assert trunk.width == model(images).shape[1]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_methods_that_take_a_network_apart_work_on_the_families_that_the_docs_name(name: str) -> None:
    crop, _ = NETWORKS[name]
    trunk = stages.cut(network(name), name, crop)
    images = torch.zeros(1, 3, crop, crop)
    with torch.no_grad():
        assert losses.get("hdc")(2, 6).head(trunk).eval()(images).shape == (1, 6)
        if name in ("test_efficientnet", "test_resnet", "densenet121", "bn_inception"):
            assert losses.get("abe")(2, 6, learners=2).head(trunk).eval()(images).shape == (1, 6)
        else:
            with pytest.raises(ValueError, match="this backbone's"):
                losses.get("abe")(2, 6, learners=2).head(trunk)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit"])
def test_stages_are_the_networks_own_modules(name: str) -> None:
    """Training a stage trains the network, and together they have all its parameters."""
    model = network(name)
    trunk = stages.cut(model, name, NETWORKS[name][0])
    images = torch.randn(2, 3, *[NETWORKS[name][0]] * 2)
    trunk(images).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.train()
    copied = copy.deepcopy(trunk.stages[1])
    assert all(module.training for module in copied.modules() if isinstance(module, nn.BatchNorm2d))


def test_the_pooling_of_the_network_is_kept() -> None:
    images = torch.randn(2, 3, 64, 64)
    average, largest = network("test_resnet"), network("test_resnet", "max")
    assert not torch.equal(stages.cut(average, "test_resnet", 64)(images), largest(images))
    assert torch.equal(stages.cut(largest, "test_resnet", 64)(images), largest(images))


def test_cutting_draws_nothing_at_random() -> None:
    model = network("test_resnet")
    torch.manual_seed(3)
    stages.cut(model, "test_resnet", 32)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


def test_a_network_that_cannot_be_cut_is_one_clear_error() -> None:
    with pytest.raises(UserError) as error:
        stages.cut(network("test_mambaout"), "test_mambaout", 32)
    assert str(error.value) == (
        "backbone=test_mambaout: cannot be cut into stages, which this loss needs; cut are: EfficientNet, ResNet, "
        "DenseNet, ConvNeXt, ViT, bn_inception, inception_v3, inception_v4"
    )


def test_a_relative_whose_stages_are_not_the_network_is_refused() -> None:
    """A class that derives from a known one, and does more."""

    class Twice(type(network("test_resnet"))):  # type: ignore[misc]
        def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
            return super().forward_head(x, pre_logits)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model = network("test_resnet")
    model.__class__ = Twice
    with pytest.raises(UserError, match="test_resnet: its stages, one after another, are not the network"):
        stages.cut(model, "test_resnet", 32)

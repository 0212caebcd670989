"""A network cut into stages, timm's own units, for methods that use more of it than its pooled output."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.spec import UserError


@dataclass(frozen=True)
class Trunk:
    """A network without its classifier: run one after another, the stages and then `pool` are the network.

    Stages are modules of the network itself, in an order of their own. This is no module, so a head that keeps it does
    not own its parameters: they are trained, stored and counted with the network.
    """

    stages: tuple[nn.Module, ...]
    pool: Callable[[Tensor], Tensor]  # what the last stage gives, to (n, width)
    shapes: tuple[tuple[int, ...], ...]  # of what each stage gives, without the batch: (c, h, w), of a ViT (tokens, c)
    width: int

    def __call__(self, images: Tensor) -> Tensor:
        """Normalised images (n, 3, h, w) to the pooled output (n, width)."""
        for stage in self.stages:
            images = stage(images)
        return self.pool(images)


def cut(network: Any, name: str, crop: int) -> Trunk:
    """The stages of a timm model whose classifier is removed; a UserError if it is of a family that is not known, or if
    its stages are not the whole network. `name`: of the backbone, for people."""
    for kind in type(network).__mro__:
        if kind.__name__ in CUTS:
            stages = tuple(CUTS[kind.__name__](network))
            break
    else:
        raise UserError(
            f"backbone={name}: cannot be cut into stages, which this loss needs; cut are: {', '.join(FAMILIES)}"
        )
    device = next(network.parameters()).device
    images = torch.linspace(-1, 1, 3 * crop**2, device=device).view(1, 3, crop, crop)  # draws nothing at random
    shapes = []
    network.eval()
    with torch.no_grad():
        x = images
        for stage in stages:
            x = stage(x)
            shapes.append(tuple(x.shape[1:]))
        pooled, expected = network.forward_head(x), network(images)
    if pooled.shape != expected.shape or (device.type != "meta" and not torch.equal(pooled, expected)):
        raise UserError(f"backbone={name}: its stages, one after another, are not the network")
    return Trunk(stages, network.forward_head, tuple(shapes), expected.shape[1])


def efficientnet(network: Any) -> Iterable[nn.Module]:
    """The blocks; the stem before the first, conv_head with the last."""
    *blocks, last = network.blocks
    last = nn.Sequential(last, network.conv_head, network.bn2)
    return with_stem([network.conv_stem, network.bn1], [*blocks, last])


def resnet(network: Any) -> Iterable[nn.Module]:
    stem = [network.conv1, network.bn1, network.act1, network.maxpool]
    return with_stem(stem, [network.layer1, network.layer2, network.layer3, network.layer4])


def densenet(network: Any) -> Iterable[nn.Module]:
    """A block with its transition; the stem before the first, the last normalisation with the last."""
    stem: list[nn.Module] = []
    stages: list[nn.Module] = []
    for name, module in network.features.named_children():
        if name.startswith("denseblock"):
            stages.append(module)
        elif stages:
            stages[-1] = nn.Sequential(stages[-1], module)
        else:
            stem.append(module)
    return with_stem(stem, stages)


def convnext(network: Any) -> Iterable[nn.Module]:
    *stages, last = network.stages
    return with_stem([network.stem], [*stages, nn.Sequential(last, network.norm_pre)])


def vit(network: Any) -> Iterable[nn.Module]:
    """The blocks; patches and their positions before the first, the normalisation with the last."""
    *blocks, last = network.blocks
    return with_stem([Patches(network)], [*blocks, nn.Sequential(last, network.norm)])


class Patches(nn.Module):
    """The tokens of a vision transformer before its first block."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.parts = [network]  # in a list: the whole network is no part of this stage

    def forward(self, images: Tensor) -> Tensor:
        (network,) = self.parts
        tokens = network.patch_drop(network._pos_embed(network.patch_embed(images)))
        return network.norm_pre(tokens)


def bn_inception(network: Any) -> Iterable[nn.Module]:
    """The Inception modules, 3a to 5b; the stem before the first."""
    return network.stages()


def inception_v3(network: Any) -> Iterable[nn.Module]:
    stem = [getattr(network, name) for name in network._modules if name.startswith(("Conv2d_", "Pool"))]
    return with_stem(stem, [getattr(network, name) for name in network._modules if name.startswith("Mixed_")])


def inception_v4(network: Any) -> Iterable[nn.Module]:
    """The modules after the stem, which ends with the last of the mixed layers."""
    children = list(network.features)
    first = next(at for at, module in enumerate(children) if type(module).__name__ == "InceptionA")
    return with_stem(children[:first], children[first:])


def with_stem(stem: list[nn.Module], stages: list[nn.Module]) -> list[nn.Module]:
    """The stem before the first stage."""
    return [nn.Sequential(*stem, stages[0]), *stages[1:]]


# By the class of timm's model, or of one that it derives from.
CUTS: Mapping[str, Callable[[Any], Iterable[nn.Module]]] = {
    "EfficientNet": efficientnet,
    "ResNet": resnet,
    "DenseNet": densenet,
    "ConvNeXt": convnext,
    "VisionTransformer": vit,
    "BNInception": bn_inception,
    "InceptionV3": inception_v3,
    "InceptionV4": inception_v4,
}
FAMILIES = ("EfficientNet", "ResNet", "DenseNet", "ConvNeXt", "ViT", "bn_inception", "inception_v3", "inception_v4")

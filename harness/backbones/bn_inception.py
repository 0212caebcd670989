"""BN-Inception, the GoogLeNet with batch normalisation of Ioffe & Szegedy (2015), as timm's model `bn_inception`.

Layers carry the Caffe names of the widely used ImageNet weights, so that file loads as it is, except for `squeezed`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers.classifier import create_classifier
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

CHANNELS = "BGR"  # the order of the input and of MEAN
MEAN = (104 / 255, 117 / 255, 128 / 255)  # the weights want 0..255 less (104, 117, 128)
STD = (1 / 255,) * 3


class Inception(NamedTuple):
    """Channels of a module's convolutions, and its pooling. No projection: stride 2, the pooled input goes through."""

    one: int
    reduce: int
    three: int
    double_reduce: int
    double: int
    pool: str
    projection: int

    @property
    def stride(self) -> int:
        return 1 if self.projection else 2


INCEPTIONS = {
    "3a": Inception(64, 64, 64, 64, 96, "avg", 32),
    "3b": Inception(64, 64, 96, 64, 96, "avg", 64),
    "3c": Inception(0, 128, 160, 64, 96, "max", 0),
    "4a": Inception(224, 64, 96, 96, 128, "avg", 128),
    "4b": Inception(192, 96, 128, 96, 128, "avg", 128),
    "4c": Inception(160, 128, 160, 128, 160, "avg", 128),
    "4d": Inception(96, 128, 192, 160, 192, "avg", 128),
    "4e": Inception(0, 128, 192, 192, 256, "max", 0),
    "5a": Inception(352, 192, 320, 160, 224, "avg", 128),
    "5b": Inception(352, 192, 320, 192, 224, "max", 128),
}


class Layers(nn.Module):
    """Layers with the names of the weight file, and how an Inception module runs them."""

    def conv(self, name: str, x: Tensor) -> Tensor:
        return F.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)), inplace=True)

    def stem(self, x: Tensor) -> Tensor:
        x = shrink(self.conv("conv1_7x7_s2", x))
        return shrink(self.conv("conv2_3x3", self.conv("conv2_3x3_reduce", x)))

    def inception(self, name: str, x: Tensor) -> Tensor:
        """One module, `3a` to `5b`: its branches side by side, each (n, channels, h / stride, w / stride)."""
        module, at = INCEPTIONS[name], f"inception_{name}"
        stride = getattr(self, f"{at}_3x3").stride[0]  # of a copy that keeps the size of the map it is 1
        branches = [self.conv(f"{at}_1x1", x)] if module.one else []
        branches.append(self.conv(f"{at}_3x3", self.conv(f"{at}_3x3_reduce", x)))
        double = self.conv(f"{at}_double_3x3_1", self.conv(f"{at}_double_3x3_reduce", x))
        branches.append(self.conv(f"{at}_double_3x3_2", double))
        if stride == 2:
            # An odd map would leave the pool one row and column short of the convolutions, and such inputs (112, 240)
            # are an error in the original. x is a ReLU's output: zeros change no maximum.
            branches.append(shrink(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))))
        else:
            pooled = F.avg_pool2d(x, 3, 1, padding=1) if module.pool == "avg" else F.max_pool2d(x, 3, 1, padding=1)
            branches.append(self.conv(f"{at}_pool_proj", pooled) if module.projection else pooled)
        return torch.cat(branches, dim=1)


class Part(Layers):
    """Inception modules of the network, and perhaps its stem, as a stage. It shares the network's layers."""

    def __init__(self, network: nn.Module, names: tuple[str, ...], *, stem: bool = False) -> None:
        super().__init__()
        self.names, self.has_stem = names, stem
        prefixes = tuple(f"inception_{name}_" for name in names) + (("conv1_", "conv2_") if stem else ())
        for name, layer in network.named_children():
            if name.startswith(prefixes):
                self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) if self.has_stem else x
        for name in self.names:
            x = self.inception(name, x)
        return x


class BNInception(Layers):
    """Images (n, 3, h, w), normalised as above, to features (n, 1024, ~h/32, ~w/32), then pooling and a classifier."""

    channels = CHANNELS

    def __init__(
        self, num_classes: int = 1000, in_chans: int = 3, global_pool: str = "avg", drop_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.add("conv1_7x7_s2", in_chans, 64, kernel=7, stride=2)
        self.add("conv2_3x3_reduce", 64, 64)
        self.add("conv2_3x3", 64, 192, kernel=3)
        width = 192
        for name, module in INCEPTIONS.items():
            at, stride = f"inception_{name}", module.stride
            if module.one:
                self.add(f"{at}_1x1", width, module.one)
            self.add(f"{at}_3x3_reduce", width, module.reduce)
            self.add(f"{at}_3x3", module.reduce, module.three, kernel=3, stride=stride)
            self.add(f"{at}_double_3x3_reduce", width, module.double_reduce)
            self.add(f"{at}_double_3x3_1", module.double_reduce, module.double, kernel=3)
            self.add(f"{at}_double_3x3_2", module.double, module.double, kernel=3, stride=stride)
            if module.projection:
                self.add(f"{at}_pool_proj", width, module.projection)
            width = module.one + module.three + module.double + (module.projection or width)
        self.num_features = self.head_hidden_size = width
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)

    def add(self, name: str, inputs: int, outputs: int, *, kernel: int = 1, stride: int = 1) -> None:
        # the biases are idle before a batch normalisation, but the weight file has them and the paper counts them
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for name in INCEPTIONS:
            x = self.inception(name, x)
        return x

    def stages(self) -> list[nn.Module]:
        """Its Inception modules, the stem before the first; they share its layers."""
        first, *others = INCEPTIONS
        return [Part(self, (first,), stem=True), *(Part(self, (name,)) for name in others)]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.last_linear(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.last_linear

    def reset_classifier(self, num_classes: int, global_pool: str = "avg") -> None:
        self.num_classes = num_classes
        like = next(self.parameters())
        self.global_pool, self.last_linear = create_classifier(
            self.num_features, num_classes, pool_type=global_pool, device=like.device, dtype=like.dtype
        )


def shrink(x: Tensor) -> Tensor:
    """Caffe's 3x3 pooling of stride 2: no padding, sizes rounded up."""
    return F.max_pool2d(x, 3, 2, ceil_mode=True)


def squeezed(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights with batch normalisations of shape (c,): early ports store (1, c)."""
    return {
        key: value.reshape(-1) if value.dim() == 2 and "_bn." in key else value for key, value in state_dict.items()
    }


default_cfgs = generate_default_cfgs(
    {
        "bn_inception": {
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "pool_size": (7, 7),
            "crop_pct": 0.875,
            "interpolation": "bilinear",
            "mean": MEAN,
            "std": STD,
            "first_conv": "conv1_7x7_s2",
            "classifier": "last_linear",
        }
    }
)


def bn_inception(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return build_model_with_cfg(BNInception, "bn_inception", pretrained, pretrained_filter_fn=squeezed, **kwargs)


register_model(bn_inception)

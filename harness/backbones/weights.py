"""A network's pretrained weights: from a package, a file, timm's hub, or none."""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from harness.backbones import (
    bn_inception,  # noqa: F401 it registers itself with timm
    downloads,
    packaged,
)
from harness.spec import UserError

NAMED_KEYS = 6  # keys named in an error; the rest is counted


def resolve(backbone: str, option: str) -> tuple[str, str]:
    """What a trial records of `--weights hub|package|none|FILE`, and the path of FILE. A trial records which weights
    they are, not where they are stored."""
    if option in ("none", "package"):
        return option, ""
    if option == "hub" and backbone not in downloads.URLS:
        return f"hub:{hub_tag(backbone)}", ""
    file = downloads.place(backbone) if option == "hub" else Path(option).absolute()
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    return f"file:{sha256(file)[:12]}", str(file)


def hub_tag(backbone: str) -> str:
    """The name of timm's default weights; a UserError if the hub has none."""
    described = timm.get_pretrained_cfg(backbone, allow_unregistered=False)
    if described is not None and (described.hf_hub_id or described.url):
        return str(described.tag or "default")
    raise UserError(f"the hub has no weights of {backbone}; --weights FILE for your own; from scratch: --weights none")


def load(trunk: nn.Module, backbone: str, weights: str, file: str, options: dict[str, Any]) -> tuple[nn.Module, str]:
    """The network with the weights that a trial names, and their sha256. `trunk` was created with `options`."""
    kind, _, which = weights.partition(":")
    if kind == "package":
        trunk.load_state_dict(packaged.state_dict(backbone, trunk), strict=True)
        return trunk, packaged.sha256(backbone)
    if kind == "hub":
        trunk = download(backbone, which, options)
        return trunk, of_tensors(trunk.state_dict())
    digest = sha256(Path(file))
    if digest[:12] != which:
        raise UserError(
            f"{file}: its sha256 begins {digest[:12]}, the trial's weights have {which}; it was changed or replaced"
        )
    return load_strictly(trunk, backbone, read(Path(file)), file, options), digest


def download(backbone: str, tag: str, options: dict[str, Any]) -> nn.Module:
    name = backbone if "." in backbone or tag == "default" else f"{backbone}.{tag}"
    try:
        return timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # the hub's client raises a different one for each transport
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"the weights {name} cannot be downloaded from the hub: {reason}. Without it: --weights FILE, or "
            f"--weights package for {', '.join(packaged.FILES)}"
        ) from None


def read(file: Path) -> dict[str, Tensor]:
    """The state dict of a file; nothing in the file is executed."""
    try:
        safe = file.suffix == ".safetensors"
        state: Any = (
            safetensors.torch.load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # damaged files fail in many ways
        kind = type(error).__name__
        raise UserError(f"{file} cannot be read as weights (plain tensors, .pth or .safetensors): {kind}") from None
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{file}: not a state dict; it must map names to tensors")
    return {key.removeprefix("module."): value for key, value in state.items()}


def load_strictly(trunk: Any, backbone: str, state: dict[str, Tensor], file: str, options: dict[str, Any]) -> nn.Module:
    """The network with these weights. Every name must match, except those of the classifier, which is not used. timm
    translates the names in torchvision's and older files."""
    own = trunk.state_dict()
    heads = trunk.default_cfg.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    state = {key: value for key, value in state.items() if key.rsplit(".", 1)[0] not in heads}
    state |= {key: value for key, value in own.items() if key.rsplit(".", 1)[0] in heads}
    overlay = {"state_dict": state, "num_classes": trunk.num_classes, "label_offset": 0, "custom_load": False}
    try:
        return timm.create_model(backbone, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except Exception as error:  # timm's converters fail in many ways on foreign files
        raise UserError(f"{file} does not fit {backbone}: {misfit(str(error))}") from None


def misfit(message: str) -> str:
    """torch's error about a state dict in one line: which keys are missing, unexpected or of the wrong shape."""
    parts = []
    for what, marker in (("missing", "Missing key"), ("unexpected", "Unexpected key")):
        line = next((line for line in message.splitlines() if marker in line), "")
        keys = re.findall(r'"([^"]+)"', line)
        if keys:
            parts.append(f"{what} {listed(keys)}")
    sizes = re.findall(r"size mismatch for ([^:]+):", message)
    if sizes:
        parts.append(f"wrong shape {listed(sizes)}")
    return "; ".join(parts) or (message.splitlines() or ["unknown names"])[0]


def listed(keys: list[str]) -> str:
    more = f" and {len(keys) - NAMED_KEYS} more" if len(keys) > NAMED_KEYS else ""
    return ", ".join(keys[:NAMED_KEYS]) + more


@cache
def sha256(file: Path) -> str:
    """The sha256 of a weight file. One that is downloaded over plain http must begin as its name says."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    for backbone in downloads.URLS:
        expected = downloads.sha256_prefix(backbone)
        if file.name == downloads.file_name(backbone) and not digest.startswith(expected):
            raise UserError(
                f"{file} is damaged or not genuine: its sha256 begins {digest[:12]}, its name says {expected}"
            )
    return digest


def of_tensors(state: dict[str, Tensor]) -> str:
    """A hash of names and values, for weights without a file."""
    hashed = hashlib.sha256()
    for name, value in sorted(state.items()):
        hashed.update(name.encode())
        hashed.update(value.contiguous().cpu().numpy().tobytes())
    return hashed.hexdigest()

"""Where a network's pretrained weights come from: a package, a file, timm's hub, or nowhere."""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from harness.backbones import bn_inception, packaged
from harness.spec import UserError

SHOWN = 6  # keys named in an error, before the rest is counted


def resolve(backbone: str, asked: str) -> tuple[str, str]:
    """What a trial says of `--weights hub|package|none|FILE`, and the file: which weights, not where they lie."""
    if asked in ("none", "package"):
        return asked, ""
    if asked == "hub":
        return f"hub:{hub_tag(backbone)}", ""
    file = Path(asked).absolute()
    if not file.is_file():
        raise UserError(
            f"--weights {asked}: no such file; allowed is hub, package, none, or a .pth or .safetensors file"
        )
    return f"file:{sha256(file)[:12]}", str(file)


def hub_tag(backbone: str) -> str:
    """The name of timm's default weights; a UserError where the hub has none."""
    described = timm.get_pretrained_cfg(backbone, allow_unregistered=False)
    if described is not None and (described.hf_hub_id or described.url):
        return str(described.tag or "default")
    where = f": download {bn_inception.WEIGHTS} and give --weights FILE" if backbone == "bn_inception" else ""
    raise UserError(
        f"the hub has no weights of {backbone}{where or '; --weights FILE for your own'}; from scratch: --weights none"
    )


def load(trunk: nn.Module, backbone: str, weights: str, file: str, options: dict[str, Any]) -> tuple[nn.Module, str]:
    """The network with the weights a trial names, and their sha256. `options` made `trunk`."""
    kind, _, which = weights.partition(":")
    if kind == "package":
        trunk.load_state_dict(packaged.state_dict(backbone, trunk), strict=True)
        return trunk, packaged.sha256(backbone)
    if kind == "hub":
        trunk = fetch(backbone, which, options)
        return trunk, of_tensors(trunk.state_dict())
    found = sha256(Path(file))
    if found[:12] != which:
        raise UserError(
            f"{file} has sha256 {found[:12]}..., the trial wants {which}: it was changed, or is another one"
        )
    return strictly(trunk, backbone, read(Path(file)), file, options), found


def fetch(backbone: str, tag: str, options: dict[str, Any]) -> nn.Module:
    name = backbone if "." in backbone or tag == "default" else f"{backbone}.{tag}"
    try:
        return timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # what the hub's client raises differs by transport
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the weights {name} cannot be had from the hub: {why}. Without it: --weights FILE, or --weights package "
            f"for {', '.join(packaged.FILES)}"
        ) from None


def read(file: Path) -> dict[str, Tensor]:
    """A state dict; nothing in the file is ever executed."""
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
        raise UserError(f"{file} holds no state dict: allowed are names and tensors")
    return {key.removeprefix("module."): value for key, value in state.items()}


def strictly(trunk: Any, backbone: str, state: dict[str, Tensor], file: str, options: dict[str, Any]) -> nn.Module:
    """The network with these weights, every name matched but those of the classifier, which is not used. timm knows
    how torchvision's and older files name things."""
    own = trunk.state_dict()
    heads = trunk.default_cfg.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    state = {key: value for key, value in state.items() if key.rsplit(".", 1)[0] not in heads}
    state |= {key: value for key, value in own.items() if key.rsplit(".", 1)[0] in heads}
    overlay = {"state_dict": state, "num_classes": trunk.num_classes, "label_offset": 0, "custom_load": False}
    try:
        return timm.create_model(backbone, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    except Exception as error:  # timm's converters stumble over foreign files in ways of their own
        raise UserError(f"{file} does not fit {backbone}: {misfit(str(error))}") from None


def misfit(story: str) -> str:
    """torch's complaint about a state dict in one line: which keys are missing, unexpected or of another shape."""
    parts = []
    for what, marker in (("missing", "Missing key"), ("unexpected", "Unexpected key")):
        line = next((line for line in story.splitlines() if marker in line), "")
        if keys := re.findall(r'"([^"]+)"', line):
            parts.append(f"{what} {listed(keys)}")
    if sizes := re.findall(r"size mismatch for ([^:]+):", story):
        parts.append(f"of another shape {listed(sizes)}")
    return "; ".join(parts) or (story.splitlines() or ["unknown names"])[0]


def listed(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


@cache
def sha256(file: Path) -> str:
    """Of a weight file; the one that is fetched over plain http has to be what its name says."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    known = bn_inception.WEIGHTS.rsplit("/", 1)[-1]
    if file.name == known and not found.startswith(promised := known.rsplit("-", 1)[-1].removesuffix(".pth")):
        raise UserError(f"{file} is damaged or not genuine: its sha256 begins {found[:12]}, its name says {promised}")
    return found


def of_tensors(state: dict[str, Tensor]) -> str:
    """A hash of names and values, where there is no file to hash."""
    hashed = hashlib.sha256()
    for name, value in sorted(state.items()):
        hashed.update(name.encode())
        hashed.update(value.contiguous().cpu().numpy().tobytes())
    return hashed.hexdigest()

"""Networks: any timm model, headless, with an optional embedding layer."""

import difflib
from typing import Any

import timm
import torch
from torch import Tensor, nn

from harness.backbones import packaged
from harness.spec import Trial, UserError

PIXELS = "pixels"  # the raw-pixel baseline


class Embedder(nn.Module):
    """Images (n, 3, h, w) in 0..1 to raw embeddings (n, dim): trunk, LayerNorm if asked for, Linear if dim is given."""

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: nn.Module, width: int, trial: Trial, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.trunk = trunk
        self.norm = nn.LayerNorm(width, elementwise_affine=False) if trial.layer_norm else nn.Identity()
        self.head = nn.Linear(width, trial.dim) if trial.dim else nn.Identity()
        self.dim = trial.dim or width
        self.freeze_bn = trial.freeze_bn
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.trunk((images - self.mean) / self.std)))

    def train(self, mode: bool = True) -> "Embedder":
        super().train(mode)
        if self.freeze_bn:
            for module in self.trunk.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


class Pixels(nn.Module):
    """The image itself as its embedding: what a loss has to beat."""

    def __init__(self, crop: int) -> None:
        super().__init__()
        self.dim = 3 * crop * crop

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def create(trial: Trial, *, pretrained: bool = True) -> Embedder | Pixels:
    """The network of a trial with its weights loaded, unless others will be. What is not loaded is drawn from torch's
    global generator."""
    if trial.backbone == PIXELS:
        return Pixels(trial.crop)
    check(trial.backbone, trial.weights)
    described = timm.get_pretrained_cfg(trial.backbone)
    size: dict[str, Any] = {"img_size": trial.crop} if described is not None and described.fixed_input_size else {}
    trunk: Any = timm.create_model(trial.backbone, pretrained=False, **size)
    if trial.weights == "package" and pretrained:
        trunk.load_state_dict(packaged.state_dict(trial.backbone, trunk), strict=True)
    trunk.reset_classifier(0, global_pool=trial.pooling)
    # what the pooled output is wide is not always num_features: ask the model
    with torch.no_grad():
        width = trunk.eval()(torch.zeros(1, 3, trial.crop, trial.crop)).shape[1]
    config = trunk.default_cfg
    return Embedder(trunk, width, trial, config["mean"], config["std"])


def check(backbone: str, weights: str) -> None:
    """A UserError for a name timm does not know, or weights that no package carries."""
    if backbone == PIXELS:
        return
    if not timm.is_model(backbone):
        # timm knows a thousand names: only the nearest help
        near = difflib.get_close_matches(backbone, timm.list_models(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see timm.list_models()"
        raise UserError(f"no backbone named {backbone!r}; {hint} Any timm name is allowed")
    if weights == "package" and backbone not in packaged.FILES:
        raise UserError(
            f"no package carries weights of {backbone!r}; weights=package has: {', '.join(packaged.FILES)}; "
            "from scratch: --set weights=none"
        )

"""Networks: any timm model without its classifier, with an optional embedding layer; and the raw pixels."""

from collections.abc import Callable
from typing import Any, Protocol

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.backbones import names, packaged, weights
from harness.backbones.stages import Trunk, cut
from harness.spec import PIXELS, Trial, unknown

PIXELS_SIDES = {1: 32, 2: 16}  # by version of the baseline
DISTANCES = {"cosine": "Euclidean on unit-length embeddings", "euclidean": "Euclidean on raw embeddings"}

Z = Tensor | dict[str, Tensor]  # embeddings (n, dim); of a method with its own head perhaps more


class Method(Protocol):
    """What a network asks of a loss: see losses/base.py."""

    @property
    def distance(self) -> str: ...

    def represent(self, z: Z) -> Tensor: ...

    def head(self, trunk: Trunk) -> nn.Module: ...


def floats(z: Z) -> Z:
    """In single precision, whatever the network has computed in."""
    return z.float() if isinstance(z, Tensor) else {name: part.float() for name, part in z.items()}


class Embedder(nn.Module):
    """Images (n, 3, h, w), RGB in 0..1, to raw embeddings (n, dim): the trunk's own preprocessing, the trunk, LayerNorm
    if the trial has it, Linear if the trial has a dim."""

    distance = DISTANCES["cosine"]  # what `embed` is compared by, as records state it
    represent: Callable[[Z], Any] = staticmethod(lambda z: z)  # the loss's
    mean: Tensor
    std: Tensor

    def __init__(
        self, trunk: Any, width: int, trial: Trial, weights_sha256: str | None = None, head: nn.Module | None = None
    ):
        super().__init__()
        self.trunk = trunk
        self.norm = nn.LayerNorm(width, elementwise_affine=False) if trial.layer_norm else nn.Identity()
        self.head = head or (nn.Linear(width, trial.dim) if trial.dim else nn.Identity())
        self.width = width  # of the trunk's pooled output
        self.dim = trial.dim or width
        self.freeze_bn = trial.freeze_bn
        self.trunk_frozen = False  # the trunk computes as in evaluation and gets no gradient
        self.weights_sha256 = weights_sha256
        self.bgr = getattr(trunk, "channels", "RGB") == "BGR"
        for name in ("mean", "std"):
            values = torch.tensor(trunk.default_cfg[name]).view(1, -1, 1, 1)
            self.register_buffer(name, values, persistent=False)

    def forward(self, images: Tensor) -> Z:
        return self.head(self.norm(self.features(images)))

    def features(self, images: Tensor) -> Tensor:
        """The trunk's pooled output (n, width)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.trunk_frozen):
            return self.trunk(self.normalised(images))

    def normalised(self, images: Tensor) -> Tensor:
        """As the trunk wants them."""
        images = images.flip(1) if self.bgr else images
        return (images - self.mean) / self.std

    def embed(self, images: Tensor) -> Tensor:
        """What is compared at test time: embeddings of unit length, as in the paper, unless the loss says otherwise."""
        compared = self.represent(floats(self(images)))
        return F.normalize(compared) if self.distance == DISTANCES["cosine"] else compared

    def follow(self, method: Method) -> None:
        """Compare images as a loss wants them compared."""
        self.represent, self.distance = method.represent, DISTANCES[method.distance]

    def parameter_groups(self, lr: float, head_lr: float, trunk: bool = True) -> list[dict[str, Any]]:
        """What an optimizer trains, with learning rates: the trunk, if it is wanted, at `lr`, and the embedding layer
        at `head_lr`."""
        groups = [
            {"params": list(self.trunk.parameters()) if trunk else [], "lr": lr},
            {"params": list(self.head.parameters()), "lr": head_lr},
        ]
        return [group for group in groups if group["params"]]

    def train(self, mode: bool = True) -> "Embedder":
        super().train(mode)
        if self.trunk_frozen:
            self.trunk.eval()
        if self.freeze_bn:  # also of a head that copies a part of the trunk
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


class MethodEmbedder(Embedder):
    """Images to embeddings by the head that a method builds: it runs the trunk's stages as it needs them."""

    def forward(self, images: Tensor) -> Z:
        return self.head(self.normalised(images))

    @property
    def trunk_frozen(self) -> bool:
        """The trunk gets no gradient, but hands it on to what the method has put before a stage."""
        return not next(self.trunk.parameters()).requires_grad

    @trunk_frozen.setter
    def trunk_frozen(self, frozen: bool) -> None:
        self.trunk.requires_grad_(not frozen)


class Pixels(nn.Module):
    """The image as the networks see it, shrunk, as its own embedding: what a loss has to beat."""

    weights_sha256 = None
    trunk_frozen = True

    def __init__(self, version: int = 1):
        super().__init__()
        self.side = PIXELS_SIDES[version]
        self.dim = 3 * self.side**2
        self.distance = "Euclidean on raw pixels" + (f", {self.side} px" if version > 1 else "")

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] != self.side:
            images = F.interpolate(images, size=(self.side, self.side), mode="bilinear", antialias=True)
        return images.flatten(1)

    def embed(self, images: Tensor) -> Tensor:
        """The pixels as they are: their brightness counts."""
        return self(images).float()

    def parameter_groups(self, lr: float, head_lr: float, trunk: bool = True) -> list[dict[str, Any]]:
        """There is nothing to train."""
        return []


Network = Embedder | Pixels


def create(trial: Trial, weights_file: str = "", *, pretrained: bool = True, method: Method | None = None) -> Network:
    """The network of a trial, with the head that `method` builds, if there is one. Its pretrained weights are loaded
    unless `pretrained` is false, for a caller that loads others. Parameters that are not loaded are drawn from torch's
    global generator."""
    if trial.backbone == PIXELS:
        return Pixels(int(trial.loss_version))
    check(trial.backbone, trial.weights)
    described = timm.get_pretrained_cfg(trial.backbone)
    options: dict[str, Any] = {"img_size": trial.crop} if described is not None and described.fixed_input_size else {}
    trunk: Any = timm.create_model(trial.backbone, pretrained=False, **options)
    sha256 = None
    if trial.weights != "none" and pretrained:
        trunk, sha256 = weights.load(trunk, trial.backbone, trial.weights, weights_file, options)
    trunk.reset_classifier(0, global_pool=trial.pooling)
    # the pooled output is not always num_features wide, so the model is run once
    with torch.no_grad():
        width = trunk.eval()(torch.zeros(1, 3, trial.crop, trial.crop)).shape[1]
    if method is not None:
        head = method.head(cut(trunk, trial.backbone, trial.crop))
        return MethodEmbedder(trunk, width, trial, sha256, head)
    return Embedder(trunk, width, trial, sha256)


def check(backbone: str, source: str) -> None:
    """A UserError for a name that timm does not know, or for weights that no package has."""
    if backbone == PIXELS:
        return
    if not timm.is_model(backbone):
        raise names.unknown(backbone, timm.list_models())
    architecture, _, tag = backbone.partition(".")
    tags = [name.partition(".")[2] for name in timm.list_models(f"{architecture}.*", include_tags=True)]
    if tag and tag not in tags:
        raise unknown(f"weights of {architecture}", tag, tags)
    if source == "package":
        packaged.check(backbone)

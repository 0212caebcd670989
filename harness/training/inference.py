"""A trained network of a stored run, and images through it."""

from collections.abc import Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torchvision.transforms.v2.functional import center_crop

from harness.backbones import network
from harness.data import images, transforms
from harness.spec import Result, UserError
from harness.storage import Storage


def load(result: Result, storage: Storage) -> nn.Module:
    """The network as it was when its run ended, in evaluation mode: images (n, 3, h, w) in 0..1 to embeddings."""
    content = storage.read_artifact(result.artifacts.get("weights", {}))
    if content is None:
        raise UserError(
            f"the weights of {result.id} were not kept; run it again with --rerun --keep-weights all, "
            "or take the run of that loss whose weights were"
        )
    model = network.create(result.trial, pretrained=False)
    model.load_state_dict(safetensors.torch.load(content))
    return model.eval()


def embed_files(result: Result, files: Sequence[Path], storage: Storage, *, embedded: bool = False) -> Tensor:
    """Unit-length embeddings (n, dim) of image files, prepared as the run's evaluation prepares them; `embedded`: as
    those of a dataset that comes with the package, which are resized as floats."""
    model, trial = load(result, storage), result.trial
    rows = []
    with torch.inference_mode():
        for file in files:
            try:
                pixels = torch.from_numpy(images.read(file, None if embedded else trial.resize, trial.aspect).copy())
            except images.BadImageError as error:
                raise UserError(f"{file}: {error}") from None
            batch = transforms.channels_first(pixels[None])
            if embedded:
                batch = transforms.resized(batch, trial.resize)
            batch = center_crop(batch, [trial.crop, trial.crop])
            rows.append(nn.functional.normalize(model(transforms.to_float(batch))))
    return torch.cat(rows)

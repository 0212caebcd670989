"""A trained network of a stored run, and images through it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

from harness import backbones, transforms
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
    model = backbones.create(result.trial, pretrained=False)
    model.load_state_dict(safetensors.torch.load(content))
    return model.eval()


def embed_files(result: Result, files: Sequence[Path], storage: Storage) -> Tensor:
    """Unit-length embeddings (n, dim) of image files, prepared as the run's evaluation prepares them."""
    model, trial = load(result, storage), result.trial
    rows = []
    with torch.inference_mode():
        for file in files:
            pixels = torch.from_numpy(read(file))[None]
            rows.append(nn.functional.normalize(model(transforms.plain(pixels, trial.resize, trial.crop))))
    return torch.cat(rows)


def read(file: Path) -> np.ndarray:
    """(h, w, 3) uint8; transparency on white."""
    try:
        with Image.open(file) as image:
            rgba = image.convert("RGBA")
    except FileNotFoundError:
        raise UserError(f"no image at {file}") from None
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{file} cannot be read as an image: {error}") from None
    white = Image.new("RGBA", rgba.size, "white")
    return np.array(Image.alpha_composite(white, rgba).convert("RGB"))

"""A trained network of a stored run, and the embeddings it gives of image files."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from torchvision.transforms.v2.functional import center_crop

import losses
from harness.backbones.network import DISTANCES, Network, create
from harness.data import images, transforms
from harness.spec import Result, Trial, UserError
from harness.storage import DamagedError, Storage
from harness.training.setup import network_and_loss


def load(result: Result, storage: Storage) -> Network:
    """The network as it was when its run ended, in evaluation mode: images (n, 3, h, w) in 0..1 to embeddings."""
    entry = result.artifacts.get("weights")
    again = "run it again with --rerun --keep-weights all, or take another run of that loss"
    if not entry:
        raise UserError(f"the weights of {result.id} were not kept; {again}")
    try:
        content = storage.read_artifact(entry)
    except DamagedError as damage:
        raise UserError(f"{damage}; {again}") from None
    if content is None:
        raise UserError(
            f"the weights of {result.id} are not in {storage.title}: name where they are (--storage), copy them "
            f"(harness import DIR --artifacts), or {again}"
        )
    model = network_of(result)
    try:
        model.load_state_dict(safetensors.torch.load(content))
    except (SafetensorError, RuntimeError):
        raise UserError(f"{entry['path']} does not hold the weights of {result.id}; {again}") from None
    return model.eval()


def with_weights(result: Result, stored: Iterable[Result], storage: Storage) -> Result:
    """A run, if its weights are there; else a UserError that names the runs of its loss whose weights are."""
    trial = result.trial
    if trial.is_baseline or not result.is_final:
        kind = "an ensemble" if result.is_ensemble else "a baseline" if trial.is_baseline else "not a final run"
        raise UserError(f"{result.id} is {kind}: only final runs of losses keep weights; harness ls runs lists them")
    if is_there(result, storage):
        return result
    others = [
        other
        for other in stored
        if other.is_final and (other.trial.loss, other.trial.dataset) == (trial.loss, trial.dataset)
        if is_there(other, storage)
    ]
    if others:
        alike = [other for other in others if other.trial.configuration == trial.configuration]
        names = " or ".join(f"{other.id} (seed {other.trial.seed})" for other in (alike or others)[:3])
        settings = "" if alike else ", with other settings"
        raise UserError(f"the weights of {result.id} are not in {storage.title}; those of {names} are{settings}")
    return result  # loading it says what to do


def is_there(result: Result, storage: Storage) -> bool:
    entry = result.artifacts.get("weights")
    return entry is not None and storage.exists(entry["path"])


def network_of(result: Result) -> Network:
    """The network that a run has trained, without its weights. Code that came with a result is not run, so a loss that
    is not of this package must leave the network and what is compared as they usually are."""
    if result.trial.loss in losses.shipped():
        return network_and_loss(result.trial, {}, pretrained=False)[0]
    if "embedding" in result.conventions:
        raise UserError(
            f"{result.id}: its loss, {result.trial.loss}, builds the embedding by code of its own, which is not run"
        )
    model = create(result.trial, pretrained=False)
    if result.conventions.get("distance") == DISTANCES["euclidean"]:
        model.distance = DISTANCES["euclidean"]
    return model


def embed_files(result: Result, files: Sequence[Path], storage: Storage, *, embedded: bool = False) -> Tensor:
    """Embeddings (n, dim) of image files as they are compared at test time, the images prepared as in the run's
    evaluation. `embedded`: prepare them like a dataset that comes with the package, which is resized as floats."""
    model = load(result, storage)
    with torch.inference_mode():
        rows = [model.embed(read(file, result.trial, embedded)) for file in files]
    return torch.cat(rows)


def read(file: Path, trial: Trial, embedded: bool) -> Tensor:
    """One image as a batch (1, 3, crop, crop), float in 0..1."""
    try:
        pixels = torch.from_numpy(images.read(file, None if embedded else trial.resize, trial.aspect).copy())
    except images.BadImageError as error:
        raise UserError(f"{file}: {error}") from None
    batch = transforms.channels_first(pixels[None])
    if embedded:
        batch = transforms.resized(batch, trial.resize)
    return transforms.to_float(center_crop(batch, [trial.crop, trial.crop]))

"""Network and data, checked before anything runs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.backbones import network
from harness.data import cache, cache_building, listing, loading
from harness.execution import room
from harness.execution.account import Account
from harness.spec import Job, Progress, Trial, UserError
from harness.storage import Storage
from harness.training import trial as training

COPIES = 4  # of the network in training: weights, gradients, Adam's two moments


def check_memory(trial: Trial) -> None:
    """A UserError for a network that this machine's memory cannot hold in training."""
    needed = 4 * COPIES * room.parameters(room.network_of(trial))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        what = f"dim={trial.dim}" if trial.dim else f"backbone={trial.backbone}"
        raise UserError(
            f"{what}: training takes {gigabytes(needed)} of memory, and this machine has {gigabytes(memory)}"
        )


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.0f} GB"


def check(account: Account, say: Callable[[str], None] | None) -> None:
    """A UserError if a trial could not start. Stored trials need no inputs.

    `say` is given if the trials run on this machine: then it needs room for the image cache, and the weights must load.
    """
    experiment = account.experiment
    planned = account.grid or account.baselines
    networks = {(trial.backbone, trial.weights, trial.dim): trial for trial in planned}.values()
    for trial in networks:
        network.check(trial.backbone, trial.weights)
        if say and not trial.is_pixels:
            check_memory(trial)
        if say and trial.weights_kind in ("hub", "file"):
            network.create(trial, experiment.weights_file)
    dataset = experiment.dataset
    if dataset.layout == "embedded":
        loading.embedded(dataset)
        return
    root = Path(experiment.data_root)
    for resize, aspect in dict.fromkeys((trial.resize, trial.aspect) for trial in planned):
        key = cache.Key(dataset.name, dataset.fingerprint, resize, aspect)
        # images that are not here are taken from the storage, which then says how many bytes
        if say and listing.exists(dataset, root) and not cache.looks_whole(key, dataset.sha256):
            images = listing.read(dataset, root)
            needed = cache_building.estimate(key, images)
            cache_building.check_disk(key, needed)
            say(f"{len(images.paths)} images go to the cache {key.folder}: about {cache.gigabytes(needed)}")


def prepare(account: Account, storage: Storage) -> Iterator[Progress]:
    """Make this machine's cache of the images of the trials that are to run, once for each size. A UserError if one
    cannot be read."""
    for job in preparations(account, storage):
        yield from training.prepare(job)


def preparations(account: Account, storage: Storage) -> list[Job]:
    """A job of each size of images, and of each network: what a node needs for the trials that are to run."""
    experiment = account.experiment
    pending = [*account.pending(account.known), *account.unnamed()]
    kinds = {(trial.resize, trial.aspect, trial.backbone, trial.weights): trial for trial in pending}
    return [
        Job(
            trial,
            experiment.dataset,
            storage.uri,
            data_root=experiment.data_root,
            skip_bad_images=experiment.skip_bad_images,
            weights_file=experiment.weights_file,
        )
        for trial in kinds.values()
    ]

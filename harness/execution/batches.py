"""Whether the classes of a dataset can fill the batches that trials ask for, and have what selects, checked before
anything runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from harness import plan
from harness.data import cache_parts, folds, listing, loading
from harness.data.folds import Images
from harness.execution.account import Account
from harness.execution.room import network_of
from harness.spec import Dataset, Experiment, Trial, UserError, recall_k
from harness.storage import Storage

Sizes = Mapping[str, Sequence[int]]  # fold -> the number of images of each class


def check(account: Account, say: Callable[[str], None]) -> None:
    """A UserError if a pair loss could find no pair, a loss with batches of its own could not fill them, or a fold is
    too small for what selects; a line for what other batches have less of than was asked for. Stored trials are not
    looked at."""
    pending = [*account.pending(account.known), *account.unnamed()]
    trials = [trial for trial in pending if not trial.is_baseline]
    if not trials:
        return
    experiment = account.experiment
    root = Path(experiment.data_root)
    sizes, held_out = class_sizes(experiment.dataset, root, {trial.fold for trial in trials}, account.storage)
    if account.grid or account.search:
        check_select(experiment, held_out)
    pair_losses = {loss.name for loss in experiment.losses if loss.family == "pair"}
    narrow_losses = {loss.name for loss in experiment.losses if loss.dim_below_batch}
    for trial in trials:
        if trial.loss in pair_losses:
            check_pairs(trial, sizes[trial.fold])
        if plan.has_own_batch(experiment, trial):
            check_own_batch(trial, sizes[trial.fold])
        if trial.loss in narrow_losses:
            check_width(trial, sizes[trial.fold])
    for line in (*small_classes(trials, sizes), *few_classes(trials, sizes), *untrained(trials)):
        say(line)


def class_sizes(
    dataset: Dataset, root: Path, names: Iterable[str], storage: Storage | None = None
) -> tuple[Sizes, Sizes]:
    """The number of images of each class that trains in these folds, and of each that is held out. What is not on this
    machine is in the storage."""
    images: Images | listing.Listing
    if dataset.layout == "embedded":
        images = loading.embedded(dataset)
    elif storage is not None and not listing.exists(dataset, root):
        images = cache_parts.read_listing(dataset, storage)
    else:
        images = listing.read(dataset, root)
    counts = Counter(map(int, images.labels))
    sizes = {label: counts[number] for number, label in enumerate(images.classes)}
    parts = {name: folds.split(sizes, images.train_classes, dataset, name) for name in names}
    training, held_out = (
        {name: [sizes[label] for label in part[side]] for name, part in parts.items()} for side in (0, 1)
    )
    return training, held_out


def check_select(experiment: Experiment, held_out: Sizes) -> None:
    """A UserError if a fold has too few images for the Recall@K that selects."""
    select = experiment.protocol.select
    for fold, sizes in held_out.items():
        if fold != "test" and sum(sizes) <= (recall_k(select) or 0):
            raise UserError(
                f"protocols/{experiment.protocol.name}.toml: select={select}: the held-out classes of fold {fold} of "
                f"{experiment.dataset.name} have {sum(sizes)} images; choose another --protocol"
            )


def check_pairs(trial: Trial, sizes: Sequence[int]) -> None:
    if max(sizes) < 2:
        raise UserError(
            f"{trial.dataset}: each of the {len(sizes)} training classes{of(trial.fold)} has a single image; "
            f"{trial.loss}, a pair loss, compares images of a class; losses of other families train so: "
            "harness ls losses"
        )


def check_own_batch(trial: Trial, sizes: Sequence[int]) -> None:
    """A smaller batch than the other losses have would not be fair."""
    if len(sizes) < trial.classes_per_batch:
        raise UserError(
            f"{trial.loss}: its batches of {trial.classes_per_batch} classes x {trial.samples_per_class} need "
            f"{trial.classes_per_batch} training classes, {trial.dataset} has {len(sizes)}{of(trial.fold)}; choose "
            "another --protocol, or set one batch for all losses: --set samples_per_class=..."
        )


def check_width(trial: Trial, sizes: Sequence[int]) -> None:
    """A UserError if a loss that needs fewer dimensions than images would meet a batch that is too small."""
    width = trial.dim or network_of(trial).dim
    images = sum(sorted(min(size, trial.samples_per_class) for size in sizes)[: trial.classes_per_batch])
    if width >= images:
        raise UserError(
            f"{trial.loss}: needs fewer embedding dimensions ({width}) than images in a batch ({images}); "
            f"--set dim={images - 1} or less, or a larger batch"
        )


def untrained(trials: Sequence[Trial]) -> Iterable[str]:
    """A warm-up learns the embedding layer; without one it leaves the network as it is."""
    idle = [trial for trial in trials if not trial.epochs + trial.pretrain_epochs]
    if any(trial.dim is None or not trial.warmup_epochs for trial in idle):
        yield "epochs=0: nothing is trained; the rows of the losses show the network as it starts"


def small_classes(trials: Sequence[Trial], sizes: Sizes) -> Iterable[str]:
    """A line per number of samples that some classes do not have; of several folds, the one with most such classes."""
    for samples in sorted({trial.samples_per_class for trial in trials}):
        asking = {trial.fold for trial in trials if trial.samples_per_class == samples}
        small = {fold: sum(size < samples for size in sizes[fold]) for fold in sorted(asking)}
        worst = max(small, key=lambda fold: small[fold])
        if small[worst]:
            yield (
                f"samples_per_class={samples}: {small[worst]} of the {len(sizes[worst])} training classes{of(worst)} "
                f"have fewer images, the smallest {min(sizes[worst])}; each gives all that it has"
            )


def few_classes(trials: Sequence[Trial], sizes: Sizes) -> Iterable[str]:
    """A line per number of classes that a fold does not have; of several folds, the one with fewest classes."""
    for classes in sorted({trial.classes_per_batch for trial in trials}):
        asking = {trial.fold for trial in trials if trial.classes_per_batch == classes}
        fewest = min(sorted(asking), key=lambda fold: len(sizes[fold]))
        if len(sizes[fewest]) < classes:
            yield (
                f"classes_per_batch={classes}: there are {len(sizes[fewest])} training classes{of(fewest)}; "
                "each batch has all of them"
            )


def of(fold: str) -> str:
    """Final runs train on all training classes, so their fold needs no name."""
    return "" if fold == "test" else f" of fold {fold}"

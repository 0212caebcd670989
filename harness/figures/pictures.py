"""The test images of a stored run beside its embeddings, row by row."""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from harness import config
from harness.data import folds, loading, transforms
from harness.evaluation import ensembles
from harness.figures.groups import Group, Line, lines
from harness.figures.registry import FIGURES, Sources, missing
from harness.spec import Dataset, Result, UserError, finish, unknown


@dataclass(frozen=True)
class EmbeddedImages:
    """Row i of the embeddings is image `test[i]` of the dataset."""

    run: Result
    embeddings: Tensor
    labels: Tensor
    queries: Tensor | None  # (n,) bool; None: every image is query and gallery
    images: folds.Images
    test: Tensor

    def picture(self, row: int) -> np.ndarray:
        """(h, w, 3) uint8: the image as it is resized for the networks, before the centre crop."""
        trial, number = self.run.trial, self.test[row : row + 1]
        if self.images.square in (None, trial.resize):
            return self.images.image(int(number)).numpy()
        batch = transforms.enlarged(self.images, number, trial)
        return (255 * batch[0]).round().byte().permute(1, 2, 0).numpy()


def chosen(name: str, group: Group, sources: Sources) -> tuple[list[Line], str]:
    """The losses whose embeddings are stored, or the one that --loss names; and a remark on runs that are not shown."""
    runs = [run for run in group.final() if run.artifacts.get("embeddings")]
    if not runs and group.final():  # stored runs do not run again by themselves
        raise group.missing(FIGURES[name].needs, ("--rerun",))
    if not runs:
        raise missing(name, group)
    series, remark = lines(runs, group.sort)
    if sources.loss is None:
        return series, remark
    known = [line.loss for line in series]
    if sources.loss not in known:
        raise unknown(f"loss with embeddings ({group.dataset}, {group.protocol})", sources.loss, known)
    return [line for line in series if line.loss == sources.loss], remark


def load(run: Result, sources: Sources) -> EmbeddedImages:
    """The images come from this machine's cache, which is built if there is none."""
    stored = ensembles.load(run, sources.storage)
    skipped = bool(run.provenance.get("bad_images_skipped"))
    dataset = described(run)
    steps = loading.load(dataset, run.trial, str(sources.data_root.absolute()), skip_bad=skipped)
    images = finish(steps, lambda step: sources.report(step.done, step.total))
    fold = folds.fold(images, dataset, run.trial.fold)
    if not fold.test_labels.equal(stored["labels"]):
        raise UserError(f"{dataset.name}: its images are not those that {run.id} was measured on")
    return EmbeddedImages(run, stored["embeddings"], stored["labels"], stored.get("queries"), images, fold.test)


def described(run: Result) -> Dataset:
    """The dataset of a run: a shipped one, or the user's own at the path that the record names."""
    trial = run.trial
    contents = run.provenance.get("data_sha256", "")
    shipped = config.find_dataset(trial.dataset)
    if shipped:
        return replace(shipped, fingerprint=trial.fingerprint, sha256=contents or shipped.sha256)
    path = run.provenance.get("data")
    if not path:
        raise UserError(f"{trial.dataset}: the record {run.id} does not say where its images are")
    return replace(config.dataset(path), name=trial.dataset, fingerprint=trial.fingerprint, sha256=contents)

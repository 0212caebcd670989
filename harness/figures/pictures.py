"""The test images of a stored run beside its embeddings, row by row."""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from harness import config
from harness.data import folds, loading, transforms
from harness.evaluation import ensembles
from harness.figures.groups import Group, Line, lines
from harness.figures.registry import Asked
from harness.spec import Dataset, Result, UserError, finish, unknown


@dataclass(frozen=True)
class Shown:
    """Row i of the embeddings is image `test[i]` of the dataset."""

    run: Result
    embeddings: Tensor
    labels: Tensor
    queries: Tensor | None  # (n,) bool, where queries and gallery are apart
    images: folds.Images
    test: Tensor

    def picture(self, row: int) -> np.ndarray:
        """(h, w, 3) uint8: the image as it is resized for the networks, before the centre crop."""
        trial, number = self.run.trial, self.test[row : row + 1]
        if self.images.square in (None, trial.resize):
            return self.images.image(int(number)).numpy()
        batch = transforms.enlarged(self.images, number, trial)
        return (255 * batch[0]).round().byte().permute(1, 2, 0).numpy()


def chosen(group: Group, asked: Asked) -> tuple[list[Line], str]:
    """The losses whose embeddings are kept, or the one that was asked for, and a remark on runs that are not shown."""
    runs = [one for one in group.singles() if one.artifacts.get("embeddings")]
    if not runs:
        raise group.missing("final runs with embeddings")
    found, remark = lines(runs)
    if asked.loss is None:
        return found, remark
    if asked.loss not in {line.loss for line in found}:
        raise unknown(f"loss with embeddings ({group.dataset}, {group.protocol})", asked.loss, [x.loss for x in found])
    return [line for line in found if line.loss == asked.loss], remark


def load(run: Result, asked: Asked) -> Shown:
    """The images come from this machine's cache, which is built where there is none."""
    stored = ensembles.load(run, asked.storage)
    skipped = bool(run.provenance.get("bad_images_skipped"))
    dataset = described(run)
    root = str(asked.data_root.absolute())
    images = finish(loading.load(dataset, run.trial, root, skip_bad=skipped), lambda progress: asked.report(*progress))
    fold = folds.fold(images, dataset, run.trial.fold)
    if not fold.test_labels.equal(stored["labels"]):
        raise UserError(f"{dataset.name}: its images are not those that {run.id} was measured on")
    return Shown(run, stored["embeddings"], stored["labels"], stored.get("queries"), images, fold.test)


def described(run: Result) -> Dataset:
    """The dataset of a run: shipped, or the user's own where it was then."""
    trial = run.trial
    if trial.dataset in config.names("datasets"):
        found = config.dataset(trial.dataset)
        return replace(found, fingerprint=trial.fingerprint)
    where = run.provenance.get("data")
    if not where:
        raise UserError(f"{trial.dataset}: {run.id} does not say where its images lie")
    return replace(config.dataset(where), name=trial.dataset, fingerprint=trial.fingerprint)

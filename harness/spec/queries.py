"""How each query of a run did: the values that are stored beside a record, and that statistics are made from."""

import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.spec.metrics import recall_k
from harness.spec.schema import ROUNDING

if TYPE_CHECKING:
    import numpy as np

LARGEST = 2**30  # bytes of all values: the largest test sets have some millions
ARRAYS = ("classes", "ranks", "precision", "average_precision", "depth", "names")


@dataclass(frozen=True, eq=False)
class PerQuery:
    """The values of q queries. An ensemble has one row of ranks per subset of its networks; all else is the mean over
    subsets."""

    classes: "np.ndarray"  # (q,) indices into `names`
    ranks: "np.ndarray"  # (subsets, q) of the first image of the query's class, from 1 on; depth + 1: not among the
    # ranked; 0: the gallery has none, and the query counts for nothing
    precision: "np.ndarray"  # (q,) share of its class among the R nearest
    average_precision: "np.ndarray"  # (q,) at R
    depth: int  # neighbours that were ranked
    names: tuple[str, ...]  # of the classes

    @property
    def counts(self) -> "np.ndarray":
        """(q,) Which queries have an image of their class in the gallery."""
        return self.ranks[0] > 0

    def values(self, metric: str) -> "np.ndarray | None":
        """(q,) The values that the metric is the mean of; None if they do not say it."""
        k = recall_k(metric)
        if k is not None:
            return (self.ranks <= k).mean(axis=0) if k <= self.depth else None
        return {"MAP@R": self.average_precision, "RP": self.precision}.get(metric)

    def summary(self, file: bytes = b"") -> dict[str, Any]:
        """For the record: how many queries there are, how many have no match in the gallery, and the checksum of the
        file with their values, where there is one."""
        checksum = {"sha256": digest(file)} if file else {}
        return {"count": len(self.classes), "without_match": int((~self.counts).sum()), **checksum}

    def to_bytes(self) -> bytes:
        """A .npz file, compressed, without pickled objects."""
        import numpy as np

        content = io.BytesIO()
        np.savez_compressed(
            content,
            classes=self.classes.astype(np.min_scalar_type(max(len(self.names), 1))),
            ranks=self.ranks.astype(np.min_scalar_type(self.depth + 1)),
            precision=self.precision.astype(np.float32),
            average_precision=self.average_precision.astype(np.float32),
            depth=np.array(self.depth),
            names=np.frombuffer("\0".join(self.names).encode(errors="surrogateescape"), dtype=np.uint8),
        )
        return content.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "PerQuery":
        """A ValueError if these are no such values."""
        import numpy as np

        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                    raise ValueError("too large")
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                stored = {name: arrays[name] for name in ARRAYS}
            names = stored["names"].astype(np.uint8).tobytes().decode(errors="replace").split("\0")
            found = cls(**{**stored, "depth": int(stored["depth"]), "names": tuple(names)})
            found.check()
        except Exception as error:  # zipfile and numpy raise many kinds
            raise ValueError(f"not the values of queries: {error}") from None
        return found

    def check(self) -> None:
        """A ValueError if the arrays do not belong together, or hold what no query can have."""
        queries = self.classes.shape
        shapes = (self.precision.shape, self.average_precision.shape, self.ranks.shape[1:])
        if len(queries) != 1 or set(shapes) != {queries} or self.ranks.size == 0:
            raise ValueError("its arrays differ in length")
        if self.classes.dtype.kind not in "ui" or self.ranks.dtype.kind not in "ui":
            raise ValueError("classes and ranks are no integers")
        if self.classes.min() < 0 or self.classes.max() >= len(self.names):
            raise ValueError("it has more classes than names")
        for values in (self.precision, self.average_precision):
            if values.dtype.kind != "f" or not ((values >= -ROUNDING) & (values <= 1 + ROUNDING)).all():  # also of NaN
                raise ValueError("its values are not numbers from 0 to 1")
        if self.ranks.min() < 0 or int(self.ranks.max()) > self.depth + 1:
            raise ValueError("its ranks lie beyond its depth")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def same_queries(several: Sequence[PerQuery]) -> bool:
    """Whether runs answered the same queries: then they can be compared in pairs."""
    import numpy as np

    first = several[0]
    return all(
        np.array_equal(first.classes, other.classes) and np.array_equal(first.counts, other.counts)
        for other in several[1:]
    )

"""The values of each query: what metrics follow from them, and the file they are stored in."""

import io
import pickle
import re
from typing import Any

import numpy as np
import pytest

from harness.spec.queries import PerQuery, same_queries


def values(**changes: Any) -> PerQuery:
    """Four queries of two classes; the last has no match in the gallery."""
    usual = {
        "classes": np.array([0, 0, 1, 1]),
        "ranks": np.array([[1, 3, 6, 0]]),
        "precision": np.array([1.0, 0.5, 0.0, 0.0]),
        "average_precision": np.array([1.0, 0.25, 0.0, 0.0]),
        "depth": 5,
        "names": ("owl", "bär"),
    }
    return PerQuery(**{**usual, **changes})


def test_every_recall_up_to_the_depth_follows_from_the_ranks() -> None:
    stored = values()
    assert stored.values("R@1")[stored.counts].tolist() == [1, 0, 0]
    assert stored.values("R@3")[stored.counts].tolist() == [1, 1, 0]
    assert stored.values("R@5")[stored.counts].tolist() == [1, 1, 0]
    assert stored.values("R@6") is None  # only 5 neighbours were ranked
    assert stored.values("MAP@R").tolist() == [1, 0.25, 0, 0]
    assert stored.values("RP").tolist() == [1, 0.5, 0, 0]
    assert stored.values("NMI") is None


def test_an_ensemble_has_the_mean_over_its_subsets() -> None:
    stored = values(ranks=np.array([[1, 3, 6, 0], [2, 1, 6, 0]]))
    assert stored.values("R@1")[stored.counts].tolist() == [0.5, 0.5, 0]
    assert stored.values("R@2")[stored.counts].tolist() == [1, 0.5, 0]


def test_the_file_says_the_same_and_is_counted() -> None:
    content = values().to_bytes()
    read = PerQuery.from_bytes(content)
    for metric in ("R@1", "R@3", "MAP@R", "RP"):
        assert read.values(metric).tolist() == values().values(metric).tolist()
    assert read.names == ("owl", "bär")
    assert read.depth == 5
    assert same_queries([read, values()])
    assert content == values().to_bytes()  # same values, same checksum
    assert read.summary() == {"count": 4, "without_match": 1}


def test_the_file_of_stanford_online_products_has_less_than_a_megabyte() -> None:
    random = np.random.default_rng(0)
    classes = np.repeat(np.arange(11_316), 6)[:60_502]
    content = PerQuery(
        classes,
        random.integers(1, 101, (1, 60_502)),
        random.random(60_502),
        random.random(60_502),
        depth=100,
        names=tuple(f"class_{number}" for number in range(11_316)),
    ).to_bytes()
    assert len(content) < 1_000_000
    read = PerQuery.from_bytes(content)
    assert (read.classes.dtype, read.ranks.dtype, read.precision.dtype) == (np.uint16, np.uint8, np.float32)


@pytest.mark.parametrize(
    "other",
    [
        {"classes": np.array([0, 1, 1, 1])},
        {"ranks": np.array([[1, 3, 0, 0]])},
    ],
    ids=["another class", "another query without a match"],
)
def test_other_queries_cannot_be_paired(other: dict[str, Any]) -> None:
    assert not same_queries([values(), values(**other)])


class Trap:
    """Raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise RuntimeError('unpickled')",)


@pytest.mark.parametrize(
    "arrays",
    [
        {"classes": np.array([0, 0, 1])},
        {"classes": np.array([0, 0, 1, 2])},
        {"classes": np.array([0.0, 0, 1, 1])},
        {"ranks": np.array([1, 3, 6, 0])},
        {"ranks": np.array([[1, 3, 100, 0]])},
        {"ranks": np.array([[1, 3, -1, 0]])},
        {"precision": np.array([1.0, 0.5, 0.0, 1e30])},
        {"average_precision": np.array([1.0, 0.5, 0.0, -1.0])},
        {"depth": np.array(np.inf)},
        {"ranks": np.zeros((0, 4), dtype=int)},
        {"precision": np.array([1.0, np.nan, 0.0, 0.0])},
        {"precision": np.array(["a", "b", "c", "d"])},
        {"average_precision": np.array([Trap()] * 4, dtype=object)},
        {"depth": np.array([1, 2])},
        {"names": np.array(["owl"])},
    ],
    ids=lambda arrays: next(iter(arrays)),
)
def test_arrays_that_do_not_belong_together_are_one_error(arrays: dict[str, Any]) -> None:
    good = np.load(io.BytesIO(values().to_bytes()))
    content = io.BytesIO()
    np.savez(content, **{**{name: good[name] for name in good.files}, **arrays})
    with pytest.raises(ValueError, match="not the values of queries"):
        PerQuery.from_bytes(content.getvalue())


def packed_otherwise() -> bytes:
    """An archive whose files say that they are packed by a method that nobody knows."""
    content = bytearray(values().to_bytes())
    for signature, method in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        for entry in re.finditer(signature, bytes(content)):
            content[entry.start() + method] = 97
    return bytes(content)


@pytest.mark.parametrize("content", [b"", b"{}", values().to_bytes()[:-30], pickle.dumps(Trap()), packed_otherwise()])
def test_a_file_of_another_kind_is_one_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="not the values of queries"):
        PerQuery.from_bytes(content)

"""What there is to know about a loss, a protocol, a dataset and the settings, as the parts of a page.

`harness show` and `harness ls settings` print them, and the reference of the documentation is made from them.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import losses
from harness import config
from harness.spec import NEUTRAL, SEARCHABLE, SETTINGS, Dataset, LossSpec, Protocol, Tuned


@dataclass(frozen=True)
class Link:
    """The name of something that has a page of its own."""

    kind: str  # losses, protocols or datasets
    name: str


Cell = str | Link  # in text, what stands between backticks is typed


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    values: Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Block:
    """Text that keeps its lines."""

    language: str
    text: str


@dataclass(frozen=True)
class Docstring:
    """Formulas, sentences and lists."""

    text: str

    def parts(self) -> Iterator[tuple[Literal["formula", "item", "prose"], str]]:
        """A formula is a line that begins `L = `, `X(t+1) = `, `J_ij = `; it goes on to the end of its sentence and
        keeps its lines. An item is a line that begins with a dash, and those that go on with it."""
        for paragraph in re.split(r"\n\s*\n", self.text):
            formula, rest = split_formula(paragraph)
            if formula:
                yield "formula", formula
            for part in re.split(r"\n(?=- )", rest) if rest else ():
                words = " ".join(part.split())
                yield ("item", words.removeprefix("- ")) if part.startswith("- ") else ("prose", words)


Part = str | Heading | Facts | Table | Block | Docstring


FORMULA = re.compile(r"^\s*[A-Z]\w*(?:\([^)\n]*\))? *= ", re.MULTILINE)


def split_formula(paragraph: str) -> tuple[str, str]:
    """What of a paragraph is formula, and the prose after it."""
    starts = [found.start() for found in FORMULA.finditer(paragraph)]
    if not starts or starts[0] != 0:
        return "", paragraph
    end = re.compile(r"\.\s+(?=[A-Z`])").search(paragraph, starts[-1])
    cut = end.end() if end else len(paragraph)
    return paragraph[:cut].rstrip(), paragraph[cut:]


def equations(formula: str) -> list[str]:
    """The equations of a formula, each with the lines that go on with it."""
    starts = [found.start() for found in FORMULA.finditer(formula)]
    return [formula[begin:end] for begin, end in zip(starts, [*starts[1:], None], strict=True)]


def of_loss(spec: LossSpec) -> Iterator[Part]:
    """Formula, knobs, the values that protocols have for it, and its source."""
    loss = losses.get(spec.name, spec.sources)
    yield Heading(spec.title, level=1)
    yield Facts(
        {
            "Name": f"`{spec.name}`",
            "File": f"`losses/{spec.name}.py`" if spec.shipped else "",
            "Source": spec.cite,
            "Version": f"`{spec.version}`",
            "Family": spec.family,
        }
    )
    if spec.shipped:
        yield Block("bash", f"harness run --losses {spec.name}")
    yield Heading("Formula, source and deviations")
    yield Docstring(inspect.getdoc(loss) or "It has no docstring.")
    yield Heading("Knobs")
    yield from knobs(spec)
    used = tuple(
        (Link("protocols", name), f"`{dataset}`", assignments(values[spec.name].values), source(values[spec.name]))
        for name in config.names("protocols")
        for dataset, values in config.protocol(name).tuned.items()
        if spec.name in values
    )
    if used:
        yield Heading("Values that protocols use")
        yield Table(("protocol", "dataset", "values", "source"), used)
    if loss.bibtex:
        yield Heading("BibTeX")
        yield Block("bibtex", inspect.cleandoc(loss.bibtex))


def knobs(spec: LossSpec) -> Iterator[Part]:
    if not spec.knobs:
        yield "This loss has no knobs."
        return
    first = next(iter(spec.knobs.values()))
    yield f"Set one with `--set {first.key}=VALUE`. Searched is what random search draws from."
    yield Table(
        ("knob", "meaning", "allowed", "default", "searched"),
        tuple(
            (
                f"`{knob.key}`",
                knob.meaning,
                knob.allowed,
                "none: it must be set" if knob.default is None and not knob.optional else f"`{written(knob.default)}`",
                str(spec.space.get(name, "no")),
            )
            for name, knob in spec.knobs.items()
        ),
    )


def of_protocol(protocol: Protocol) -> Iterator[Part]:
    """Its settings, what a search draws, and the values it has for single losses."""
    folds = "on one validation fold" if protocol.folds == 1 else f"averaged over {protocol.folds} validation folds"
    epochs = " A search also chooses the number of epochs." if protocol.select_epochs else ""
    yield Heading(f"{protocol.name}: {protocol.title}", level=1)
    yield f"Source: {protocol.source}."
    yield Block("bash", f"harness run --protocol {protocol.name}")
    yield f"Search trials are compared by {protocol.select} {folds}.{epochs}"
    yield Heading("Settings")
    settings = shared_settings(protocol)
    empty = " An empty cell below a dataset means the common value." if len(settings.headers) > 2 else ""
    yield f"`harness ls settings` says what each means.{empty}"
    yield settings
    if protocol.few_images:
        values = assignments(protocol.few_images)
        yield f"Where training classes have fewer than {protocol.few_below} images on average: {values}."
    for family, samples in protocol.families.items():
        yield f"Losses of the family `{family}` have `samples_per_class` = {samples} in batches of the same size."
    yield Heading("Random search")
    yield "`--trials N` draws these, and the knobs of each loss from the loss's own ranges."
    ranges = ((f"`{name}`", str(values)) for name, values in protocol.search.items())
    yield Table(("setting", "range"), tuple(ranges))
    used = tuple(
        (f"`{dataset}`", Link("losses", loss), assignments(tuned.values), source(tuned))
        for dataset, by_loss in protocol.tuned.items()
        for loss, tuned in by_loss.items()
    )
    if used:
        yield Heading("Values for single losses")
        yield Table(("dataset", "loss", "values", "source"), used)


def shared_settings(protocol: Protocol) -> Table:
    """The settings every loss shares: a column for each dataset that differs from the common values."""
    common = {**NEUTRAL, **protocol.settings}
    special = {}
    for dataset in map(config.dataset, config.names("datasets")):
        values = {**NEUTRAL, **protocol.shared(dataset.name, dataset.images_per_class)}
        if values != common:
            special[dataset.name] = values
    rows = (
        (
            f"`{name}`",
            f"`{written(common[name])}`",
            *(f"`{written(own[name])}`" if own[name] != common[name] else "" for own in special.values()),
        )
        for name in SETTINGS
        if name in common
    )
    return Table(("setting", "value", *special), tuple(rows))


def of_dataset(dataset: Dataset) -> Iterator[Part]:
    """What it holds, and how to get it."""
    counts = [
        ("training", f"{dataset.train_classes:,}", f"{dataset.train_images:,}"),
        ("test", f"{dataset.test_classes:,}", f"{dataset.test_images:,}"),
    ]
    if dataset.query_images:
        counts.append(("of the test images, queries", "", f"{dataset.query_images:,}"))
    yield Heading(dataset.title, level=1)
    yield f"{dataset.note}."
    yield Block("bash", f"harness run --dataset {dataset.name}")
    yield Table(("classes are split, never images", "classes", "images"), tuple(counts))
    yield Facts(
        {
            "Source": dataset.cite,
            "Default protocol": Link("protocols", dataset.protocol),
            "Recall@K": "K = " + ", ".join(map(str, dataset.recall_at)),
            "Version": f"`{dataset.version}`",
        }
    )
    yield Heading("How to get it")
    if dataset.layout == "embedded":
        yield "It comes with the package."
    if dataset.archives:
        yield Block("bash", f"harness data download {dataset.name}\nharness data check {dataset.name}")
        archives = ((f"`{archive['url']}`", f"`{archive.get('checksum', '')}`") for archive in dataset.archives)
        yield Table(("archive", "checksum"), tuple(archives))
    if dataset.manual:
        yield f"By hand: {dataset.manual}."
    if dataset.resized:
        copies = ", ".join(f"{side} px (`{fingerprint}`)" for fingerprint, side in dataset.resized.items())
        yield f"Results of this repository are of copies with a smaller short side: {copies}. The first is made with:"
        side = next(iter(dataset.resized.values()))
        yield Block("bash", f"harness data resize {dataset.name} --short-side {side} --out DIR")


def of_settings() -> Iterator[Part]:
    """Every setting, and its value in each protocol."""
    yield Heading("Settings", level=1)
    yield (
        "The settings of a trial. A protocol gives their values; `--set KEY=VALUE` overrides one for every loss. "
        "`weights` have an option of their own: `--weights hub|package|none|FILE`. "
        "`harness show PROTOCOL` also has the values for single datasets and losses."
    )
    protocols = [config.protocol(name) for name in config.names("protocols")]
    yield Table(
        ("setting", "meaning", "allowed", "value"),
        tuple(
            (f"`{name}`", setting.meaning, setting.allowed, values_in(protocols, name))
            for name, setting in SETTINGS.items()
        ),
    )


def values_in(protocols: list[Protocol], setting: str) -> str:
    """4 (quick), 60 (counted, paper)."""
    by_value: dict[str, list[str]] = {}
    for protocol in protocols:
        value = {**config.DEFAULTS, **protocol.settings}[setting]
        by_value.setdefault(written(value), []).append(protocol.name)
    if len(by_value) == 1:
        return f"`{next(iter(by_value))}`"
    return ", ".join(f"`{value}` ({', '.join(names)})" for value, names in by_value.items())


def written(value: Any) -> str:
    """A value as --set reads it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "(empty)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={written(value)}`" for key, value in values.items())


def source(tuned: Tuned) -> str:
    """Where values come from; of those that a search found also its trials and its settings."""
    if not tuned.trials:
        return tuned.source
    ranges = {
        name: value for name, value in tuned.found_with.items() if name in SEARCHABLE and isinstance(value, tuple)
    }
    settings = {name: value for name, value in tuned.found_with.items() if name not in ranges}
    drawn = (f"`{name}` from {low:g} to {high:g}" for name, (low, high) in ranges.items())
    return f"{tuned.source}; {tuned.trials} trials with {', '.join([assignments(settings), *drawn])}"

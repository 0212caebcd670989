"""The runs behind a report, one line each, and where they come from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape

from harness import commands, config
from harness.spec import PIXELS, Protocol, Result
from harness.tables import rows as measured
from harness.tables.build import metric_order

WORDS = ("id", "loss", "title", "dataset", "protocol", "backbone", "fold", "chosen on")
NUMBERS = ("seed", "seconds", "parameters")
COMMAND = "command that makes it again"


def runs(results: Sequence[Result]) -> str:
    """All of them as one compact table that opens on request: there may be thousands."""
    metrics = sorted({name for one in results for name in one.metrics}, key=metric_order)
    heads = "".join(
        f'<th scope="col" class="{"number" if name in (*NUMBERS, *metrics) else "left"}">{escape(name)}</th>'
        for name in (*WORDS, *NUMBERS, *metrics, COMMAND)
    )
    ordered = sorted(
        results, key=lambda one: (one.trial.dataset, one.trial.loss, one.trial.fold != "test", one.trial.seed)
    )

    @cache
    def protocol(name: str) -> Protocol | None:
        return config.protocol(name) if name in config.names("protocols") else None

    rows = "\n".join(row(one, metrics, protocol(one.trial.protocol)) for one in ordered)
    return (
        f"<details>\n<summary>All {len(results):,} results, with the command that makes each again</summary>\n"
        f'<div class="scroll runs" tabindex="0" role="region" aria-label="Runs">\n<table>\n<thead>\n<tr>{heads}</tr>\n'
        f"</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n</details>\n"
    )


def row(one: Result, metrics: Iterable[str], protocol: Protocol | None) -> str:
    trial = one.trial
    chosen = "test classes" if trial.checkpoint == "best-test" else "-"
    cells = [f'<th scope="row"><code>{escape(one.id)}</code></th>', text(trial.loss)]
    cells.append(f'<td class="left title">{escape(measured.label_of(one))}</td>')
    cells += map(text, (trial.dataset, trial.protocol, trial.backbone, trial.fold, chosen))
    cells += [number(trial.seed), number(one.seconds["total"], ",.1f"), number(one.parameters, ",")]
    cells += [number(100 * one.metrics[name], ".2f") if name in one.metrics else "<td>-</td>" for name in metrics]
    command = (
        commands.command(one, protocol) if protocol else f"its protocol {trial.protocol} is not in configs/protocols"
    )
    return f'<tr>{"".join(cells)}<td class="left"><code>{escape(command)}</code></td></tr>'


def text(value: str) -> str:
    return f'<td class="left">{escape(value)}</td>'


def number(value: float, form: str = "") -> str:
    return f'<td data-value="{value:.9g}">{value:{form}}</td>'


def provenance(results: Sequence[Result]) -> str:
    """What they were made with, and how many with each."""
    counts: dict[str, Counter[str]] = {}
    for one in results:
        for what, value in origins(one):
            counts.setdefault(what, Counter())[value] += 1
    rows = "\n".join(
        f'<tr><th scope="row">{escape(what)}</th><td class="words">{escape(value)}</td>{number(count, ",")}</tr>'
        for what, found in counts.items()
        for value, count in sorted(found.items())
    )
    heads = '<th scope="col">what</th><th scope="col" class="words">which</th><th scope="col">results</th>'
    return (
        '<div class="table"><div class="scroll" tabindex="0" role="region" aria-label="Provenance">\n<table>\n'
        f"<thead>\n<tr>{heads}</tr>\n</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
        "<p>A commit with a + had files that differ from it.</p></div>\n"
    )


def origins(one: Result) -> Iterator[tuple[str, str]]:
    """What a record says of its making; what it does not say counts as unknown."""
    said, trial = one.provenance, one.trial
    yield "dataset", f"{trial.dataset}, version {trial.dataset_version}, fingerprint {trial.fingerprint or 'unknown'}"
    if skipped := said.get("bad_images_skipped"):
        yield "images left out", f"{trial.dataset}: {skipped} could not be read"
    if trial.backbone != PIXELS:
        yield "weights", f"{trial.backbone}: {trial.weights}, sha256 {said.get('weights_sha256') or 'unknown'}"
    threads = f", threads: {said['threads']}" if said.get("threads") and said.get("device_type") != "cuda" else ""
    yield "device", f"{said.get('device', 'unknown')}{threads}"
    for name in ("commit", "harness", "python"):
        yield name, str(said.get(name) or "unknown")
    for name, version in (said.get("packages") or {}).items():
        yield str(name), str(version)
    yield "platform", str(said.get("platform") or "unknown")

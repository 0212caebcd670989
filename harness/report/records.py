"""The runs behind a report, one line each, and where they come from."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from harness import commands, config
from harness.spec import Protocol, Result, metric_order
from harness.tables.layout import Row

WORDS = ("id", "loss", "title", "dataset", "protocol", "backbone", "fold", "epoch chosen on")
NUMBERS = ("seed", "seconds", "parameters")
MOST = 12  # runs of a row that are linked
COMMAND = "command that reproduces it"


def runs(results: Sequence[Result], sort: str = "") -> str:
    """All of them as one compact table that opens on request: there may be thousands. In the order of their names, or
    the highest of a metric first."""
    metrics = sorted({name for result in results for name in result.metrics}, key=metric_order)
    heads = "".join(
        f'<th scope="col" class="{"number" if name in (*NUMBERS, *metrics) else "left"}">{escape(name)}</th>'
        for name in (*WORDS, *NUMBERS, *metrics, COMMAND)
    )
    protocols = {name: config.find_protocol(name) for name in {result.trial.protocol for result in results}}
    listed = sorted(results, key=order)
    if sort:
        listed.sort(key=lambda result: -result.metrics.get(sort, -math.inf))
    rows = "\n".join(row(result, metrics, protocols[result.trial.protocol]) for result in listed)
    return (
        f"<details>\n<summary>All {len(results):,} results, with the command that reproduces each</summary>\n"
        f'<div class="scroll runs" tabindex="0" role="region" aria-label="Runs">\n<table>\n<thead>\n<tr>{heads}</tr>\n'
        f"</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n</details>\n"
    )


def links(row: Row) -> str:
    """Links from a row of a table to its runs, in the order of their seeds."""
    ids = list(dict.fromkeys(id for cell in row.cells for id in cell.ids))
    if not ids:
        return ""
    runs = " ".join(
        f'<a href="#run-{escape(id)}" title="{escape(id)}">{number}</a>'
        for number, id in enumerate(ids[:MOST], start=1)
    )
    more = f" and {len(ids) - MOST:,} more" if len(ids) > MOST else ""
    return f'<small class="links"> run{"s" if len(ids) > 1 else ""} {runs}{more}</small>'


def order(result: Result) -> tuple[str, str, bool, int]:
    trial = result.trial
    return trial.dataset, trial.loss, not trial.on_test, trial.seed


def row(result: Result, metrics: Iterable[str], protocol: Protocol | None) -> str:
    trial = result.trial
    cells = [f'<th scope="row" id="run-{escape(result.id)}"><code>{escape(result.id)}</code></th>', text(trial.loss)]
    cells.append(f'<td class="left title">{escape(result.label)}</td>')
    cells += map(text, (trial.dataset, trial.protocol, trial.backbone, trial.fold, trial.epoch_chosen_on or "-"))
    cells += [number(trial.seed), number(result.seconds["total"], ",.1f"), number(result.parameters, ",")]
    cells += [number(100 * result.metrics[name], ".2f") if name in result.metrics else "<td>-</td>" for name in metrics]
    if protocol:
        command = commands.command(result, protocol)
    else:
        command = f"its protocol {trial.protocol} is not in configs/protocols"
    return f'<tr>{"".join(cells)}<td class="left"><code>{escape(command)}</code></td></tr>'


def text(value: str) -> str:
    return f'<td class="left">{escape(value)}</td>'


def number(value: float, form: str = "") -> str:
    return f'<td data-value="{value:.9g}">{value:{form}}</td>'


def provenance(results: Sequence[Result]) -> str:
    """What they were made with, and how many with each."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for what, value in origins(result):
            counts.setdefault(what, Counter())[value] += 1
    rows = "\n".join(
        f'<tr><th scope="row">{escape(what)}</th><td class="words">{escape(value)}</td>{number(count, ",")}</tr>'
        for what, values in counts.items()
        for value, count in sorted(values.items())
    )
    heads = '<th scope="col">what</th><th scope="col" class="words">which</th><th scope="col">results</th>'
    return (
        '<div class="table"><div class="scroll" tabindex="0" role="region" aria-label="Provenance">\n<table>\n'
        f"<thead>\n<tr>{heads}</tr>\n</thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
        "<p>A commit with a + had uncommitted changes.</p></div>\n"
    )


def origins(result: Result) -> Iterator[tuple[str, str]]:
    """What a record says of its making; what it does not say counts as unknown."""
    recorded, trial = result.provenance, result.trial
    yield "dataset", f"{trial.dataset}, version {trial.dataset_version}, fingerprint {trial.fingerprint or 'unknown'}"
    if recorded.get("data_sha256"):
        yield "images", f"{trial.dataset}: sha256 of all contents {recorded['data_sha256']}"
    if recorded.get("copies"):
        yield "copies", f"{trial.dataset}: {recorded['copies']} test images are identical to another one"
    skipped = recorded.get("bad_images_skipped")
    if skipped:
        yield "images left out", f"{trial.dataset}: {skipped} could not be read"
    if not trial.is_pixels:
        yield "weights", f"{trial.backbone}: {trial.weights}, sha256 {recorded.get('weights_sha256') or 'unknown'}"
    threads = (
        f", threads: {recorded['threads']}" if recorded.get("threads") and recorded.get("device_type") != "cuda" else ""
    )
    yield "device", f"{recorded.get('device', 'unknown')}{threads}"
    for name in ("commit", "harness", "python"):
        yield name, str(recorded.get(name) or "unknown")
    for name, version in (recorded.get("packages") or {}).items():
        yield str(name), str(version)
    yield "platform", str(recorded.get("platform") or "unknown")

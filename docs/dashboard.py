"""Draws the panels of configs/grafana.json from what a Prometheus has, where there is no Grafana.

python docs/dashboard.py http://127.0.0.1:9090 docs/pictures/dashboard.png --minutes 10
"""

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

DASHBOARD = Path(__file__).parent.parent / "configs" / "grafana.json"
COLUMNS = 24  # of Grafana's grid
STEPS = 240  # points of a line
WIDTH, ROW = 13, 0.42  # inches: of the picture, and of a row of the grid
FORMATS = {"h": "{:.2f} h", "percentunit": "{:.1%}", "short": "{:,.4g}"}


def board() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def query(panel: dict[str, Any]) -> str:
    """What a panel asks Prometheus for, with everything chosen in the lists at the top."""
    (target,) = panel["targets"]
    return re.sub(r"\$\w+", ".*", target["expr"])


def ask(server: str, path: str, **parameters: Any) -> Any:
    address = f"{server}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        return json.load(answer)["data"]


def legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template)


def lines(server: str, panel: dict[str, Any], begin: float, end: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Times and values of each series of a panel, with gaps where there was none."""
    grid = np.linspace(begin, end, STEPS)
    step = grid[1] - grid[0]
    found = ask(server, "query_range", query=query(panel), start=begin, end=end, step=step)["result"]
    series = {}
    for one in found:
        values = np.full(STEPS, np.nan)
        for moment, value in one["values"]:
            values[round((float(moment) - begin) / step)] = float(value)
        series[legend(panel["targets"][0]["legendFormat"], one["metric"])] = (grid, values)
    return dict(sorted(series.items()))


def draw_numbers(axes: Axes, panel: dict[str, Any], series: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """The last value of each series."""
    form = FORMATS[panel["fieldConfig"]["defaults"]["unit"]]
    axes.set_axis_off()
    for number, (name, (_, values)) in enumerate(series.items()):
        known = values[~np.isnan(values)]
        place = (number + 0.5) / len(series)
        axes.text(place, 0.5, form.format(known[-1]), ha="center", va="center", fontsize=17, transform=axes.transAxes)
        axes.text(place, 0.1, name, ha="center", va="center", fontsize=9, color="grey", transform=axes.transAxes)


def draw_lines(axes: Axes, panel: dict[str, Any], series: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    times = [datetime.fromtimestamp(moment) for moment in next(iter(series.values()))[0]]
    if custom.get("stacking"):
        rows = np.nan_to_num([values for _, values in series.values()])
        axes.stackplot(times, rows, labels=list(series), alpha=0.6)
    else:
        style = "." if custom["showPoints"] == "always" else "-"
        for name, (_, values) in series.items():
            axes.plot(times, values, style, label=name, linewidth=1.2)
    if "min" in defaults:
        axes.set_ylim(bottom=defaults["min"])
    axes.set_xlim(times[0], times[-1])
    axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M:%S"))
    axes.set_xticks(times[:: STEPS // 4])
    axes.grid(alpha=0.3)
    if len(series) <= 12:
        axes.legend(fontsize=7, loc="upper left", framealpha=0.6)


def draw(server: str, file: Path, seconds: float) -> None:
    panels = board()["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(WIDTH, rows * ROW))
    now = time.time()
    for panel in panels:
        series = lines(server, panel, now - seconds, now)
        place = panel["gridPos"]
        left, width = place["x"] / COLUMNS + 0.04, place["w"] / COLUMNS - 0.05
        bottom, height = 1 - (place["y"] + place["h"] - 1) / rows, (place["h"] - 2) / rows
        axes = figure.add_axes((left, bottom, width, height))
        axes.set_title(panel["title"], fontsize=10, loc="left")
        if not series:
            axes.text(0.5, 0.5, "No data", ha="center", transform=axes.transAxes)
        elif panel["type"] == "stat":
            draw_numbers(axes, panel, series)
        else:
            draw_lines(axes, panel, series)
    figure.savefig(file, dpi=75, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="address of a Prometheus")
    parser.add_argument("file", type=Path, help="the picture, a PNG")
    parser.add_argument("--minutes", type=float, default=10.0, help="shown until now")
    options = parser.parse_args()
    draw(options.server, options.file, 60 * options.minutes)


if __name__ == "__main__":
    main()

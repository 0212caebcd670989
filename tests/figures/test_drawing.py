"""Every figure: its files, its letters, and what it says when results are missing."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from harness.figures import grid, plots, style
from harness.figures.registry import FORMATS, draw
from harness.spec import Result, UserError
from tests.factories import NETWORK
from tests.figures.factories import a_grid, cell, final, joined, one_group, searched, sources, untrained


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("retrieval", "harness run --dataset emoji --protocol quick --losses group --set dim=9 --rerun"),
        ("tsne", "harness run --dataset emoji --protocol quick --losses group --set dim=9 --rerun"),
        ("grid", "--losses group --set dim=9 --grid samples_per_class=2,4 --grid lr=0.0001,0.001"),
        ("training", "harness run --dataset emoji --protocol quick --losses group --set dim=9"),
        ("curves", "harness run --dataset emoji --protocol quick --losses group --set dim=9 --curves --seeds 3"),
        ("overfitting", "--curves --seeds 3"),
        ("search", "--trials 10"),
        ("pairwise", "harness run --dataset emoji --protocol quick --set dim=9 --seeds 3"),
        ("ensemble", "--seeds 3 --ensemble 2,3"),
    ],
)
def test_a_missing_figure_names_the_command_that_makes_its_results(tmp_path: Path, name: str, command: str) -> None:
    """With the settings of the stored runs; but one epoch is not repeated where it is what is wrong."""
    epochs = 1 if name in ("training", "curves", "overfitting") else 4
    with pytest.raises(UserError) as complaint:
        list(draw(name, one_group([final("group", dim=9, epochs=epochs)]), sources(tmp_path), tmp_path))
    assert str(complaint.value).endswith(command)
    assert "\n" not in str(complaint.value)
    assert list(tmp_path.iterdir()) == []


HOSTILE = [r"$\frac{$", "_x \\alpha^$", "two\nlines\x00\ud800", "<b>&amp; " + 60 * "W", "50 % {of} #1 ~"]


def everything(titles: list[str]) -> list[Result]:
    """Results for every figure that needs no image."""
    names = ["group", "triplet", "proxy_nca", "angular", "margin"][: len(titles)]
    found: list[Result] = [untrained(0.3)]
    for place, (loss, title) in enumerate(zip(names, titles, strict=True)):
        runs = [
            final(loss, 0.5 + 0.02 * place + 0.01 * seed, [0.2, 0.4, 0.5 + 0.01 * seed], title, seed=seed)
            for seed in range(2)
        ]
        found += [*runs, joined(2, 0.6, runs)]
        found += [replace(searched(loss, 0.1 * n, lr=0.1 * n), title=title) for n in range(1, 5)]
    return [*found, *ANCHORS, *CLASSES]


ANCHORS = [cell(a, s, 0.5 + 0.01 * a * s, epochs=9) for a in range(3) for s in (5, 6) if a * s != 12]
CLASSES = [cell(1, 5, 0.5, classes_per_batch=n, epochs=8) for n in (4, 8)]
GRIDS = [a_grid(ANCHORS), a_grid(CLASSES)]

DRAWN = {
    "grid": ["grid-group-anchors-samples_per_class", "grid-group-classes_per_batch"],
    "training": ["training"],
    "curves": ["curves"],
    "overfitting": ["overfitting"],
    "search": ["search"],
    "cost": ["cost"],
    "ensemble": ["ensemble"],
}


@pytest.mark.parametrize("name", DRAWN)
def test_whatever_a_title_holds_the_files_are_written(tmp_path: Path, name: str) -> None:
    drawn = list(draw(name, one_group(everything(HOSTILE), GRIDS), sources(tmp_path), tmp_path / "out"))
    files = [file for drawing in drawn for file in drawing.files]
    slug = f"emoji-quick-{NETWORK}"
    assert [file.name for file in files] == [f"{what}-{slug}.{end}" for what in DRAWN[name] for end in ("png", "pdf")]
    for file in files:
        if file.suffix == ".png":
            with Image.open(file) as image:
                assert image.width == round(3.4 * 300)
        else:
            assert file.read_bytes().startswith(b"%PDF-")


USUAL = ["Group Loss", "Triplet", "Proxy-NCA", "Normalized Softmax", "Multi-Similarity"]


@pytest.mark.parametrize("titles", [USUAL, HOSTILE], ids=["usual", "hostile"])
@pytest.mark.parametrize("name", DRAWN)
def test_no_letter_is_below_7_points_or_beyond_the_edge(tmp_path: Path, name: str, titles: list[str]) -> None:
    group = one_group(everything(titles), GRIDS)
    function = getattr(plots, name, getattr(grid, name, None))
    assert function is not None
    with style.looks():
        drawings = list(function(group, sources(tmp_path)))
        assert drawings
        for drawing in drawings:
            assert drawing.canvas.get_figwidth() == 3.4
            check_letters(drawing.canvas)


def check_letters(figure: Figure) -> None:
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    seen = [one for one in figure.findobj(Text) if one.get_visible() and one.get_text()]
    assert any(one.get_text().startswith("emoji · quick ·") for one in seen)
    assert any(one.get_text().startswith("Emoji") for one in seen)  # the title
    assert not any("…" in one.get_text() for one in seen)
    ticks = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()}
    for one in seen:
        assert one.get_fontsize() >= 7, one
        if one not in ticks:  # ticks beyond the axes are not drawn
            box = one.get_window_extent()
            assert box.x0 >= -1, one
            assert box.y0 >= -1, one
            assert box.x1 <= width + 1, one
            assert box.y1 <= height + 1, one


def test_the_same_results_make_the_same_file_in_every_format(tmp_path: Path) -> None:
    group = one_group(everything(USUAL))
    files = [next(draw("curves", group, sources(tmp_path), tmp_path / name, FORMATS)).files for name in "ab"]
    assert [first.suffix for first in files[0]] == [".png", ".pdf", ".svg"]
    assert [first.read_bytes() == second.read_bytes() for first, second in zip(*files, strict=True)] == [True] * 3


def test_no_axis_of_percent_reaches_below_0_or_above_100(tmp_path: Path) -> None:
    runs = [final("group", score, [score, score], seed=seed) for seed, score in enumerate((0.0, 0.02, 1.0))]
    found = [*runs, joined(2, 1.0, runs)]
    with style.looks():
        for name in ("curves", "overfitting", "cost", "ensemble"):
            (drawing,) = getattr(plots, name)(one_group(found), sources(tmp_path))
            low, high = drawing.canvas.axes[0].get_ylim()
            assert low >= 0, name
            assert high <= 100, name


@pytest.mark.parametrize("title", ["", " ", "\u200b", "\u2800", "\ufeff"], ids=ascii)
def test_a_title_without_a_visible_letter_has_a_length_all_the_same(title: str) -> None:
    assert 0 <= style.inches(title) < style.inches("MM")

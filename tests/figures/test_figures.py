"""Figures: which results enter, what is missing, which images are nearest, and that nothing is clipped or tiny."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from harness import config, plan
from harness.figures import grid, plots, retrieval, style, tsne
from harness.figures.groups import Group, groups, lines, search_scores
from harness.figures.pictures import Shown
from harness.figures.registry import FIGURES, Asked, draw
from harness.spec import Result, UserError
from harness.storage import Storage
from harness.store import Store
from tests.conftest import Harness
from tests.factories import NETWORK, a_result, a_trial


def final(loss: str, score: float = 0.5, curve: Iterable[float] = (), title: str = "", **changes: Any) -> Result:
    """A run on test classes; `curve`: its Recall@1 after each epoch, that on training classes 0.1 above."""
    rows = [{"epoch": n, "loss": 1.0, "R@1": v, "train R@1": v + 0.1} for n, v in enumerate(curve, start=1)]
    result = a_result(a_trial(loss=loss, **{"knobs": {}, **changes}), **{"R@1": score})
    return replace(result, title=title or loss, curve=tuple(rows))


def searched(loss: str, score: float, **changes: Any) -> Result:
    return final(loss, score, **{"fold": "val0", **changes})


def cell(anchors: int, samples: int, score: float, **changes: Any) -> Result:
    return searched("group", score, knobs={"anchors": anchors}, samples_per_class=samples, **changes)


def joined(size: int, score: float, members: list[Result]) -> Result:
    ids = tuple(sorted(one.id for one in members))
    return replace(members[0], ensemble=size, members=ids, metrics={"R@1": score}, curve=())


def untrained(score: float, **changes: Any) -> Result:
    return final("none", score, title="Untrained network", **{**plan.IDLE, **changes})


def one_group(results: list[Result]) -> Group:
    (found,) = groups(results)
    return found


def asked(folder: Path) -> Asked:
    return Asked(Storage(str(folder)), folder)


# --- which results enter ---


def test_datasets_copies_protocols_and_backbones_have_figures_of_their_own() -> None:
    results = [
        final("group"),
        final("triplet", fingerprint="def"),
        final("group", protocol="cpu"),
        final("group", backbone="resnet18"),
        final("none", backbone="pixels"),
        replace(final("angular"), recipe="faiss", members=("x",)),
    ]
    found = groups(results)
    assert [(one.protocol, one.backbone, len(one.results)) for one in found] == [
        ("cpu", NETWORK, 1),
        ("quick", "resnet18", 1),
        ("quick", NETWORK, 1),
        ("quick", NETWORK, 1),
    ]
    assert [one.slug for one in found][2:] == [
        f"emoji-v1-abc-quick-{NETWORK}",
        f"emoji-v1-def-quick-{NETWORK}",
    ]
    assert {one.losses for one in found} == {("group", "triplet")}  # so a loss has one colour everywhere
    assert [one.backbone for one in groups(results, backbone="resnet18")] == ["resnet18"]
    with pytest.raises(UserError, match="no protocol with results named 'quik'; did you mean 'quick'"):
        groups(results, protocol="quik")


def test_of_a_losss_configurations_the_one_with_the_most_seeds_is_shown_whatever_it_scored() -> None:
    several = [final("group", 0.5, seed=seed) for seed in (1, 0)]
    shown, remark = lines([*several, final("group", 0.9, lr=0.5), final("triplet", 0.4)])
    assert [(line.loss, [run.metrics["R@1"] for run in line.runs]) for line in shown] == [
        ("group", [0.5, 0.5]),
        ("triplet", [0.4]),
    ]
    assert [run.trial.seed for run in shown[0].runs] == [0, 1]
    assert remark == "1 run with other settings not shown"


def test_of_equally_many_seeds_the_latest_is_shown() -> None:
    old = replace(final("group", lr=0.1), provenance={"finished": "2026-01-01"})
    new = replace(final("group", lr=0.2), provenance={"finished": "2026-01-02"})
    for order in ([old, new], [new, old]):
        assert lines(order)[0][0].runs == (new,)


def test_only_losses_that_were_trained_alike_share_a_figure() -> None:
    long = [final("group", epochs=50, seed=seed) for seed in range(5)]
    shown, remark = lines([*long, final("group"), final("triplet")])
    assert [(line.loss, len(line.runs)) for line in shown] == [("group", 1), ("triplet", 1)]
    assert remark == "5 runs with other settings not shown"


def test_search_scores_are_those_of_trials_that_share_the_final_runs_settings() -> None:
    results = [
        final("group"),
        searched("group", 0.5, lr=0.1),
        searched("group", 0.7, lr=0.2, knobs={"anchors": 2}),
        searched("group", 0.1, lr=0.2, knobs={"anchors": 2}, seed=1),  # of several seeds the first
        searched("group", 0.9, lr=0.3, samples_per_class=9),  # a grid's
        searched("group", 0.9, lr=0.4, fold="val1"),  # the protocol has one fold
        searched("triplet", 0.6, lr=0.1),
    ]
    scores, used, metric = search_scores(one_group(results))
    assert {loss: sorted(values) for loss, values in scores.items()} == {"group": [0.5, 0.7], "triplet": [0.6]}
    assert (len(used), metric) == (3, "R@1")


def test_a_search_score_is_the_mean_over_the_protocols_folds_and_none_without_all_of_them() -> None:
    rules = config.protocol("fair")
    assert (rules.folds, rules.select) == (4, "MAP@R")
    results = [
        replace(searched("group", 0, protocol="fair", lr=lr, fold=f"val{fold}"), metrics={"R@1": 0, "MAP@R": score})
        for lr, scores in ((0.1, (0.1, 0.2, 0.3, 0.4)), (0.2, (0.9, 0.9, 0.9)))
        for fold, score in enumerate(scores)
    ]
    scores, _, metric = search_scores(one_group(results))
    assert metric == "MAP@R"
    assert scores == {"group": [pytest.approx(0.25)]}


def test_a_grid_is_what_agrees_in_everything_else_and_counts_from_its_best_cell() -> None:
    results = [
        *(cell(0, 5, score, seed=seed) for seed, score in enumerate((0.60, 0.62))),  # mean 0.61
        cell(0, 6, 0.64),
        cell(1, 5, 0.605),  # 1, 6 was not run
        cell(2, 7, 0.99, lr=0.5),  # a search trial
        cell(1, 6, 0.99, epochs=9),
    ]
    found = grid.cells(one_group(results), lambda t: (t.knobs["anchors"], t.samples_per_class), grid.without_anchors)
    assert found is not None
    below = found.below_best()
    assert {where: mean for where, (_, mean, _) in below.items()} == {
        (0, 5): pytest.approx(-3.0),
        (0, 6): 0.0,
        (1, 5): pytest.approx(-3.5),
    }
    assert below[0, 5][0] == pytest.approx(-4.0)
    assert below[0, 5][2] == pytest.approx(-2.0)
    assert [grid.points(value) for value in (0.0, -0.04, -3.46)] == ["0", "0.0", "−3.5"]


def test_a_row_of_anchors_alone_is_no_grid(tmp_path: Path) -> None:
    results = [cell(anchors, 5, 0.5) for anchors in range(3)]
    with pytest.raises(UserError, match="no grid of anchors and samples per class"):
        list(draw("grid", one_group(results), asked(tmp_path), tmp_path))


def test_curves_are_joined_by_epoch_to_their_lowest_mean_and_highest() -> None:
    runs = [final("group", curve=[0.2, 0.5]), final("group", curve=[0.4, 0.6, 0.7], seed=1), final("triplet")]
    (line,), remark = plots.with_curve(one_group(runs), "R@1")
    found = plots.spread(line.runs, "R@1")
    assert [tuple(round(value, 6) for value in row) for row in found] == [
        (1, 20, 30, 40),
        (2, 50, 55, 60),
        (3, 70, 70, 70),
    ]
    assert remark == ""


def test_curves_say_that_nothing_was_selected_on_them_unless_it_was() -> None:
    (honest,), _ = lines([final("group", curve=[0.5])])
    (leaked,), _ = lines([final("group", curve=[0.5], checkpoint="best-test")])
    assert plots.told([honest]) == plots.DIAGNOSTIC
    assert plots.told([honest, leaked]) == plots.LEAKED


def test_shared_pretraining_counts_for_every_loss() -> None:
    first = replace(final("group"), seconds={"pretrain": 60.0, "train": 30.0, "total": 99.0})
    second = replace(final("triplet"), seconds={"pretrain": 0.1, "train": 30.0, "total": 99.0})
    other = replace(final("triplet", seed=1), seconds={"train": 30.0, "total": 99.0})
    assert plots.pretraining([first, second, other]) == {0: 60.0, 1: 0.0}


def test_the_untrained_network_is_the_one_that_sees_what_the_losses_see() -> None:
    group = one_group([final("group"), untrained(0.4), untrained(0.1, resize=32, crop=32)])
    assert [one.metrics["R@1"] for one in group.untrained(final("group").trial)] == [0.4]


# --- what is missing ---


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("retrieval", "harness run --dataset emoji --protocol quick"),
        ("tsne", "harness run --dataset emoji --protocol quick"),
        ("grid", "--losses group --grid group.anchors=0,1,2,3,4 --grid samples_per_class=5,6,7,8,9,10"),
        ("curves", "harness run --dataset emoji --protocol quick --curves --seeds 3"),
        ("overfitting", "--curves --seeds 3"),
        ("search", "--trials 10"),
        ("ensemble", "--seeds 3 --ensemble 2,3"),
    ],
)
def test_a_missing_figure_names_the_command_that_makes_its_results(tmp_path: Path, name: str, command: str) -> None:
    with pytest.raises(UserError) as complaint:
        list(draw(name, one_group([final("group")]), asked(tmp_path), tmp_path))
    assert str(complaint.value).endswith(command)
    assert "\n" not in str(complaint.value)
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_a_backbone_that_is_not_the_protocols_and_data_of_ones_own() -> None:
    other = replace(final("group", backbone="resnet18", dataset="photos"), provenance={"data": "/my photos"})
    assert str(one_group([other]).missing("x")).endswith(
        "harness run --dataset '/my photos' --protocol quick --set backbone=resnet18"
    )


# --- retrieval ---


def shown(points: list[list[float]], labels: list[int], queries: list[bool] | None = None) -> Shown:
    no_images: Any = None
    apart = torch.tensor(queries) if queries is not None else None
    return Shown(a_result(), torch.tensor(points), torch.tensor(labels), apart, no_images, torch.arange(len(labels)))


def test_neighbours_come_by_distance_then_index_and_never_the_query_itself() -> None:
    # the twin of the query lies on it, and comes before it by index
    some = shown([[0.0], [0.0], [3.0], [-1.0], [1.0], [2.0]], [0, 0, 0, 1, 1, 0])
    found = retrieval.neighbours(some, 1)
    assert found.nearest == (0, 3, 4, 5)
    assert found.right == (True, False, False, True)


def test_neighbours_of_a_query_come_from_the_gallery_where_the_two_are_apart() -> None:
    some = shown([[0.0], [0.1], [0.5], [0.2], [0.9]], [0, 0, 0, 1, 1], [True, True, False, False, False])
    assert retrieval.neighbours(some, 0) == retrieval.Found(0, (3, 2, 4), (False, True, False))


def test_the_worst_queries_have_the_most_wrong_images_before_the_first_right_one() -> None:
    """0 and 4, ten apart, see three wrong ones first: 0 the nearest at 1.0, 4 at 8.8, so 0 is worse. 1, 2 and 3 find
    theirs at 0.1 and the nearest wrong one at 1.0, 1.1, 1.2. 5 is alone in its class."""
    some = shown([[0.0], [1.0], [1.1], [1.2], [10.0], [50.0]], [0, 1, 1, 1, 0, 2])
    assert retrieval.worst(some, 9) == [0, 4, 1, 2, 3]
    assert retrieval.worst(some, 1) == [0]


def test_random_queries_repeat_with_their_seed_and_are_queries() -> None:
    some = shown([[float(n)] for n in range(40)], [n // 2 for n in range(40)], [n % 2 == 0 for n in range(40)])
    first = retrieval.pick(some, "random:0")
    assert first == retrieval.pick(some, "random:0") != retrieval.pick(some, "random:1")
    assert len(set(first)) == 6
    assert all(number % 2 == 0 for number in first)
    assert retrieval.pick(some, "4, 2") == [4, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("best", "--queries best: allowed is random:SEED, worst, or indices"),
        ("random:x", "allowed is random:SEED"),
        ("1,,2", "allowed is random:SEED"),
        ("9", "--queries 9: allowed is 0 to 3"),
        ("-1", "allowed is"),
        ("1", "--queries 1: it is an image of the gallery; the first query is 0"),
    ],
)
def test_queries_that_are_none_are_refused(text: str, complaint: str) -> None:
    some = shown([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1], [True, False, True, False])
    with pytest.raises(UserError, match=complaint):
        retrieval.pick(some, text)


# --- t-SNE ---


def test_the_map_is_of_whole_classes() -> None:
    labels = np.repeat(np.arange(10), 7)
    rows = tsne.sample(labels, 30)
    assert len(rows) == 28
    assert {int((labels[rows] == one).sum()) for one in set(labels[rows].tolist())} == {7}
    assert tsne.sample(labels, 30).tolist() == rows.tolist()
    assert len(tsne.sample(labels, 70)) == 70


def test_clusters_are_the_classes_that_lie_by_themselves_one_a_corner() -> None:
    """Four tight classes in the corners, two that are mixed with each other beside one of them."""
    corners = [(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)]
    step = np.array([[0.0, 0.0], [0.01, 0.0], [0.0, 0.01], [0.01, 0.01]])
    tight = [np.array(corner) + step for corner in corners]
    mixed = [np.array([0.5, 0.6]) + 0.1 * np.array([[n, 0], [n + 2, 0], [n + 4, 0], [n + 6, 0]]) for n in (0, 1)]
    places = np.concatenate([*mixed, *tight])
    labels = np.repeat(np.arange(6), 4)
    found = tsne.clusters(places, labels)
    assert [(one.corner, one.label) for one in found] == [
        ((False, False), 2),
        ((False, True), 3),
        ((True, False), 4),
        ((True, True), 5),
    ]
    assert set(found[0].rows) == {8, 9, 10, 11}


def test_enlarged_images_lie_as_they_lay_and_no_two_in_one_cell() -> None:
    square = np.array([[0.0, 0.0], [9.0, 0.5], [0.3, 8.0], [9.0, 9.0]])
    assert tsne.raster(square, 2) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert len(set(tsne.raster(np.zeros((9, 2)), 3))) == 9


def test_no_image_of_the_map_lies_under_an_enlarged_one() -> None:
    rng = np.random.default_rng(0)
    spots = np.abs(tsne.spread_out(rng.uniform(-0.5, 0.5, (500, 2)), 0.1)) + 0.05  # the outer edges
    across, up = style.PAGE / 2 - tsne.CORNER, (tsne.HEIGHT - tsne.TITLE) / 2 - tsne.CORNER
    assert not ((spots[:, 0] > across) & (spots[:, 1] > up)).any()
    assert spots[:, 0].max() <= style.PAGE / 2


# --- the files ---

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
    found += [cell(a, s, 0.5 + 0.01 * a * s, epochs=9) for a in range(3) for s in (5, 6) if a * s != 12]
    return found + [searched("group", 0.5, knobs={"anchors": 1}, classes_per_batch=n, epochs=8) for n in (4, 8)]


DRAWN = {
    "grid": ["grid-anchors", "grid-classes"],
    **{name: [name] for name in ("curves", "overfitting", "search", "cost", "ensemble")},
}


@pytest.mark.parametrize("name", DRAWN)
def test_whatever_a_title_holds_the_files_are_written(tmp_path: Path, name: str) -> None:
    files = list(draw(name, one_group(everything(HOSTILE)), asked(tmp_path), tmp_path / "out"))
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
    group = one_group(everything(titles))
    function = getattr(plots, name, getattr(grid, name, None))
    assert function is not None
    with style.looks():
        for _, figure in function(group, asked(tmp_path)):
            assert figure.get_figwidth() == 3.4
            check_letters(figure)


def check_letters(figure: Figure) -> None:
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    seen = [one for one in figure.findobj(Text) if one.get_visible() and one.get_text()]
    assert any(one.get_text().startswith("emoji · quick ·") for one in seen)
    ticks = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()}
    for one in seen:
        assert one.get_fontsize() >= 7, one
        if one not in ticks:  # ticks beyond the axes are not drawn
            box = one.get_window_extent()
            assert box.x0 >= -1, one
            assert box.y0 >= -1, one
            assert box.x1 <= width + 1, one
            assert box.y1 <= height + 1, one


def test_names_beside_points_do_not_overlap(tmp_path: Path) -> None:
    """Twelve losses that cost and score nearly the same."""
    names = [f"Loss number {n}" for n in range(12)]
    runs = [final(f"loss{n}", 0.5 + 0.001 * (n % 3), title=title) for n, title in enumerate(names)]
    runs = [replace(one, seconds={"train": 60.0 + n, "total": 99.0}) for n, one in enumerate(runs)]
    with style.looks():
        ((_, figure),) = plots.cost(one_group(runs), asked(tmp_path))
        figure.draw_without_rendering()
        boxes = [one.get_window_extent() for one in figure.findobj(Text) if one.get_text() in names]
    assert len(boxes) == 12
    assert not [(a, b) for place, a in enumerate(boxes) for b in boxes[:place] if a.overlaps(b)]


# --- the command ---


def test_the_command_draws_what_it_can_and_says_what_is_missing(small: Path, harness: Harness, tmp_path: Path) -> None:
    assert harness("run", "--losses", "triplet", "--dataset", "blobs", "--seeds", "2", "--ensemble", "2").code == 0
    said = harness("figures", "--format", "png")
    assert said.code == 0, said.err
    end = "blobs-tiny-test_efficientnet.png"
    folder = tmp_path / "results" / "figures"
    expected = ["retrieval-triplet", "tsne-triplet", "cost", "ensemble"]
    assert said.out.splitlines() == [str(folder / f"{name}-{end}") for name in expected]
    assert {file.name for file in folder.iterdir()} == {f"{name}-{end}" for name in expected}
    assert all(file.stat().st_size > 1000 for file in folder.iterdir())
    skipped = said.err.splitlines()
    assert [line.split(":")[0] for line in skipped] == [
        f"skipped {name}" for name in ("grid", "curves", "overfitting", "search")
    ]
    assert skipped[1].endswith("harness run --dataset blobs --protocol tiny --curves --seeds 3")

    out = tmp_path / "elsewhere"
    said = harness("figures", "retrieval", "--queries", "worst", "--out", str(out), "--format", "pdf")
    assert said.out.splitlines() == [str(out / "retrieval-triplet-blobs-tiny-test_efficientnet.pdf")]
    for arguments, complaint in (
        (["retrieval", "--queries", "48"], "--queries 48: allowed is 0 to 47"),
        (["tsne", "--loss", "grup"], "no loss with embeddings"),
        (["curves"], "no final runs with curves of blobs, tiny, test_efficientnet; make some with: harness run"),
        (["retreival"], "no figure named 'retreival'; did you mean 'retrieval'"),
        (["cost", "--format", "gif"], "--format gif: must be png or pdf"),
        (["cost", "--dataset", "emoji"], "no dataset with results named 'emoji'"),
        (["retrieval", "--storage", str(out)], "the embeddings of"),
    ):
        said = harness("figures", *arguments)
        assert said.code == 2, arguments
        assert complaint in said.err
        assert said.err.count("\n") == 1


def test_the_rows_of_the_embeddings_are_the_images_of_the_test_half(
    small: Path, harness: Harness, tmp_path: Path
) -> None:
    """The pictures of a class's rows are the stored drawings of that class, resized."""
    from harness.data import listing, loading
    from harness.figures import pictures as module

    harness("run", "--losses", "triplet", "--dataset", "blobs")
    where = Store(tmp_path / "results")
    (run,) = [one for one in where.results()[0] if one.trial.loss == "triplet"]
    some = module.load(run, asked(where.artifacts))
    images = loading.embedded(listing.identify(config.dataset("blobs"), tmp_path))
    for row in (0, 17, 47):
        picture = some.picture(row)
        assert picture.shape == (32, 32, 3)
        number = int(some.test[row])
        assert images.classes.index(images.paths[number].split("/")[0]) - images.train_classes == some.labels[row]
        stored = images.one(number).numpy().astype(float)
        assert np.abs(picture.astype(float).mean(axis=(0, 1)) - stored.mean(axis=(0, 1))).max() < 3


def test_without_results_the_command_says_what_makes_some(harness: Harness) -> None:
    said = harness("figures")
    assert said.code == 2
    assert "make some with: harness run" in said.err


def test_help_names_every_figure(harness: Harness) -> None:
    text = harness("figures", "--help").out
    assert "Example: harness figures" in text
    assert all(name in text for name in FIGURES)

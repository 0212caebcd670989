"""The t-SNE map: whole classes, compact clusters, nothing hidden."""

import numpy as np

from harness.figures import style, tsne


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

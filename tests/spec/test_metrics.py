"""The registry of metrics: order, columns, names."""

from harness.spec import known_metric, metric_order, papers_metrics, recall_k


def test_recalls_come_first_by_their_k_then_the_others() -> None:
    names = ["NMI", "R@10", "RP", "R@2", "R@1", "MAP@R", "own"]
    assert sorted(names, key=metric_order) == ["R@1", "R@2", "R@10", "MAP@R", "NMI", "RP", "own"]


def test_the_papers_columns_are_recall_and_nmi() -> None:
    assert papers_metrics(["RP", "NMI", "R@8", "MAP@R", "R@1", "R@1"]) == ["R@1", "R@8", "NMI"]


def test_what_is_no_metric_is_not_known() -> None:
    assert known_metric("R@0") is None
    assert known_metric("recall") is None
    assert recall_k("R@100") == 100
    assert recall_k("RP") is None
    assert recall_k(f"R@{'9' * 5000}") is None

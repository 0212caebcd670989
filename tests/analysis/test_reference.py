"""The paper's published numbers: complete, as printed, and traceable to who measured them."""

import hashlib
import re
from itertools import pairwise
from pathlib import Path

import pytest

import losses
from harness import config
from harness.analysis import reference
from harness.analysis.reference import Published
from harness.spec import SETTINGS

NMI = {(dataset, "NMI") for dataset in ("cub", "cars", "sop")}
# Every cell printed "-", by method, read off the paper.
MISSING = {
    "losses": {
        "Proxy-NCA": {("sop", "R@10"), ("sop", "R@100")},
        "Bias Triplet": {("cub", "R@8"), ("cars", "R@8"), *NMI},
    },
    "ensembles": {
        "DE-DSP": {("cub", "NMI"), ("cars", "R@8")},
        **dict.fromkeys(("Hier. triplet", "GPW", "RKD", "BIER 6", "HDC 3", "ABE 2", "ABE 8", "A-BIER 6"), NMI),
    },
    "backbones": {},
}
# Every cell of a table that is misprinted or that the text contradicts.
NOTED = {
    ("ensembles", "BIER 6", "cub", "R@1"),
    ("ensembles", "BIER 6", "cars", "R@1"),
    ("ensembles", "A-BIER 6", "cub", "R@1"),
    ("ensembles", "HDC 3", "cub", "R@1"),
    ("ensembles", "HDC 3", "cars", "R@1"),
    ("ensembles", "HDC 3", "sop", "R@1"),
    ("ensembles", "ABE 8", "cub", "R@4"),
    ("ensembles", "ABE 8", "cub", "R@8"),
    ("ensembles", "D and C 8", "cub", "R@1"),
    ("ensembles", "D and C 8", "cars", "R@1"),
    ("losses", "Ours", "cub", "R@1"),
    ("ensembles", "DE-DSP", "cub", "R@8"),
    ("ensembles", "DE-DSP", "cub", "NMI"),
    ("ensembles", "Ours 2-ensemble", "cars", "NMI"),
    ("ensembles", "Ours 2-ensemble", "sop", "NMI"),
    ("ensembles", "Ours 5-ensemble", "cub", "R@4"),
    ("backbones", "GL Inception v2", "cub", "Params"),
    ("backbones", "GL Inception v2", "cub", "R@1"),
    ("backbones", "GL Inception v2", "cars", "Params"),
    ("backbones", "SofTriple", "cub", "R@1"),
    ("backbones", "SofTriple", "cars", "R@1"),
}
# Of the cells as the LaTeX source of the paper has them, row by row, computed from it.
PRINTED = {"losses": "f87ce9c370a80984", "ensembles": "29ed9e3af38a740e", "backbones": "c490e93bc3bdd866"}
# Parameters of a network without its classifier, and the inputs of the classifier.
DENSENETS = {
    "GL Densenet121": (6_953_856, 1024),
    "GL Densenet161": (26_472_000, 2208),
    "GL Densenet169": (12_484_480, 1664),
    "GL Densenet201": (18_092_928, 1920),
}
INCEPTION = 10_270_240 + (1024 + 1) * 512  # trunk and embedding layer
CLASSES = {"cub": 100, "cars": 98, "sop": 11_318}  # trained on


def cell(table: str, method: str, dataset: str, metric: str) -> Published:
    (found,) = (
        one for one in reference.published(table) if (one.method, one.dataset, one.metric) == (method, dataset, metric)
    )
    return found


def parameters(method: str, dataset: str) -> float | None:
    return cell("backbones", method, dataset, "Params").value


@pytest.mark.parametrize(
    ("table", "methods", "cells"), [("losses", 10, 14), ("ensembles", 16, 14), ("backbones", 6, 9)]
)
def test_every_method_has_every_cell_of_its_table_once(table: str, methods: int, cells: int) -> None:
    rows = reference.published(table)
    assert len(rows) == methods * cells
    assert len({(one.method, one.dataset, one.metric) for one in rows}) == methods * cells
    assert len({one.method for one in rows}) == methods


def test_the_second_table_has_the_sections_of_the_paper() -> None:
    methods: dict[str, list[str]] = {}
    for one in reference.published("ensembles"):
        names = methods.setdefault(one.section, [])
        names += [one.method] if one.method not in names else []
    assert methods == {
        "Loss+Sampling": ["Samp. Matt.", "Hier. triplet", "DAMLRRM", "DE-DSP", "RLL 1", "GPW"],
        "Teacher-Student": ["RKD"],
        "Loss+Ensembles": ["BIER 6", "HDC 3", "ABE 2", "ABE 8", "A-BIER 6", "D and C 8", "RLL 3"],
        "Ours": ["Ours 2-ensemble", "Ours 5-ensemble"],
    }


@pytest.mark.parametrize("table", MISSING)
def test_a_number_is_missing_exactly_where_a_dash_is_printed(table: str) -> None:
    missing: dict[str, set[tuple[str, str]]] = {}
    for one in reference.published(table):
        if one.value is None:
            missing.setdefault(one.method, set()).add((one.dataset, one.metric))
    assert missing == MISSING[table]


def test_numbers_are_kept_as_printed() -> None:
    assert cell("losses", "Triplet", "cub", "R@2").text == "55"
    assert cell("losses", "Lifted Structure", "cars", "R@1").text == "53.0"
    assert cell("losses", "Lifted Structure", "cars", "R@1").value == 53
    assert (cell("losses", "Proxy-NCA", "sop", "R@10").text, cell("losses", "Proxy-NCA", "sop", "R@10").value) == (
        "",
        None,
    )
    assert [cell("losses", "Ours", dataset, "R@1").value for dataset in CLASSES] == [65.5, 85.6, 75.7]
    for one in reference.published():
        assert re.fullmatch(r"\d*(\.\d)?", one.text), one
        assert one.value is None or one.metric.startswith("Params") or 0 < one.value < 100, one


@pytest.mark.parametrize("table", PRINTED)
def test_no_cell_of_a_table_differs_from_the_paper(table: str) -> None:
    cells = " ".join(one.text or "-" for one in reference.published(table))
    assert hashlib.sha256(cells.encode()).hexdigest()[:16] == PRINTED[table]


def test_recall_rises_with_k_unless_a_note_says_otherwise() -> None:
    recalls: dict[tuple[str, str, str], list[Published]] = {}
    for one in reference.published():
        if one.table != "text" and one.metric.startswith("R@") and one.value is not None:
            recalls.setdefault((one.table, one.method, one.dataset), []).append(one)
    falls = []
    for rows in recalls.values():
        rows.sort(key=lambda one: int(one.metric.removeprefix("R@")))
        falls += [after for before, after in pairwise(rows) if not (before.value or 0) < (after.value or 0)]
    assert [(one.method, one.dataset, one.metric) for one in falls] == [("DE-DSP", "cub", "R@8")]
    assert all(one.note for one in falls)


def test_misprints_stay_as_printed_and_carry_a_note() -> None:
    noted = {(one.table, one.method, one.dataset, one.metric) for one in reference.published() if one.note}
    assert {key for key in noted if key[0] != "text"} == NOTED
    assert cell("ensembles", "DE-DSP", "cub", "R@8").value == 61.7
    assert cell("ensembles", "Ours 2-ensemble", "cars", "NMI").value == 91.1
    assert cell("ensembles", "Ours 2-ensemble", "sop", "NMI").value == 72.6


def test_the_text_contradicts_the_table_on_the_group_loss() -> None:
    said = [one for one in reference.published("text") if one.method == "Group Loss" and one.metric == "R@1"]
    assert [(one.dataset, one.text) for one in said] == [("cub", "64.3"), ("cub", "64.3")]
    assert all("65.5" in one.note for one in said)
    assert "64.3" in cell("losses", "Ours", "cub", "R@1").note


def test_numbers_of_the_text_say_what_they_are() -> None:
    rows = reference.published("text")
    assert all(one.note and one.section for one in rows)
    assert len({(one.section, one.method, one.dataset, one.metric) for one in rows}) == len(rows)
    assert cell("text", "Group Loss, shifted similarities", "cub", "R@1").text == "51"
    assert cell("text", "Group Loss, Densenet161, tuned", "cars", "R@1").text == "90.7"
    assert cell("text", "Group Loss", "cars", "train R@1").text == "93"


@pytest.mark.parametrize("method", DENSENETS)
@pytest.mark.parametrize("dataset", CLASSES)
def test_parameters_of_densenets_are_a_trunk_and_a_classifier_with_bias(method: str, dataset: str) -> None:
    trunk, width = DENSENETS[method]
    assert parameters(method, dataset) == trunk + (width + 1) * CLASSES[dataset]


def test_parameters_of_inception_have_a_512d_layer_no_bias_and_two_cells_swapped() -> None:
    printed_under = {"cub": CLASSES["cars"], "cars": CLASSES["cub"], "sop": CLASSES["sop"]}
    for dataset, classes in printed_under.items():
        assert parameters("GL Inception v2", dataset) == INCEPTION + 512 * classes
        assert ("swapped" in cell("backbones", "GL Inception v2", dataset, "Params").note) == (dataset != "sop")


def test_parameters_of_softtriple_are_ten_centres_a_class() -> None:
    for dataset, classes in CLASSES.items():
        assert parameters("SofTriple", dataset) == INCEPTION + 512 * 10 * classes


def test_the_columns_use_our_names() -> None:
    for one in reference.published():
        assert one.dataset in CLASSES
        assert one.loss in {"", *losses.names()}
        assert not one.loss or one.cite == reference.key_of(one.loss), one
    assert cell("losses", "Classification", "cub", "R@1").loss == "normalized_softmax"
    assert cell("losses", "Bias Triplet", "cub", "R@1").loss == "bias_triplet"
    assert cell("ensembles", "DAMLRRM", "cub", "R@1").loss == ""
    assert cell("ensembles", "Ours 5-ensemble", "cub", "R@1").loss == "group"


def entries() -> dict[str, str]:
    """BibTeX entries by their key."""
    found = re.finditer(r"^@\w+\{([^,]+),$.*?^\}$", reference.bibliography(), re.MULTILINE | re.DOTALL)
    return {one[1]: one[0] for one in found}


def test_every_method_can_be_cited() -> None:
    assert {one.cite for one in reference.published()} <= set(entries())


@pytest.mark.parametrize("name", sorted({*losses.names()} - {*losses.plugins()}))
def test_a_loss_is_cited_by_the_paper_it_names(name: str) -> None:
    key = reference.key_of(name)
    assert key is not None
    entry, said = entries()[key], losses.get(name).cite
    first = re.split(r" et al\.| and |,", said)[0]
    (year,) = re.findall(r"\d{4}", said)
    assert f"author = {{{first}, " in entry
    assert f"year = {{{year}}}" in entry
    assert key.startswith(first.lower().replace("-", "") + year)


def test_two_papers_of_one_name_and_year_are_told_apart() -> None:
    assert "Ranked List Loss" in entries()[str(reference.key_of("ranked_list"))]
    assert "Multi-Similarity Loss" in entries()[str(reference.key_of("multi_similarity"))]


def test_datasets_and_the_fair_protocol_can_be_cited() -> None:
    assert {"wah2011cub", "krause2013cars", "song2016lifted", "liu2016deepfashion"} <= set(entries())
    assert "Reality Check" in entries()["musgrave2020reality"]


def test_what_is_not_ours_has_no_key() -> None:
    assert reference.key_of("pml:CircleLoss") is None


def test_every_entry_of_the_bibliography_is_complete() -> None:
    text = reference.bibliography()
    keys = re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)
    assert len(keys) == text.count("@") == len(set(keys))
    for key in keys:
        entry = entries()[key]
        fields = re.findall(r"^  (\w+) = \{.+\},$", entry, re.MULTILINE)
        assert {"author", "title", "year"} < set(fields)
        assert {"booktitle", "journal", "institution"} & set(fields)
        assert entry.count("{") == entry.count("}")


@pytest.mark.parametrize("table", ["losses", "ensembles", "backbones"])
def test_the_protocols_named_have_the_setting_of_the_numbers(table: str) -> None:
    setting = reference.setting(table)
    assert {*setting} - {"protocol"} <= {*SETTINGS}
    for name in setting["protocol"]:
        settings = config.protocol(name).settings
        assert (settings["resize"], settings["crop"]) == (setting["resize"], setting["crop"]) == (256, 227)
        backbone, dim = setting["backbone"], setting["dim"]
        if table == "backbones":
            backbone, dim = backbone["GL Inception v2"], dim["GL Inception v2"]
        assert settings["backbone"] == backbone == "bn_inception"
        assert settings["dim"] in dim


def test_every_row_of_the_backbones_has_its_backbone_and_dimension() -> None:
    setting = reference.setting("backbones")
    methods = {one.method for one in reference.published("backbones")}
    assert {*setting["backbone"]} == {*setting["dim"]} == methods
    assert setting["backbone"]["GL Densenet161"] == "densenet161"
    assert setting["dim"]["GL Densenet161"] is None


def test_the_paper_names_itself() -> None:
    assert reference.paper()["key"] == reference.key_of("group")
    assert f"title = {{{reference.paper()['title']}}}" in entries()[reference.paper()["key"]]


def test_a_configuration_without_reference_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CONFIGS", tmp_path)
    assert reference.published() == ()
    assert reference.published("losses") == ()
    assert reference.setting("losses") == {}
    assert reference.paper() == {}
    assert "musgrave2020reality" not in entries()
    assert "elezi2020group" in entries()  # from the class of the loss

"""The report: one file, nothing loaded, everything escaped; and in a real browser: it sorts, and nothing else runs."""

import base64
import hashlib
import re
import shutil
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.figures.registry import FIGURES
from harness.report import fairness
from harness.report.page import page
from harness.report.pictures import Missing, Picture
from harness.spec import Result
from harness.store import Store
from tests.conftest import Harness
from tests.factories import USUAL, an_experiment, cub, loss_row

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror="alert(2)">'
LATEX = r"50% of_{a} & #1 $\frac{x}$ ~^\ "
LONG = "Ünïcödé 漢字 " + "長" * 80
HOSTILE = [
    loss_row("group", SCRIPT, 0.7),
    loss_row("triplet", IMAGE, 0.6),
    loss_row("angular", LATEX, 0.5),
    loss_row("margin", LONG, 0.4),
]


class Elements(HTMLParser):
    """Tags with their attributes, and the text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("style", "script"):
            self.text += data

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def a_png(width: int = 1020, height: int = 600) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4)


# --- the text ---


def test_the_page_loads_nothing_and_only_its_own_script_may_run() -> None:
    text = page(USUAL, [Picture("cost", "emoji", a_png())])
    parsed = Elements(text)
    loaded = [a[name] for _, a in parsed.tags for name in ("src", "href", "srcset", "data", "action") if name in a]
    assert loaded
    assert all(str(one).startswith(("#", "data:image/png;base64,")) for one in loaded)
    assert not parsed.of("link")
    assert not re.search(r"@import|url\(", text)
    assert "://" not in text
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for a in parsed.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith(
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
    )


def test_its_parts_come_in_order_and_tell_what_is_in_them() -> None:
    text = page([*USUAL, loss_row("group", "Group Loss", 0.4, fold="val0")])
    parsed = Elements(text)
    names = ["tables", "figures", "search", "runs", "provenance", "fairness"]
    assert [a["id"] for a in parsed.of("section")] == names
    assert [a["href"] for a in parsed.of("a")][:6] == [f"#{name}" for name in names]
    assert "5 results: 2 final runs on test classes, 2 baselines, 1 run on validation classes." in parsed.text
    assert "Losses: Group Loss, Triplet. Datasets: Emoji. Protocols: quick." in parsed.text
    assert parsed.text.index("Search, protocol quick") > parsed.text.index("Losses, protocol quick")


def test_whatever_results_hold_is_text() -> None:
    changes = {"protocol": IMAGE, "backbone": SCRIPT, "weights": IMAGE, "fingerprint": SCRIPT}
    result = loss_row("group", SCRIPT, 0.7, **changes, knobs={IMAGE: SCRIPT})
    said = dict.fromkeys(("harness", "python", "commit", "device", "platform", "finished", "weights_sha256"), IMAGE)
    result = replace(
        result,
        cite=SCRIPT,
        metrics={**result.metrics, IMAGE: 0.5},
        conventions={"NMI": SCRIPT},
        provenance={**said, "packages": {SCRIPT: IMAGE}, "bad_images_skipped": SCRIPT},
    )
    picture, missing = Picture("cost", IMAGE, a_png()), Missing("grid", SCRIPT)
    parsed = Elements(page([result, *HOSTILE], [picture], [missing]))
    assert len(parsed.of("script")) == 1
    assert len(parsed.of("img")) == 1
    assert not [a for _, a in parsed.tags if any(name.startswith("on") for name in a)]
    for text in (SCRIPT, IMAGE, LATEX.strip(), LONG):
        assert text in parsed.text


def test_every_run_is_listed_with_the_command_that_makes_it_again() -> None:
    runs = [cub("group", 0.6, seed=3), cub("group", 0.5, fold="val0"), cub("margin", 0.7, checkpoint="best-test")]
    parsed = Elements(page([*runs, loss_row("triplet", "Triplet", 0.5, protocol="gone")]))
    assert all(one.id in parsed.text for one in runs)
    assert "harness run --losses group --dataset cub --protocol paper" in parsed.text
    assert "--set seed=3" in parsed.text
    assert "its protocol gone is not in configs/protocols" in parsed.text
    assert parsed.text.count("--losses group") == 2


def test_what_was_made_otherwise_is_counted() -> None:
    runs = [
        replace(one, provenance={"harness": version, "device": "A CPU", "threads": 2, "packages": {"torch": "2.9"}})
        for one, version in zip(USUAL, ("1.0", "1.0", "1.1", "1.1"), strict=True)
    ]
    text = page([*runs, cub("group", 0.5)])
    for what, which, count in (
        ("harness", "1.0", 2),
        ("harness", "1.1", 2),
        ("harness", "unknown", 1),
        ("device", "A CPU, threads: 2", 4),
        ("torch", "2.9", 4),
        ("dataset", "emoji, version 1, fingerprint abc", 4),
    ):
        row = f'<th scope="row">{what}</th><td class="words">{which}</td><td data-value="{count}">{count}</td>'
        assert row in text, what


def test_fairness_says_what_is_shared_what_differs_and_what_was_chosen_on_test_classes() -> None:
    runs = [cub("group", 0.6), cub("triplet", 0.5, crop=128), cub("margin", 0.7, checkpoint="best-test")]
    text = Elements(page(runs)).text
    (shared,) = re.findall(r"CUB-200-2011, bn_inception: all 3 final runs share (.*)\.\n", text)
    assert "resize = 256" in shared
    assert "crop =" not in shared
    assert "crop = 227 (2) | 128 (1); checkpoint = last (2) | best-test (1)." in text
    assert "Runs that chose their epoch on test classes: margin on cub (1)." in text
    assert "Its epoch was chosen on test classes. (losses · paper · bn_inception: margin;" in text
    assert "No stored run chose its epoch on test classes." in Elements(page(USUAL)).text


def test_values_of_a_search_whose_trials_were_removed_are_not_called_the_protocols() -> None:
    final = loss_row("triplet", "Triplet", 0.5)
    search = an_experiment(search=("0" * 12,), final=(final.id,), trials=1)
    assert "those with the best R@1" in fairness.notes([final], [], [search])
    assert "those with the best R@1" not in fairness.notes([final], [])


def test_several_configurations_of_a_loss_on_test_classes_are_named() -> None:
    text = Elements(page([cub("group", 0.6), cub("group", 0.6, seed=1), cub("group", 0.7, lr=0.5)])).text
    assert "Losses with several configurations on test classes: group on cub (paper, bn_inception): 2." in text
    assert "several configurations" not in Elements(page(USUAL)).text


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_has_its_caption_as_text(name: str) -> None:
    text = page(USUAL, [Picture(name, "emoji · quick", a_png(2040, 800))])
    (image,) = Elements(text).of("img")
    assert (image["width"], image["height"]) == ("1020", "400")
    assert image["alt"] == f"{name}: emoji · quick. {FIGURES[name].shows}"
    assert '<figure class="wide">' in text


def test_only_an_epoch_chosen_on_test_classes_is_called_so() -> None:
    """The protocol `released` chooses an epoch on a run's held-out classes: in a search on validation classes."""
    trial = cub("group", 0.5, checkpoint="best-test", fold="val0")
    parsed = Elements(page([trial]))
    assert "validation classes" in parsed.text[parsed.text.index(trial.id) :]
    assert "No stored run chose its epoch on test classes." in parsed.text


# --- the command ---


@pytest.mark.slow
def test_the_command_writes_what_can_be_drawn_and_names_what_cannot(
    small: Path, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert harness("run", "--losses", "triplet", "--dataset", "blobs").code == 0
    said = harness("report")
    file = tmp_path / "results" / "report.html"
    assert (said.code, said.out) == (0, f"{file}\n"), said.err
    parsed = Elements(file.read_text(encoding="utf-8"))
    assert [str(a["alt"]).split(":")[0] for a in parsed.of("img")] == ["retrieval", "tsne", "cost"]
    for a in parsed.of("img"):
        content = base64.b64decode(str(a["src"]).removeprefix("data:image/png;base64,"))
        assert content.startswith(b"\x89PNG")
        assert content.endswith(b"IEND\xaeB`\x82")
    assert (
        "curves: no final runs with curves of two epochs or more for blobs, tiny, test_efficientnet; create them with"
        in parsed.text
    )
    assert "ensemble: no ensembles for blobs" in parsed.text
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(shown.append(url)))  # False: there is none
    said = harness("report", "--open")
    assert said.code == 0
    assert shown == [file.as_uri()]
    assert said.err == f"harness: no browser here to open {file} with\n"


def test_mistakes_are_one_line(harness: Harness, tmp_path: Path) -> None:
    assert "no results in" in harness("report").err
    Store(tmp_path / "results").put(loss_row("group", "Group Loss", 0.7))
    for arguments, complaint in (
        (["--dataset", "emojy"], "no dataset with results named 'emojy'; did you mean 'emoji'"),
        (["--out", str(tmp_path)], f"cannot write {tmp_path}: Is a directory"),
    ):
        said = harness("report", *arguments)
        assert said.code == 2
        assert complaint in said.err
        assert said.err.count("\n") == 1


# --- in a browser ---


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Chrome"]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
        *("disable-background-networking", "disable-component-update", "disable-sync", "window-size=1200,900"),
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


def opened(browser: "Chrome", folder: Path, results: list[Result]) -> None:
    (folder / "report.html").write_text(page(results), encoding="utf-8")
    browser.get((folder / "report.html").as_uri())


def labels(browser: "Chrome") -> list[str]:
    """Of the first table, from the top."""
    table = browser.find_element("css selector", "#tables table")
    heads = table.find_elements("css selector", "tbody th")
    links = [one.find_element("css selector", ".links").text for one in heads]
    return [one.text.removesuffix(link).strip() for one, link in zip(heads, links, strict=True)]


@pytest.mark.slow
def test_a_click_on_a_head_sorts_and_a_second_one_reverses(browser: "Chrome", tmp_path: Path) -> None:
    values = {"group": ("Beta", 0.095), "triplet": ("Alpha", 0.7), "angular": ("Gamma", 0.6)}
    results = [loss_row(name, title, value) for name, (title, value) in values.items()]
    lacking = replace(loss_row("margin", "Delta", 0.5), metrics={"R@1": 0.65})
    opened(browser, tmp_path, [*results, lacking])
    assert labels(browser) == ["Gamma", "Beta", "Delta", "Alpha"]  # as the losses are called
    table = browser.find_element("css selector", "#tables table")
    name, first, *_, nmi = table.find_elements("css selector", "thead button")
    head = table.find_elements("css selector", "thead tr:last-child th")

    first.click()  # as numbers: 9.5 is less than 60
    assert labels(browser) == ["Alpha", "Delta", "Gamma", "Beta"]
    assert head[1].get_attribute("aria-sort") == "descending"
    first.click()
    assert labels(browser) == ["Beta", "Gamma", "Delta", "Alpha"]
    assert head[1].get_attribute("aria-sort") == "ascending"
    name.send_keys("\n")  # by the keyboard, and as words
    assert labels(browser) == ["Alpha", "Beta", "Delta", "Gamma"]
    assert [one.get_attribute("aria-sort") for one in head[:2]] == ["ascending", None]
    name.send_keys("\n")
    assert labels(browser) == ["Gamma", "Delta", "Beta", "Alpha"]
    for _ in range(2):  # what is missing stays last
        nmi.click()
        assert labels(browser)[-1] == "Delta"
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_a_row_links_to_its_runs(browser: "Chrome", tmp_path: Path) -> None:
    runs = [loss_row("group", "Group Loss", 0.5, seed=seed) for seed in range(3)]
    opened(browser, tmp_path, runs)
    links = browser.find_elements("css selector", "#tables table:first-of-type .links a")[:3]
    assert [link.get_attribute("title") for link in links] == [run.id for run in runs]
    head = browser.find_element("id", f"run-{runs[1].id}")
    assert not head.is_displayed()  # the list is closed
    links[1].click()
    assert head.is_displayed()
    assert head.text == runs[1].id


@pytest.mark.slow
def test_hostile_names_are_shown_and_nothing_of_them_runs(browser: "Chrome", tmp_path: Path) -> None:
    from selenium.webdriver.support.expected_conditions import alert_is_present

    opened(browser, tmp_path, HOSTILE)
    assert not alert_is_present()(browser)
    assert set(labels(browser)) == {SCRIPT, IMAGE, LATEX.strip(), LONG}
    browser.find_element("css selector", "summary").click()
    shown = browser.find_element("css selector", "#runs tbody").text
    assert all(text in shown for text in (SCRIPT, IMAGE, LATEX.strip(), LONG))
    assert browser.find_elements("css selector", "img, [onerror], main script") == []
    assert len(browser.find_elements("css selector", "script")) == 1
    assert not alert_is_present()(browser)
    assert [one for one in browser.get_log("browser") if one["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_what_slips_in_does_not_run(browser: "Chrome", tmp_path: Path) -> None:
    """The policy is a second wall: even unescaped, a script or a handler stays dead."""
    from selenium.webdriver.support.expected_conditions import alert_is_present

    text = page(USUAL).replace("</h1>", f"</h1>{SCRIPT}<b onclick='alert(3)' id='b'>b</b>", 1)
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    browser.get((tmp_path / "report.html").as_uri())
    browser.find_element("id", "b").click()
    assert not alert_is_present()(browser)
    assert "Content Security Policy" in str(browser.get_log("browser"))


@pytest.mark.slow
def test_a_wide_table_scrolls_in_its_own_place(browser: "Chrome", tmp_path: Path) -> None:
    wide = [cub(name, 0.5, dataset=dataset) for name in ("group", "triplet") for dataset in ("cub", "cars", "sop")]
    opened(browser, tmp_path, [*wide, *HOSTILE])
    for width in (1200, 500):
        browser.set_window_size(width, 900)
        root = "document.documentElement"
        assert browser.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth")
    assert browser.execute_script(
        "const one = document.querySelector('.scroll'); return one.scrollWidth > one.clientWidth"
    )


def test_losses_may_be_sorted_by_a_metric_the_highest_first() -> None:
    rows = [
        loss_row("angular", "Angular", 0.5),
        loss_row("group", "Group Loss", 0.7),
        loss_row("margin", "Margin", 0.6),
    ]
    names = re.compile("Angular|Group Loss|Margin")
    text = page(rows, sort="R@1")
    assert names.findall(text.split("</h2>")[1])[:3] == ["Group Loss", "Margin", "Angular"]
    assert names.findall(text.split(">Runs</h2>")[1])[:3] == ["Group Loss", "Margin", "Angular"]
    assert names.findall(page(rows).split("</h2>")[1])[:3] == ["Angular", "Group Loss", "Margin"]

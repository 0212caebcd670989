"""Sphinx: the site of docs/. The pages are Markdown; generate.py writes the reference pages before they are read."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import harness  # noqa: E402

generate.write(HERE / "generated")

project = "metric-loss-harness"
author = "The metric-loss-harness authors"
release = version = harness.__version__

extensions = ["myst_parser"]
highlight_language = "text"
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # a page copied from the repository's root may begin below a first-level heading

html_theme = "pydata_sphinx_theme"
html_title = "metric-loss-harness"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": False,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {name: [] for name in ("index", "architecture", "generated/CONTRIBUTING", "generated/CHANGELOG")}


def lead_to_copies(app: Any, docname: str, source: list[str]) -> None:
    """A link to a Markdown file outside docs/ leads to its copy in docs/generated."""
    source[0] = re.sub(r"\]\(\.\./([A-Z]+\.md|results/[^)]+\.md)\)", r"](/generated/\1)", source[0])


def setup(app: Any) -> None:
    app.connect("source-read", lead_to_copies)

"""Sphinx: the site of docs/. The pages are Markdown; generate.py writes the reference pages before they are read."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import harness  # noqa: E402

generate.write(HERE / "generated")

project = "metric-loss-harness"
author = "The metric-loss-harness authors"
release = version = harness.__version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
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
html_sidebars = {"index": []}

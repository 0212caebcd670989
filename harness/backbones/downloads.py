"""Weights that neither timm's hub nor a package has: their addresses, and where they lie on this machine."""

from pathlib import Path

from harness.files import cache_home

# Plain http, so check the file: the hex in its name is the beginning of its sha256, torch's convention.
URLS = {"bn_inception": "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"}


def file_name(backbone: str) -> str:
    return URLS[backbone].rsplit("/", 1)[-1]


def sha256_prefix(backbone: str) -> str:
    """How the sha256 of the file begins, as its name says."""
    return file_name(backbone).rsplit("-", 1)[-1].partition(".")[0]


def place(backbone: str) -> Path:
    """Where `harness weights download` puts the file, and `harness run` looks for it."""
    return cache_home() / "weights" / file_name(backbone)

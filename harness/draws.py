"""What a draw of random search gives: the same whatever else is searched, and however many draws there are."""

import random
from collections.abc import Mapping
from typing import Any

from harness.spec import LossSpec
from losses.space import Choice, Range

# What 0.1.0 drew from one generator per draw, in the order of names. Stored search trials were drawn so. These names
# stay together; any other name has a generator of its own, so that a range added later moves no older value.
DRAWN_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "angular": ("alpha", "weight"),
    "arcface": ("lr_factor", "margin", "scale"),
    "contrastive": ("margin",),
    "deep_spectral": (),
    "facility_location": ("gamma",),
    "group": ("anchors", "cross_entropy", "temperature"),
    "lifted_structure": ("margin",),
    "margin": ("beta", "betas", "lr_factor", "margin"),
    "multi_similarity": ("alpha", "base", "beta", "epsilon"),
    "n_pairs": ("l2",),
    "normalized_softmax": ("lr_factor", "temperature"),
    "proxy_anchor": ("alpha", "delta", "lr_factor"),
    "proxy_nca": ("lr_factor", "scale"),
    "ranked_list": ("T_n", "alpha", "balance", "margin"),
    "soft_triple": ("centres", "gamma", "lr_factor", "margin", "scale", "tau"),
    "softmax": (),
    "triplet": ("margin",),
}
DRAWN_FROM_PROTOCOLS = ("lr", "weight_decay")  # the same, of the ranges in a protocol's [search]


def draw(loss: LossSpec, space: Mapping[str, Range | Choice], number: int) -> dict[str, Any]:
    """Draw `number` of a loss from a space."""
    together = random.Random(f"{loss.name}:{number}")
    values = {}
    for name in sorted(space):
        alone = random.Random(f"{loss.name}:{number}:{name}")
        values[name] = space[name].sample(together if drawn_together(loss, name) else alone)
    return values


def drawn_together(loss: LossSpec, name: str) -> bool:
    if name in DRAWN_FROM_PROTOCOLS:
        return True
    if name == "samples_per_class":
        return False
    if loss.shipped:
        return name in DRAWN_TOGETHER.get(loss.name, ())
    return name == "lr_factor" or name not in loss.added

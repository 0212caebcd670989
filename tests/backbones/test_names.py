"""The names of networks, as they are read from timm's source."""

import pytest
import timm

from harness.backbones import names, network  # noqa: F401 (registers bn_inception)
from harness.spec import UserError


def test_no_name_that_timm_knows_is_refused() -> None:
    for name in (*timm.list_models(), "bn_inception", "resnet18.a1_in1k", "tv_resnet50"):
        names.check(name)


def test_nearly_all_names_are_read_so_that_typos_get_a_suggestion() -> None:
    missing = set(timm.list_models()) - set(names.known())
    assert len(missing) < 0.01 * len(timm.list_models()), missing
    with pytest.raises(UserError, match="no backbone named 'resnet19'; did you mean resnet18"):
        names.check("resnet19")

"""The bridge to pytorch-metric-learning: the same numbers, its constructor's knobs, and clear words where it ends."""

import inspect
import math
import pickle
from importlib.metadata import version

import pytest
import torch
from pytorch_metric_learning import losses as theirs

import losses
from harness import config
from harness.assignments import settings_and_knobs
from harness.spec import UserError
from losses.contract import learns_from_what_its_family_needs
from losses.pml import REFUSED, bridge
from tests.losses.factories import dot, unit_rows

X = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(4).repeat_interleave(3)
UNLABELLED = ("ManifoldLoss", "VICRegLoss")  # they take no labels
WRONG = [name for name, of in REFUSED if of == version("pytorch-metric-learning")]
ALL = [
    key
    for key, one in vars(theirs).items()
    if isinstance(one, type)
    and issubclass(one, theirs.BaseMetricLossFunction)
    and key not in ("BaseMetricLossFunction", "GenericPairLoss", *UNLABELLED, *WRONG)
]


@pytest.mark.parametrize("name", ALL)
def test_every_loss_there_trains_here_and_can_be_pickled(name: str) -> None:
    found = bridge(name)
    knobs = inspect.signature(found.__init__).parameters.values()
    needed = {knob.name: 1.0 for knob in knobs if knob.kind is knob.KEYWORD_ONLY and knob.default is knob.empty}
    torch.manual_seed(0)
    loss = found(4, 8, **needed)
    x = X.clone().requires_grad_()
    value = loss(x, Y)
    value.backward()
    assert value.shape == ()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    twin = pickle.loads(pickle.dumps(loss))
    assert torch.equal(twin(X, Y), loss(X, Y))


def test_it_is_theirs_to_the_bit() -> None:
    for name, knobs in (("CircleLoss", {"m": 0.3, "gamma": 64}), ("TripletMarginLoss", {"margin": 0.2, "swap": True})):
        assert torch.equal(bridge(name)(4, 8, **knobs)(X, Y), getattr(theirs, name)(**knobs)(X, Y))


def test_classes_and_dimensions_are_filled_in_where_it_wants_them() -> None:
    loss = bridge("SubCenterArcFaceLoss")(4, 8, sub_centers=2.0)
    assert {tuple(parameter.shape) for parameter in loss.parameters()} == {(8, 4 * 2)}


def test_knobs_are_its_constructors_and_those_of_what_it_is_made_of() -> None:
    spec = config.loss("pml:CircleLoss")
    assert {name: field.default for name, field in spec.knobs.items()} == {"lr_factor": 1.0, "m": 0.4, "gamma": 80.0}
    assert "softmax_scale" in config.loss("pml:ProxyNCALoss").knobs
    assert config.loss("pml:TripletMarginLoss").knobs["swap"].parse("true") is True
    settings, knobs = settings_and_knobs(["pml:CircleLoss.m=0.25"], (spec,))
    assert (settings, knobs) == ({}, {"pml:CircleLoss": {"m": 0.25}})


def test_those_with_a_vector_per_class_are_no_pair_losses() -> None:
    proxies = [bridge(name) for name in ALL if bridge(name).family == "proxy"]
    assert {loss.__name__ for loss in proxies} >= {"ArcFaceLoss", "CosFaceLoss", "ProxyNCALoss", "SoftTripleLoss"}
    assert not {loss.__name__ for loss in proxies} & {"TripletMarginLoss", "CircleLoss", "NCALoss", "MarginLoss"}
    for loss in proxies:
        learns_from_what_its_family_needs(loss)


def test_a_numbers_whole_where_theirs_is() -> None:
    assert bridge("SoftTripleLoss")(4, 8, centers_per_class=5.0).original.centers_per_class == 5


def smooth_ap(x: torch.Tensor, y: torch.Tensor, temperature: float = 0.01) -> float:
    """Brown et al., query by query, as their released code has it: the query is in its own ranking."""
    rows, labels = unit_rows(x), y.tolist()
    n, precisions = len(labels), []
    for i in range(n):
        similar = [dot(rows[i], row) for row in rows]

        def rank(j: int, among: list[int], similar: list[float] = similar) -> float:
            closer = [1 / (1 + math.exp(min((similar[j] - similar[k]) / temperature, 700))) for k in among if k != j]
            return 1 + sum(closer)

        own = [j for j in range(n) if labels[j] == labels[i]]
        precisions.append(sum(rank(j, own) / rank(j, list(range(n))) for j in own) / len(own))
    return 1 - sum(precisions) / n


@pytest.mark.skipif("SmoothAPLoss" not in WRONG, reason="of version 2.9.0")
def test_smooth_ap_of_2_9_0_is_wrong_and_refused_with_the_reason() -> None:
    """The same formula where a batch has as many classes as images per class, another one elsewhere."""
    original = theirs.SmoothAPLoss()
    square = torch.arange(4).repeat_interleave(4)
    x = torch.randn(18, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
    assert original(x[:16], square).item() == pytest.approx(smooth_ap(x[:16], square), abs=1e-5)
    for y in (torch.arange(6).repeat_interleave(3), torch.arange(3).repeat_interleave(6)):
        assert original(x, y).item() != pytest.approx(smooth_ap(x, y), abs=1e-3)
    assert original(x[order], square[order]).item() != pytest.approx(smooth_ap(x[:16], square), abs=1e-3)
    with pytest.raises(UserError, match=r"^pml:SmoothAPLoss: pytorch-metric-learning 2.9.0: its value is wrong"):
        config.loss("pml:SmoothAPLoss")


def test_its_version_is_the_packages() -> None:
    assert config.loss("pml:CircleLoss").version == version("pytorch-metric-learning")


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UserError, match=r"named 'CircelLoss'; did you mean 'CircleLoss'"):
        config.loss("pml:CircelLoss")
    with pytest.raises(UserError, match="GenericPairLoss"):
        config.loss("pml:GenericPairLoss")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    bridge.cache_clear()
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(UserError, match=r"pip install 'metric-loss-harness\[pml\]'"):
        config.loss("pml:CircleLoss")
    bridge.cache_clear()


def test_the_registry_gives_it_by_name() -> None:
    assert losses.get("pml:CircleLoss") is bridge("CircleLoss")
    assert "pml" not in losses.names()

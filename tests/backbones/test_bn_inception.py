"""BN-Inception against its published layer table, a functional re-computation and the paper's parameter counts."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.backbones import bn_inception

# module: in | 1x1 | 3x3 reduce > 3x3 | double 3x3 reduce > first > second | pool projection; stride 2 where none
TABLE = """
3a:  192 |  64 |  64 >  64 |  64 >  96 >  96 |  32
3b:  256 |  64 |  64 >  96 |  64 >  96 >  96 |  64
3c:  320 |     | 128 > 160 |  64 >  96 >  96 |
4a:  576 | 224 |  64 >  96 |  96 > 128 > 128 | 128
4b:  576 | 192 |  96 > 128 |  96 > 128 > 128 | 128
4c:  576 | 160 | 128 > 160 | 128 > 160 > 160 | 128
4d:  608 |  96 | 128 > 192 | 160 > 192 > 192 | 128
4e:  608 |     | 128 > 192 | 192 > 256 > 256 |
5a: 1056 | 352 | 192 > 320 | 160 > 224 > 224 | 128
5b: 1024 | 352 | 192 > 320 | 192 > 224 > 224 | 128
"""
BRANCHES = [
    [("1x1", 1)],
    [("3x3_reduce", 1), ("3x3", 3)],
    [("double_3x3_reduce", 1), ("double_3x3_1", 3), ("double_3x3_2", 3)],
    [("pool_proj", 1)],
]


def convolutions() -> Iterator[tuple[str, int, int, int]]:
    """Name, inputs, outputs and kernel of every convolution of the table, and of the stem."""
    yield from [("conv1_7x7_s2", 3, 64, 7), ("conv2_3x3_reduce", 64, 64, 1), ("conv2_3x3", 64, 192, 3)]
    for line in TABLE.strip().splitlines():
        module, cells = line.split(":")
        inputs, *branches = cells.split("|")
        for names, branch in zip(BRANCHES, branches, strict=True):
            widths = [int(width) for width in branch.split(">") if width.strip()]
            for (name, kernel), before, after in zip(names, [int(inputs), *widths], widths, strict=False):
                yield f"inception_{module}_{name}", before, after, kernel


@cache
def weights(batch_norm: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """Random weights as a file would hold them, batch normalisations in the shape (*batch_norm, c)."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    stored = {"last_linear.weight": draw(1000, 1024), "last_linear.bias": draw(1000)}
    for name, inputs, outputs, kernel in convolutions():
        stored[f"{name}.weight"] = draw(outputs, inputs, kernel, kernel) / (inputs * kernel * kernel) ** 0.5
        stored[f"{name}.bias"] = draw(outputs)
        for leaf in ("weight", "bias", "running_mean"):
            stored[f"{name}_bn.{leaf}"] = draw(*batch_norm, outputs)
        stored[f"{name}_bn.running_var"] = draw(*batch_norm, outputs).square() + 0.5
    return stored


def parameters(name: str) -> int:
    """Parameters of a timm model without its classifier."""
    with torch.device("meta"):
        return sum(p.numel() for p in timm.create_model(name, num_classes=0).parameters())


@pytest.fixture(scope="module")
def model() -> Any:
    model = timm.create_model("bn_inception").eval()
    model.load_state_dict(weights(), strict=True)
    return model


def test_a_state_dict_written_from_the_published_table_loads_strictly(model: Any) -> None:
    names = {key for key in model.state_dict() if not key.endswith("num_batches_tracked")}
    assert names == weights().keys()
    assert len([*convolutions()]) == 69


def test_a_weight_file_with_two_dimensional_batch_norms_loads(model: Any, tmp_path: Path) -> None:
    file = tmp_path / "bn_inception.pth"
    torch.save(weights(batch_norm=(1,)), file)
    loaded = timm.create_model("bn_inception", pretrained=True, pretrained_cfg_overlay={"file": str(file)})
    for key, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[key]), key


def test_it_behaves_as_a_timm_model(model: Any) -> None:
    assert timm.is_model("bn_inception")
    assert model.num_features == 1024
    assert isinstance(model.get_classifier(), nn.Linear)
    assert model.default_cfg["classifier"] == "last_linear"
    assert model.default_cfg["first_conv"] == "conv1_7x7_s2"

    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    small: Any = timm.create_model("bn_inception", num_classes=7, global_pool="max").eval()
    features = small.forward_features(images)
    assert small(images).shape == (2, 7)
    assert torch.equal(small.forward_head(features, pre_logits=True), features.amax((2, 3)))
    small.reset_classifier(0, global_pool="avgmax")
    assert sum(1 for key in small.state_dict() if "last_linear" in key) == 0
    torch.testing.assert_close(small(images), (features.amax((2, 3)) + features.mean((2, 3))) / 2)


def test_preprocessing_subtracts_104_117_128_from_bgr_bytes() -> None:
    pixel = torch.tensor([200.0, 100.0, 50.0])  # blue, green, red
    config: Any = timm.get_pretrained_cfg("bn_inception")
    normalised = (pixel / 255 - torch.tensor(config.mean)) / torch.tensor(config.std)
    torch.testing.assert_close(normalised, torch.tensor([96.0, -17.0, -78.0]))
    assert bn_inception.CHANNELS == "BGR"


def unit(name: str, x: Tensor, stride: int = 1) -> Tensor:
    """Convolution, batch normalisation, ReLU."""
    stored, norm = weights(), f"{name}_bn"
    kernel = stored[f"{name}.weight"]
    x = F.conv2d(x, kernel, stored[f"{name}.bias"], stride=stride, padding=kernel.shape[-1] // 2)
    mean, var = stored[f"{norm}.running_mean"], stored[f"{norm}.running_var"]
    return F.batch_norm(x, mean, var, stored[f"{norm}.weight"], stored[f"{norm}.bias"], eps=1e-5).clamp(min=0)


def windows(x: Tensor, stride: int, padding: tuple[int, int], fill: float) -> Tensor:
    """Every 3x3 window of the padded map, (n, c, rows, columns, 9)."""
    return F.pad(x, padding * 2, value=fill).unfold(2, 3, stride).unfold(3, 3, stride).flatten(4)


def halved(x: Tensor) -> Tensor:
    """Maxima of 3x3 windows, stride 2, sizes rounded up: the last window of an even map hangs over by one."""
    return windows(x, 2, (0, 1), -torch.inf).amax(-1)


def reference(module: str, x: Tensor) -> Tensor:
    """One inception module on maps of even size."""
    at = f"inception_{module}"
    stride = 2 if module in ("3c", "4e") else 1
    three = unit(f"{at}_3x3", unit(f"{at}_3x3_reduce", x), stride)
    double = unit(f"{at}_double_3x3_1", unit(f"{at}_double_3x3_reduce", x))
    double = unit(f"{at}_double_3x3_2", double, stride)
    if stride == 2:
        return torch.cat([three, double, halved(x)], dim=1)
    largest = windows(x, 1, (1, 1), -torch.inf).amax(-1)
    mean = windows(x, 1, (1, 1), 0).sum(-1) / 9  # the padding counts: always a ninth of the sum
    pooled = largest if module == "5b" else mean
    return torch.cat([unit(f"{at}_1x1", x), three, double, unit(f"{at}_pool_proj", pooled)], dim=1)


@pytest.mark.parametrize(("module", "width"), [("3a", 192), ("3c", 320), ("4e", 608), ("5b", 1024)])
def test_a_module_is_its_branches_side_by_side(model: Any, module: str, width: int) -> None:
    x = torch.rand(2, width, 6, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model.inception(module, x), reference(module, x), rtol=1e-4, atol=1e-4)


def test_the_network_is_its_stem_and_its_modules_in_the_table_s_order(model: Any) -> None:
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    x = halved(unit("conv1_7x7_s2", images, 2))
    x = halved(unit("conv2_3x3", unit("conv2_3x3_reduce", x)))
    for line in TABLE.split():
        if line.endswith(":"):
            x = reference(line[:-1], x)
    with torch.no_grad():
        torch.testing.assert_close(model.forward_features(images), x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("size", "last"), [(224, 7), (227, 7), (112, 4), (32, 1)])
def test_the_last_map_is_7x7_at_224_and_at_227_and_odd_maps_are_no_error(size: int, last: int) -> None:
    with torch.device("meta"):
        model: Any = timm.create_model("bn_inception", num_classes=0).eval()
        images = torch.empty(1, 3, size, size)
        assert model.forward_features(images).shape == (1, 1024, last, last)
        assert model(images).shape == (1, 1024)


# Table "densenets" of the paper, columns CUB, Cars, SOP, as printed
CLASSES = {"CUB": 100, "Cars": 98, "SOP": 11_318}
PRINTED = {
    "densenet121": {"CUB": 7056356, "Cars": 7054306, "SOP": 18554806},
    "densenet161": {"CUB": 26692900, "Cars": 26688482, "SOP": 51473462},
    "densenet169": {"CUB": 12650980, "Cars": 12647650, "SOP": 31328950},
    "densenet201": {"CUB": 18285028, "Cars": 18281186, "SOP": 39834806},
}
WIDTHS = {"densenet121": 1024, "densenet161": 2208, "densenet169": 1664, "densenet201": 1920}
PRINTED_INCEPTION = {"CUB": 10845216, "Cars": 10846240, "SOP": 16589856}


@pytest.mark.parametrize("name", PRINTED)
def test_the_paper_counts_a_densenet_and_its_classifier(name: str) -> None:
    trunk = parameters(name)
    assert {dataset: trunk + (WIDTHS[name] + 1) * classes for dataset, classes in CLASSES.items()} == PRINTED[name]


def test_the_trunk_has_10270240_parameters() -> None:
    assert parameters("bn_inception") == 10_270_240


def test_the_paper_counts_an_inception_with_512_dimensions_and_a_classifier_without_bias() -> None:
    trunk = parameters("bn_inception") + (1024 + 1) * 512
    assert trunk == 10_795_040
    counts = {dataset: trunk + 512 * classes for dataset, classes in CLASSES.items()}
    # the paper prints the count for Cars' 98 classes under CUB, and that for CUB's 100 under Cars
    swapped = {"CUB": counts["Cars"], "Cars": counts["CUB"], "SOP": counts["SOP"]}
    assert swapped == PRINTED_INCEPTION

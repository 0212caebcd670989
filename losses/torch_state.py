"""torch's global settings that change numbers: one loss may change them, and no other loss's numbers may follow."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch


@dataclass(frozen=True)
class Setting:
    """A global setting of torch."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    usual: Any  # its value when torch is imported


def attribute(name: str, owner: Any, attribute: str, usual: Any) -> Setting:
    return Setting(name, partial(getattr, owner, attribute), partial(setattr, owner, attribute), usual)


def set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # naming the CPU would slow every call down


def anomaly_mode() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def set_anomaly_mode(modes: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*modes)


def deterministic_mode() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def set_deterministic_mode(modes: tuple[bool, bool]) -> None:
    enabled, warn_only = modes
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by two interfaces of torch, which disagree
        return "mixed"


def set_matmul_precision(precision: str) -> None:
    torch.set_float32_matmul_precision("highest" if precision == "mixed" else precision)


def set_autocast(device: str, enabled: bool) -> None:
    torch.set_autocast_enabled(device, enabled)


CPU: Any = torch.backends.mkldnn  # Any: their stubs lack a part
CUDNN: Any = torch.backends.cudnn
CUDA: Any = torch.backends.cuda
SETTINGS = (
    Setting("default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    Setting("default device", torch.get_default_device, set_default_device, torch.device("cpu")),
    Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled, True),
    Setting("anomaly mode", anomaly_mode, set_anomaly_mode, (False, True)),
    Setting("deterministic mode", deterministic_mode, set_deterministic_mode, (False, False)),
    Setting("threads", torch.get_num_threads, torch.set_num_threads, 1),
    Setting("autocast on a CPU", partial(torch.is_autocast_enabled, "cpu"), partial(set_autocast, "cpu"), False),
    Setting("autocast on a GPU", partial(torch.is_autocast_enabled, "cuda"), partial(set_autocast, "cuda"), False),
    attribute("mkldnn", CPU, "enabled", True),
    attribute("cudnn", CUDNN, "enabled", True),
    attribute("cudnn.benchmark", CUDNN, "benchmark", False),
    attribute("cudnn.deterministic", CUDNN, "deterministic", False),
    attribute("fp32_precision", torch.backends, "fp32_precision", "none"),
    attribute("mkldnn.fp32_precision", CPU, "fp32_precision", "none"),
    attribute("mkldnn.conv.fp32_precision", CPU.conv, "fp32_precision", "none"),
    attribute("cudnn.fp32_precision", CUDNN, "fp32_precision", "none"),
    attribute("cudnn.conv.fp32_precision", CUDNN.conv, "fp32_precision", "tf32"),
    Setting("flash attention", CUDA.flash_sdp_enabled, CUDA.enable_flash_sdp, True),  # these hold on a CPU too
    Setting("memory-efficient attention", CUDA.mem_efficient_sdp_enabled, CUDA.enable_mem_efficient_sdp, True),
    Setting("plain attention", CUDA.math_sdp_enabled, CUDA.enable_math_sdp, True),
    Setting("cudnn attention", CUDA.cudnn_sdp_enabled, CUDA.enable_cudnn_sdp, True),
    Setting(
        "half-precision sums of plain attention",
        CUDA.fp16_bf16_reduction_math_sdp_allowed,
        CUDA.allow_fp16_bf16_reduction_math_sdp,
        False,
    ),
    Setting("matmul precision", matmul_precision, set_matmul_precision, "highest"),
)


def current() -> dict[str, Any]:
    """The settings as they are."""
    return {setting.name: setting.get() for setting in SETTINGS}


@contextmanager
def kept() -> Iterator[None]:
    """Whatever happens inside, the settings are afterwards what they were before."""
    before = current()
    try:
        yield
    finally:
        for setting in SETTINGS:
            setting.set(before[setting.name])


@contextmanager
def usual(threads: int) -> Iterator[None]:
    """The usual settings and so many threads, whatever was set before; it is set again afterwards."""
    with kept():
        for setting in SETTINGS:
            setting.set(setting.usual)
        torch.set_num_threads(threads)
        yield

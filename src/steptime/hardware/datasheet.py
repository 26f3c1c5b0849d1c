"""Peaks from datasheets: the fallback where nothing was measured.

One law: dense figures only. Datasheets like to print the rate "with sparsity", twice what a dense product can reach;
those are halved here. Rates: TFLOP/s with multiply and add counted as two; bandwidth: GB/s, decimal.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptime.hardware.machine import Machine, Rate
from steptime.quantities import Estimate


@dataclass(frozen=True, slots=True)
class Datasheet:
    """A device as its maker describes it. pattern: found in the driver's name of the device, lower case."""

    pattern: str
    float32: float
    tf32: float | None
    half: float | None
    bfloat16: bool
    bandwidth: float
    title: str


# The first pattern that is found decides: the more special name stands first.
DATASHEETS = (
    Datasheet("nvidia b200", 75, 1125, 2250, True, 8000, "NVIDIA HGX B200 specifications, per GPU, dense"),
    Datasheet("nvidia h200", 67, 494.5, 989.5, True, 4800, "NVIDIA H200 datasheet, SXM, sparse rates halved"),
    Datasheet("gh200 480gb", 67, 494.5, 989.5, True, 4000, "NVIDIA GH200 datasheet, HBM3, sparse rates halved"),
    Datasheet("h100 pcie", 51, 378, 756.5, True, 2000, "NVIDIA H100 PCIe 80GB datasheet, sparse rates halved"),
    Datasheet("h100 nvl", 60, 417.5, 835.5, True, 3900, "NVIDIA H100 NVL datasheet, sparse rates halved"),
    Datasheet("nvidia h100", 67, 494.5, 989.5, True, 3350, "NVIDIA H100 datasheet, SXM, sparse rates halved"),
    Datasheet("a100-pcie-40gb", 19.5, 156, 312, True, 1555, "NVIDIA A100 Tensor Core GPU datasheet, 40GB"),
    Datasheet("a100-sxm4-40gb", 19.5, 156, 312, True, 1555, "NVIDIA A100 Tensor Core GPU datasheet, 40GB"),
    Datasheet("a100 80gb pcie", 19.5, 156, 312, True, 1935, "NVIDIA A100 Tensor Core GPU datasheet, 80GB PCIe"),
    Datasheet("a100", 19.5, 156, 312, True, 2039, "NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM"),
    Datasheet("l40s", 91.6, 183, 362, True, 864, "NVIDIA L40S datasheet, sparse rates halved"),
    Datasheet("nvidia l4", 30.3, 60, 121, True, 300, "NVIDIA L4 Tensor Core GPU datasheet, sparse rates halved"),
    Datasheet("a10g", 31.2, 35, 70, True, 600, "AWS EC2 G5 and NVIDIA A10G data, dense"),
    Datasheet("nvidia a10", 31.2, 62.5, 125, True, 600, "NVIDIA A10 Tensor Core GPU datasheet"),
    Datasheet("v100-pcie", 14, None, 112, False, 900, "NVIDIA V100 Tensor Core GPU datasheet, PCIe"),
    Datasheet("v100", 15.7, None, 125, False, 900, "NVIDIA V100 Tensor Core GPU datasheet, SXM2"),
    Datasheet("tesla t4", 8.1, None, 65, False, 300, "NVIDIA T4 Tensor Core GPU datasheet"),
    Datasheet("rtx 4090", 82.6, 82.6, 165.2, True, 1008, "NVIDIA Ada architecture whitepaper, FP32 accumulate"),
    Datasheet("rtx 3090", 35.6, 35.6, 71, True, 936, "NVIDIA GA102 whitepaper, FP32 accumulate"),
    Datasheet("mi300x", 163.4, 653.7, 1307.4, True, 5300, "AMD Instinct MI300X data sheet, dense"),
    Datasheet("mi250x", 95.7, None, 383, True, 3277, "AMD Instinct MI250X data sheet, both dies"),
)


def look_up(name: str, device: str = "cuda") -> Machine | None:
    """The peaks of a device by the driver's name of it, None for a device that the table does not have."""
    wanted = name.lower()
    sheet = next((sheet for sheet in DATASHEETS if sheet.pattern in wanted), None)
    if sheet is None:
        return None
    rates = {"float32": sheet.float32, "tf32": sheet.tf32, "float16": sheet.half}
    if sheet.bfloat16:
        rates["bfloat16"] = sheet.half
    matrix = tuple(Rate(kind, _exact(rate * 1e12, "FLOP/s")) for kind, rate in rates.items() if rate is not None)
    return Machine(device, name, matrix, _exact(sheet.bandwidth * 1e9, "B/s"), source=sheet.title)


def _exact(value: float, unit: str) -> Estimate:
    return Estimate(value, value, value, 1, unit)

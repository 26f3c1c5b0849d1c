"""Peaks from datasheets: the fallback if nothing was measured.

One law: dense figures only. Datasheets like to print the rate "with sparsity", twice what a dense matmul can reach;
those are halved here. Rates: TFLOP/s with multiply and add counted as two, of the Tensor Cores with 32-bit accumulation
if a dtype has them, else of the ordinary ones; bandwidth: GB/s, decimal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from steptime.machine.machine import Machine, Rate
from steptime.quantities import Estimate


@dataclass(frozen=True, slots=True)
class Datasheet:
    """Peaks of a device as its maker states them. pattern: regular expression for the driver's name, lower case;
    bfloat16: True if as fast as `half`. Rates by dtype in TFLOP/s; eight: of float8; integer: of int8, in TOP/s."""

    pattern: str
    float32: float
    tf32: float | None
    half: float | None
    bfloat16: bool
    bandwidth: float
    title: str
    eight: float | None = None
    integer: float | None = None


V100 = "NVIDIA V100 Tensor Core GPU datasheet"
A100 = "NVIDIA A100 Tensor Core GPU datasheet"
H100 = "NVIDIA H100 Tensor Core GPU datasheet, sparse rates halved"
H200 = "NVIDIA H200 Tensor Core GPU datasheet, sparse rates halved"
BLACKWELL = "NVIDIA Blackwell datasheet, HGX B200 and GB200, per GPU, dense"
GH200 = "NVIDIA GH200 Grace Hopper datasheet, sparse rates halved"
ADA = "NVIDIA Ada architecture whitepaper, FP32 accumulate"
RTX5090 = "NVIDIA RTX Blackwell architecture whitepaper, FP32 accumulate"
HALVED = "datasheet, sparse rates halved"
DIE = ", one of two dies, as HIP counts devices"
CDNA2 = "AMD Instinct MI200 series data sheet"
CDNA3 = "AMD Instinct MI300 series data sheet, dense"
CDNA4 = "AMD Instinct MI350 series data sheet, dense"

# The first pattern that is found decides: the more special name comes first. An end ($) keeps variants out whose rates
# are others (laptops, "D", Ti, vGPUs).
DATASHEETS = (
    Datasheet("gb200", 80, 1250, 2500, True, 8000, BLACKWELL, 5000, 5000),
    Datasheet(r"\bb200\b", 75, 1125, 2250, True, 8000, BLACKWELL, 4500, 4500),
    Datasheet("h200 nvl", 60, 417.5, 835.5, True, 4800, H200 + ", NVL", 1670.5, 1670.5),
    Datasheet(r"\bh200\b", 67, 494.5, 989.5, True, 4800, H200 + ", SXM", 1979, 1979),
    Datasheet("gh200 144g", 67, 494.5, 989.5, True, 4900, GH200 + ", HBM3e", 1979, 1979),
    Datasheet("gh200 480gb", 67, 494.5, 989.5, True, 4000, GH200 + ", HBM3", 1979, 1979),
    Datasheet("h[18]00 pcie", 51, 378, 756.5, True, 2000, H100 + ", PCIe", 1513, 1513),
    Datasheet("h100 nvl", 60, 417.5, 835.5, True, 3900, H100 + ", NVL", 1670.5, 1670.5),
    Datasheet(r"\bh[18]00( 80gb hbm3| sxm5?|$)", 67, 494.5, 989.5, True, 3350, H100 + ", SXM", 1979, 1979),
    Datasheet("a[18]00-(pcie|sxm4)-40gb|a100-pg509-200", 19.5, 156, 312, True, 1555, A100 + ", 40GB", None, 624),
    Datasheet("a[18]00 80gb pcie", 19.5, 156, 312, True, 1935, A100 + ", 80GB PCIe", None, 624),
    Datasheet("a[18]00-sxm4-80gb", 19.5, 156, 312, True, 2039, A100 + ", 80GB SXM", None, 624),
    Datasheet(r"\ba30$", 10.3, 82, 165, True, 933, "NVIDIA A30 Tensor Core GPU datasheet", None, 330),
    Datasheet(r"\ba40$", 37.4, 74.8, 149.7, True, 696, "NVIDIA A40 datasheet", None, 299.3),
    Datasheet("l40s", 91.6, 183, 362, True, 864, f"NVIDIA L40S {HALVED}", 733, 733),
    Datasheet(r"\bl40$", 90.5, 90.5, 181.05, True, 864, f"NVIDIA L40 {HALVED}", 362, 362),
    Datasheet(r"\bl4$", 30.3, 60, 121, True, 300, f"NVIDIA L4 {HALVED}", 242.5, 242.5),
    Datasheet("a10g", 31.2, 35, 70, True, 600, "AWS EC2 G5 and NVIDIA A10G data, dense", None, 140),
    Datasheet(r"\ba10$", 31.2, 62.5, 125, True, 600, "NVIDIA A10 Tensor Core GPU datasheet", None, 250),
    Datasheet("v100s", 16.4, None, 130, False, 1134, V100 + ", V100S PCIe"),
    Datasheet("v100-(pcie|fhhl)", 14, None, 112, False, 900, V100 + ", PCIe"),
    Datasheet("v100-(sxm2|sxm3|dgxs)", 15.7, None, 125, False, 900, V100 + ", SXM2"),
    Datasheet("(tesla|nvidia) t4$", 8.1, None, 65, False, 300, "NVIDIA T4 Tensor Core GPU datasheet", None, 130),
    Datasheet("rtx 5090$", 104.8, 104.8, 209.5, True, 1792, RTX5090, 419, 838),
    Datasheet("rtx 4090$", 82.6, 82.6, 165.2, True, 1008, ADA, 330.3, 660.6),
    Datasheet("rtx 6000 ada", 91.1, 182.1, 364.2, True, 960, f"NVIDIA RTX 6000 Ada {HALVED}", 728.5, 728.5),
    Datasheet("rtx 3090$", 35.6, 35.6, 71, True, 936, "NVIDIA GA102 whitepaper, FP32 accumulate", None, 284),
    Datasheet("rtx a6000", 38.7, 77.4, 154.8, True, 768, f"NVIDIA RTX A6000 {HALVED}", None, 309.7),
    Datasheet("mi355x", 157.3, None, 2516.6, True, 8000, CDNA4 + ", MI355X", 5033.2, 5033.2),
    Datasheet("mi350x", 144.2, None, 2306.9, True, 8000, CDNA4 + ", MI350X", 4613.7, 4613.7),
    Datasheet("mi325x", 163.4, 653.7, 1307.4, True, 6000, CDNA3 + ", MI325X", 2614.9, 2614.9),
    Datasheet("mi300x", 163.4, 653.7, 1307.4, True, 5300, CDNA3 + ", MI300X", 2614.9, 2614.9),
    Datasheet("mi300a", 122.6, 490.3, 980.6, True, 5300, CDNA3 + ", MI300A", 1961.2, 1961.2),
    Datasheet("mi250x", 47.9, None, 191.5, True, 1638.4, CDNA2 + ", MI250X" + DIE, None, 191.5),
    Datasheet("mi250", 45.3, None, 181, True, 1638.4, CDNA2 + ", MI250" + DIE, None, 181),
    Datasheet("mi210", 45.3, None, 181, True, 1638.4, CDNA2 + ", MI210", None, 181),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Link between devices of one kind within a machine. pattern: as in `Datasheet`. both: rate of one device in both
    directions together, GB/s, as datasheets print it."""

    pattern: str
    name: str
    both: float
    title: str

    @property
    def rate(self) -> float:
        """Rate in one direction, B/s, comparable with a bus bandwidth."""
        return self.both / 2 * 1e9


# Cards that have NVLink only with a bridge between pairs are left out: their name does not say whether it is there.
INTERCONNECTS = (
    Interconnect(r"\bg?b200\b", "NVLink", 1800, BLACKWELL),
    Interconnect(r"\bh200$", "NVLink", 900, H200 + ", SXM"),
    Interconnect(r"gh200", "NVLink", 900, GH200),
    Interconnect(r"\bh100( 80gb hbm3| sxm5?|$)", "NVLink", 900, H100 + ", SXM"),
    Interconnect(r"\bh800( 80gb hbm3| sxm5?|$)|a800-sxm4", "NVLink", 400, "NVIDIA H800 and A800 product briefs"),
    Interconnect("a100-sxm4|a100-pg509-200", "NVLink", 600, A100),
    Interconnect("v100-sxm[23]", "NVLink", 300, V100 + ", SXM2"),
    Interconnect(r"rtx 5090$", "PCIe Gen5 x16", 128, RTX5090),
    Interconnect(r"l40s|\bl40$|\bl4$|rtx 6000 ada|rtx 4090$", "PCIe Gen4 x16", 64, "NVIDIA Ada datasheets"),
    Interconnect(r"\ba10g?$", "PCIe Gen4 x16", 64, "NVIDIA A10 Tensor Core GPU datasheet"),
    Interconnect(r"(tesla|nvidia) t4$|v100-(pcie|fhhl)|v100s", "PCIe Gen3 x16", 32, "NVIDIA T4 and V100 datasheets"),
    Interconnect("mi35[05]x", "Infinity Fabric", 1075, CDNA4 + ", 7 links of 153.6 GB/s"),
    Interconnect("mi3(00|25)x", "Infinity Fabric", 896, CDNA3 + ", 7 links of 128 GB/s"),
)  # fmt: skip


def interconnect_of(name: str) -> Interconnect | None:
    """Link between devices of this name within a machine; None for an unknown name or a part of a device (MIG)."""
    wanted = name.lower()
    found = (each for each in INTERCONNECTS if re.search(each.pattern, wanted))
    return None if " mig " in wanted else next(found, None)


NAMES = (
    "GB200", "B200", "H200", "H200 NVL", "GH200 144G HBM3e", "GH200 480GB", "H100", "H100 PCIe", "H100 NVL",
    "A100-SXM4-80GB", "A100 80GB PCIe", "A100-SXM4-40GB", "A30", "A40", "L40S", "L40", "L4", "A10G", "A10",
    "V100S", "V100-PCIe", "V100-SXM2", "NVIDIA T4", "RTX 5090", "RTX 4090", "RTX 6000 Ada", "RTX 3090", "RTX A6000",
    "MI355X", "MI350X", "MI325X", "MI300X", "MI300A", "MI250X", "MI250", "MI210",
)  # fmt: skip
"""Device names for a message about an unknown one."""


def look_up(name: str, device: str = "cuda") -> Machine | None:
    """Peaks of a device by the driver's name, None for an unknown name, and for a part of a device (MIG)."""
    wanted = name.lower()
    if " mig " in wanted:
        return None
    sheet = next((sheet for sheet in DATASHEETS if re.search(sheet.pattern, wanted)), None)
    if sheet is None:
        return None
    rates = {
        "float32": sheet.float32,
        "tf32": sheet.tf32,
        "float16": sheet.half,
        "bfloat16": sheet.half if sheet.bfloat16 else None,
        "float8": sheet.eight,
        "int8": sheet.integer,
    }
    flops = {kind: rate * 1e12 for kind, rate in rates.items() if rate is not None}
    matrix = tuple(Rate(kind, Estimate(rate, rate, rate, 1, "FLOP/s")) for kind, rate in flops.items())
    bandwidth = sheet.bandwidth * 1e9
    return Machine(device, name, matrix, Estimate(bandwidth, bandwidth, bandwidth, 1, "B/s"), source=sheet.title)

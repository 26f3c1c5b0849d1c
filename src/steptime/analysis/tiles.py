"""Use of a device by a kernel's work units: tiles of a matmul, heads of attention."""

from __future__ import annotations

import math
import re

TILE = re.compile(r"(?:nvjet\w*?_|tilesize|_MT|gemm_(?:[a-z]\w*?_)?)(\d{2,3})x(\d{2,3})(?!\d)")
"""Rows and columns of the output that one block computes, in names of cuBLAS (nvjet_sm90_tst_128x64_…, CUTLASS's
s1688gemm_256x64_16x4, xmma's tilesize64x64x8) and of Tensile (Cijk_…_MT256x128x64_…)."""
SPLITS = re.compile(r"_GSU(\d{1,3})_")
"""Number of parts into which Tensile splits the sum of each tile, in its kernels' names."""
SPLIT = re.compile(r"split_?k|stream_?k", re.IGNORECASE)
PERSISTENT = re.compile(r"nvjet|persistent|warpgroup|warpspecialized|sm(90|100)_xmma", re.IGNORECASE)
"""Kernels whose grid has the size of the device, whatever the work: each block computes tile after tile."""
OUTPUTS = dict.fromkeys(("mm", "bmm", "_scaled_mm"), (0, 1)) | dict.fromkeys(("addmm", "baddbmm"), (1, 2))
"""Positions of the two factors among an operator's arguments."""
HEADS_BY_NAME = re.compile(r"kernel_traits<\s*(?:\(int\))?(\d{2,3})")
"""Head dimension that a kernel of flash attention was compiled for, in its name (Flash_fwd_kernel_traits<128, …)."""
HEADS = (32, 64, 96, 128, 192, 256)
"""Head dimensions that flash attention has kernels for on NVIDIA's devices (HEADDIM_SWITCH in static_switch.h of
flash-attention); on AMD's, AOTriton takes powers of two."""
Shapes = tuple[tuple[int, ...], ...]


def tiles_of(kernel: str, operator: str, shapes: Shapes) -> int | None:
    """Number of output tiles of a matmul, from the kernel's name and the operator's arguments. None if these do not
    show it, or do not show how many blocks share a tile. operator: name without namespace. Libraries differ in which
    side of a tile comes first: the order that gives more tiles counts."""
    found, places = TILE.search(kernel), OUTPUTS.get(operator)
    if found is None or places is None or SPLIT.search(kernel) or max(places) >= len(shapes):
        return None
    left, right = (shapes[place] for place in places)
    if not len(left) == len(right) in (2, 3):
        return None
    batch = left[0] if len(left) == 3 else 1
    first, second = int(found[1]), int(found[2])
    splits = SPLITS.search(kernel)
    orders = (_ceil(left[-2], a) * _ceil(right[-1], b) for a, b in ((first, second), (second, first)))
    return max(orders) * batch * (int(splits[1]) if splits else 1)


def waves_of(kernel: str, operator: str, shapes: Shapes, blocks: int, multiprocessors: int) -> float | None:
    """Number of times that a matmul's blocks fill the device with one block per multiprocessor; None if unknown.
    blocks: number of blocks in the grid, 0 if unknown; ignored for a persistent kernel."""
    if multiprocessors <= 0:
        return None
    work = blocks if blocks and not PERSISTENT.search(kernel) else tiles_of(kernel, operator, shapes)
    return work / multiprocessors if work else None


def filled(kernel: str, waves: float) -> float:
    """Fraction of the multiprocessors that are busy over a matmul's time, given its waves. Blocks of a kernel that is
    not persistent overlap with the next wave, so that kernel surely leaves some multiprocessors idle only if it has
    less than one wave."""
    if waves >= 1 and not PERSISTENT.search(kernel):
        return 1.0
    return waves / math.ceil(waves) if waves > 0 else 0.0


def padded_head(kernel: str, size: int, device: str) -> int:
    """Head dimension to which a fused attention kernel pads a head of `size`; `size` itself if unknown. device: name of
    the device."""
    if found := HEADS_BY_NAME.search(kernel):
        return max(size, int(found[1]))
    if re.search(r"AMD|Instinct|Radeon", device):
        return 1 << max(size - 1, 1).bit_length()
    if re.search(r"flash|fmha", kernel):
        return next((each for each in HEADS if each >= size), size)
    return size


def _ceil(size: int, tile: int) -> int:
    return -(-size // tile)

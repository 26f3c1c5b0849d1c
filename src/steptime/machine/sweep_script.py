"""The classic experiment of arithmetic intensity, with the user's own torch: pointwise work repeated 1 to 512 times,
compiled and not; matmuls from tiny to large; copies by size. Run by path with the user's interpreter: no part
of steptime is imported here but its neighbour, which times blocks and multiplies.

    python sweep_script.py REQUEST

REQUEST is JSON: "device", "seconds" (for each point), "compile" (whether pointwise work is compiled, too), "values" (of
the tensor that pointwise work goes through), "repeats" (of it), "orders" (of the square matrices), "sizes" (bytes of
the copies), "answer" (the file that the answer is written to).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peaks_script import BLOCK_SECONDS, product, timed  # type: ignore[import-not-found]

LONGEST = 1.0
"""Longest call that is measured, seconds."""
FLOPS = 2
"""FLOPs per value and repetition: a product and a sum."""
MOST_IN_A_GRAPH = 256
"""Most repetitions that are compiled: twice as many graph nodes take the compiler a minute."""


def main() -> None:
    request = json.loads(sys.argv[1])
    with torch.inference_mode():
        answer = measure(request)
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Measures all points of a sweep. Each has "kind" ("repeated", "compiled", "product" or "copy"), "amount"
    (repetitions, order or bytes), "flops", "bytes" (that must at least be moved), and "seconds" (of a call in the best
    and in the median block)."""
    device, points, left_out = request["device"], list[dict[str, Any]](), ""
    for size in request["sizes"]:
        points += point("copy", size, 0, 2 * size, copying(size, device), request)
    for order in request["orders"]:
        work = product(device, torch.float32, order)
        found = point("product", order, 2 * order**3, 3 * 4 * order**2, work, request)
        if not found:
            break
        points += found
    values = torch.ones(request["values"], device=device)
    for repeats in request["repeats"]:
        flops, moved = FLOPS * repeats * values.numel(), 2 * 4 * values.numel()
        points += point("repeated", repeats, flops, moved, repeated(values, repeats), request)
    for repeats in [each for each in request["repeats"] if request["compile"] and each <= MOST_IN_A_GRAPH]:
        flops, moved = FLOPS * repeats * values.numel(), 2 * 4 * values.numel()
        try:
            work = compiled(values, repeats)
            work()
        except Exception as error:  # noqa: BLE001 - a compiler that is missing or fails, whatever it raises
            left_out = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            break
        points += point("compiled", repeats, flops, moved, work, request)
    return {"name": torch.cuda.get_device_name() if device == "cuda" else "", "threads": torch.get_num_threads(),
            "torch": str(torch.__version__), "points": points, "left_out": left_out}  # fmt: skip


def point(
    kind: str, amount: int, flops: int, moved: int, work: Callable[[], object], request: dict[str, Any]
) -> list[dict[str, Any]]:
    """List with the measured point, which is empty if one call takes too long."""
    device, seconds = request["device"], request["seconds"]
    start = time.perf_counter()
    work()
    if time.perf_counter() - start > LONGEST:
        return []
    repeats = max(1, int(BLOCK_SECONDS / min(timed(device, work, 1, seconds / 4))))
    blocks = sorted(timed(device, work, repeats, seconds))
    return [{"kind": kind, "amount": amount, "flops": flops, "bytes": moved,
             "seconds": [blocks[0], blocks[len(blocks) // 2]]}]  # fmt: skip


def copying(size: int, device: str) -> Callable[[], object]:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def repeated(values: torch.Tensor, repeats: int) -> Callable[[], object]:
    """Pointwise work in which each repetition reads and writes all values, without fusion."""
    out = torch.empty_like(values)
    half = torch.full_like(values, 0.5)

    def work() -> None:
        torch.addcmul(half, values, half, out=out)
        for _ in range(repeats - 1):
            torch.addcmul(half, out, half, out=out)

    return work


def compiled(values: torch.Tensor, repeats: int) -> Callable[[], object]:
    """Pointwise work compiled so that all repetitions take one pass over the values."""

    def work(given: torch.Tensor, out: torch.Tensor) -> None:  # into memory that is there, as `repeated` does
        for _ in range(repeats):
            given = given * 0.5 + 0.5
        out.copy_(given)

    torch._dynamo.reset()
    function, out = torch.compile(work, dynamic=False), torch.empty_like(values)
    return lambda: function(values, out)


if __name__ == "__main__":
    main()

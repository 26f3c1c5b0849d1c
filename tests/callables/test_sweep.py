"""`steptime env --sweep`: known bytes and FLOPs, knees where they must lie, and what it says without a compiler."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from preloading import python

from steptime.advice.evidence import Case
from steptime.advice.run_uses import StepSummary
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.answer.json import as_json
from steptime.answer.markdown import as_markdown
from steptime.answer.page.frame import as_page
from steptime.answer.text import as_text
from steptime.callables.sweep import (
    Sweep,
    SweepOptions,
    SweepPoint,
    answer_of_sweep,
    attainable,
    by_size,
    headline,
    knees,
    operators_of,
    roofline,
    sweep,
    tables,
)
from steptime.cli.main import main
from steptime.quantities import Estimate

pytest.importorskip("torch")

QUICK = SweepOptions("cpu", 0.01, False, 2**16, (1, 8), (16, 256), (1024, 2**22))


def test_points_know_their_work() -> None:
    found = sweep(QUICK, python(), None, lambda _: None)
    assert [each.amount for each in found.of("copy")] == [1024, 2**22]
    small, large = found.of("product")
    assert large.flops == 2 * 256**3
    assert large.bytes == 3 * 4 * 256**2
    assert all(0 < each.seconds[0] <= each.seconds[1] for each in (small, large))
    once, often = found.of("repeated")
    assert often.intensity == 8 * once.intensity == 8 * 2 / 8
    assert not found.of("compiled")


@pytest.mark.slow
def test_compiled_work_gains_with_its_intensity() -> None:
    found = sweep(replace(QUICK, compile=True, values=2**24, repeats=(1, 64)), sys.executable, None, lambda _: None)
    once, often = found.of("compiled")
    assert often.rate > 4 * once.rate
    assert often.rate > 4 * found.of("repeated")[1].rate, "nothing is fused there"


def point(kind: str, amount: int, flops: float, moved: float, seconds: float) -> SweepPoint:
    return SweepPoint(kind, amount, int(flops), int(moved), (seconds, 1.1 * seconds))


KNOWN = Sweep(
    "cpu",
    "a machine of known ceilings",
    2,
    "2.13.0",
    (
        point("copy", 2**10, 0, 2 * 2**10, 1e-6),
        point("copy", 2**16, 0, 2 * 2**16, 3e-6),
        point("copy", 2**28, 0, 2 * 2**28, 2 * 2**28 / 10e9),
        point("product", 16, 2 * 16**3, 3 * 4 * 16**2, 2e-6),
        point("product", 1024, 2 * 1024**3, 3 * 4 * 1024**2, 2 * 1024**3 / 100e9),
        point("repeated", 1, 2e6, 8e6, 8e6 / 10e9),
        point("compiled", 1, 2e6, 8e6, 8e6 / 10e9),
        point("compiled", 64, 128e6, 8e6, 128e6 / 50e9),
    ),
    "",
    0.0,
)


def test_the_ridge_and_the_knees_are_where_the_ceilings_meet() -> None:
    assert "less than 10 FLOP/B is bound by memory" in headline(KNOWN)
    overhead, bandwidth, arithmetic, fused = knees(KNOWN)
    assert "a copy below 64 KiB takes 1 µs" in overhead
    assert "10 GB/s from memory (256 MiB), 43.7 GB/s at most within a cache (64 KiB)" in bandwidth
    assert "100 GFLOP/s in matmuls, half of it from order 1024 on" in arithmetic
    assert "up to 16 FLOP/B (64 operators in one pass)" in fused


def test_the_roofline_is_drawn_with_its_ridge() -> None:
    assert roofline(KNOWN, [0.25, 200.0]) == [(0.25, 2.5e9), (10.0, 1e11), (200.0, 1e11)]
    assert roofline(KNOWN, [20.0, 200.0]) == [(20.0, 1e11), (200.0, 1e11)]
    assert "the roofline: memory, then arithmetic" in as_page(answer_of_sweep(KNOWN))
    assert roofline(replace(KNOWN, points=KNOWN.of("product")), [1.0, 2.0]) == []


def test_copies_and_products_are_drawn_over_their_size_with_their_knees() -> None:
    copies, products = by_size(KNOWN)
    assert [tick.words for tick in copies.across] == ["1 KiB", "64 KiB", "256 MiB"]
    assert [point.words for point in copies.points] == [
        "64 KiB: overhead ends here", "64 KiB: the largest that a cache holds"
    ]  # fmt: skip
    (curve,) = copies.curves
    heights = [float(point.partition(",")[2]) for point in curve.points.split()]
    assert heights[1] < heights[2] < heights[0], "a cache is quicker than memory, and overhead slower than both"
    assert [tick.words for tick in products.across] == ["16", "1024"]
    assert [point.words for point in products.points] == ["1024: half of the peak from here on"]
    page = as_page(answer_of_sweep(KNOWN))
    assert page.count("<h2>B/s of copies over their size") == page.count("<h2>FLOP/s of matmuls over") == 1
    alone = replace(KNOWN, points=KNOWN.of("copy")[:1] + KNOWN.of("product")[:1])
    assert not list(by_size(alone))


def test_every_format_has_the_answer_and_what_was_left_out() -> None:
    without = replace(KNOWN, left_out="no C++ compiler <b>")
    for text in (
        as_text(answer_of_sweep(without)),
        as_markdown(answer_of_sweep(without)),
        as_page(answer_of_sweep(without)),
    ):
        assert "10 FLOP/B" in text
        assert "no C++ compiler" in text
        assert "compiler <b>" not in text or "\nsteptime env" in text
    assert json.loads(as_json(answer_of_sweep(KNOWN)))["sweep"]["points"][0]["kind"] == "copy"


def test_operators_of_a_recording_are_placed_under_the_roofline() -> None:
    kernels = (
        KernelUse("gemm", "aten::mm", 1.0, 2e6, "compute", "[[8, 8]]", flops=1e8, bytes=1e6),
        KernelUse("add", "aten::add_", 1.0, 4e6, "memory", flops=1e6, bytes=12e6),
        KernelUse("copy", "aten::copy_", 1.0, 9e6, "memory", bytes=4e6),
    )
    step = StepSummary(Estimate(9e6, 9e6, 9e6, 9), 10, 9, 1, "optimizer", "cpu")
    placed = operators_of(Case(step=step, kernels=kernels))
    own = OperatorUse("aten::mm", 1.0, 2e6, "compute", flops=1e8, bytes=1e6)
    assert operators_of(Case(step=step, operators=(own,)))[0].rate == 1e8 / 2e6 * 1e9, "on a CPU nothing else ran"
    assert [each.name for each in placed] == ["aten::add_", "aten::mm"]
    found = replace(KNOWN, recording="runs/a", operators=placed)
    assert attainable(found, placed[0].intensity) == pytest.approx(1e6 / 12e6 * 10e9)
    assert attainable(found, placed[1].intensity) == pytest.approx(100e9)
    table = next(each for each in tables(found) if each.identity == "operators")
    assert "aten::mm" in as_text(answer_of_sweep(found))
    assert len(table.rows) == 2
    assert as_page(answer_of_sweep(found)).count("<title>aten::") == 2


def test_what_has_no_operators_is_not_placed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--place", str(tmp_path)]) == 2
    assert "--place need --sweep" in capfd.readouterr().err
    assert main(["env", "--sweep", "--place", str(tmp_path / "none")]) != 0
    assert "Traceback" not in capfd.readouterr().err

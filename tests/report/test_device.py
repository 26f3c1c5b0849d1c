"""What is said of a device and of several ranks: roofline, what-if, one step, the straggler."""

from __future__ import annotations

from dataclasses import replace

import pytest
from documents import markdown_of, text_of

from steptime.advice.device_uses import (
    GapUse,
    MachineUse,
    RankUse,
    ReplayUse,
    RooflineUse,
)
from steptime.advice.evidence import Case
from steptime.advice.run_uses import CategoryUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.stragglers.comparison import Straggler
from steptime.analysis.what_if.what_if import Prediction
from steptime.quantities import Estimate
from steptime.report.compose import compose
from steptime.report.page import page
from steptime.report.report import ProcessReport, Report
from steptime.report.tables import MOST_RANKS, case_tables

MS = 1e6
A100 = MachineUse("NVIDIA A100", False, 19.5e12, 2e12, None, (("float32", 19.5e12),), "its datasheet")
ROOFLINE = RooflineUse(4 * MS, 12 * MS, 2 * MS, 2 * MS, 2e12, 3e9, "bfloat16", 312e12, 0.9, 0.07, 0.99)


def about(value: float, samples: int = 5) -> Estimate:
    return Estimate(value, 0.9 * value, 1.1 * value, samples)


@pytest.fixture
def traced(case: Case) -> Case:
    """The case of a step of 96.2 ms with a device behind it."""
    step = replace(case.step, mode="trace", device="cuda", steady=5, total=5, warm_up=0)
    return replace(
        case,
        step=step,
        machine=A100,
        roofline=ROOFLINE,
        categories=(CategoryUse("compute", about(60 * MS), about(5 * MS)), *case.categories[1:]),
        kernels=(KernelUse("sgemm_128x64", "aten::mm", 24.0, 9 * MS, "compute", dtype="float32"),),
        gaps=(GapUse("sync", "aten::item", about(4 * MS), 2.0, 3_000_000),),
        replay=ReplayUse(
            0.013,
            5,
            (("kernel", 60 * MS), ("input", 30 * MS)),
            (
                Prediction("input free", about(11.5 * MS), 12 * MS),
                Prediction("syncs free", Estimate(4 * MS, 0.0, 9 * MS, 5), 9 * MS),
            ),
        ),
    )


def with_case(report: Report, case: Case) -> Report:
    process = replace(report.processes[0], case=case, findings=report.processes[0].findings[1:2])
    return replace(report, processes=(process,))


def test_the_terminal_says_what_bounds_computing_and_what_was_reached(report: Report, traced: Case) -> None:
    displayed = text_of(with_case(report, traced))
    assert "compute bound by memory 60 %, arithmetic 20 %, unmodelled 10 %, latency 10 %" in displayed
    assert "20.8 TFLOP/s, 7.0 % of the bfloat16 peak (312 TFLOP/s, datasheet)" in displayed
    assert "If: input free: 12 % shorter (11 to 13 %)" in displayed


def test_a_sum_of_what_has_a_model_is_a_lower_bound_where_much_has_none(report: Report, traced: Case) -> None:
    partly = replace(traced, roofline=replace(ROOFLINE, modelled=0.5))
    assert "at least 20.8 TFLOP/s" in text_of(with_case(report, partly))


def test_peaks_that_were_measured_are_reported_to_be(report: Report, traced: Case) -> None:
    assert "312 TFLOP/s, measured" in text_of(with_case(report, replace(traced, machine=replace(A100, measured=True))))


def test_without_shapes_nothing_is_reported_of_what_bounds_the_kernels(report: Report, traced: Case) -> None:
    bare = replace(ROOFLINE, flops=0.0, bytes=0.0, modelled=0.0)
    displayed = text_of(with_case(report, replace(traced, roofline=bare)))
    assert "no shapes in the trace" in displayed
    assert "FLOP/s" not in displayed


def test_a_prediction_that_may_be_nothing_is_not_displayed(report: Report, traced: Case) -> None:
    assert "syncs free" not in text_of(with_case(report, traced))
    assert "syncs free" not in markdown_of(with_case(report, traced))


def test_one_step_is_reported_as_one(report: Report, traced: Case) -> None:
    once = replace(traced.step, steady=1, total=1, duration=Estimate(96.2 * MS, 0, 192.4 * MS, 1))
    displayed = text_of(with_case(report, replace(traced, step=once)))
    assert "Step 96.2 ms, one step\n" in displayed
    assert "±" not in displayed


def test_what_steps_were_found_by_is_reported_unless_they_were_marked(report: Report, traced: Case) -> None:
    found = replace(traced.step, how="from one Optimizer.zero_grad to the next")
    marked = replace(traced.step, how="the profiler's own marks (ProfilerStep#)")
    assert "Steps: from one Optimizer.zero_grad to the next" in text_of(with_case(report, replace(traced, step=found)))
    assert "Steps:" not in text_of(with_case(report, replace(traced, step=marked)))


def test_markdown_has_the_kernels_the_idle_time_and_the_path(report: Report, traced: Case) -> None:
    document = markdown_of(with_case(report, traced))
    assert "Peaks of NVIDIA A100: datasheet (its datasheet)." in document
    assert "The unchanged replay misses the measured steps by 1.3 %" in document
    assert "| sgemm_128x64 | aten::mm | 24 |" in document
    assert "| sync | aten::item | 4 ms |" in document
    assert "| kernel | 60 ms | 67 % |" in document


def test_kernels_are_reported_by_name_before_their_shapes(report: Report, traced: Case) -> None:
    gemm = KernelUse("void gemm<64>", "aten::mm", 2.0, 5 * MS, "compute", "[[64, 64]]")
    relu = KernelUse("relu", "aten::relu", 9.0, 6 * MS, "memory")
    case = replace(traced, kernels=(relu, gemm, replace(gemm, duration=4 * MS, shapes="[[32, 32]]")))
    displayed = with_case(report, case)
    assert "| gemm | aten::mm | 4 | 9 ms |" in markdown_of(displayed)
    displayed_rows = {table.identity: [row[0].text for row in table.rows] for table in case_tables(case)}
    assert displayed_rows["kernel-names"] == ["gemm<64>", "relu"]
    assert displayed_rows["kernels"] == ["relu", "gemm<64>", "gemm<64>"]
    assert 'id="kernel-names"' in page.render(displayed)
    assert "Kernels: gemm 9 ms, relu 6 ms per step" in text_of(displayed)


def ranks_of(process: ProcessReport, count: int, late: int) -> tuple[ProcessReport, ...]:
    uses = tuple(
        RankUse(rank, 96 * MS, 20 * MS, 1 * MS if rank == late else 19 * MS, 0.9 if rank == late else 0.0)
        for rank in range(count)
    )
    straggler = Straggler((late,), "", 18 * MS, 0.9, "", 0.0, (), Estimate(18 * MS, 17 * MS, 19 * MS, 5))
    case = replace(process.case, ranks=uses, straggler=straggler)
    return tuple(
        replace(process, name=f"rank {rank}", rank=rank, case=replace(case, rank=rank)) for rank in range(count)
    )


def test_the_late_rank_is_displayed_first(report: Report) -> None:
    composed = compose("traces", report.environment, ranks_of(report.processes[0], 4, late=2))
    assert composed.processes[0].rank == 2
    assert sorted(process.rank or 0 for process in composed.processes) == [0, 1, 2, 3]


def test_a_job_of_a_thousand_ranks_is_a_short_table(report: Report) -> None:
    composed = compose("traces", report.environment, ranks_of(report.processes[0], 1000, late=700))
    page = markdown_of(composed)
    rows = [line for line in page.splitlines() if line.startswith("| rank ") and "per step" not in line]
    assert len(rows) == MOST_RANKS + 1
    assert rows[1].startswith("| rank 700 |")
    assert page.count("## rank ") == MOST_RANKS
    assert len(composed.processes) == 1000

"""Step times and splits that others published for their traces: tb_plugin for ResNet-50, TraceLens for several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime import intervals
from steptime.intervals import Intervals, union
from steptime.kineto.reader import read
from steptime.kineto.table import Category, Trace
from steptime.ledger.activities import UNKNOWN, device_activities
from steptime.ledger.account import account_for
from steptime.ledger.ledger import Account
from steptime.ledger.names import COMMUNICATION_KERNEL, LOADER, STEP, matching
from steptime.ledger.trace_steps import reach, steps_of

FILES = ("kineto/resnet50_workers0.pt.trace.json.gz", "kineto/resnet50_workers4.pt.trace.json.gz")
MICROSECOND = 1000


def published(folder: Path, file: str, metric: str) -> Any:
    rows = json.loads((folder / "expected.json").read_text())["expected"]
    return next(row["value"] for row in rows if row["file"] == file and row["metric"].startswith(metric))


def per_step(folder: Path, file: str) -> np.ndarray:
    """Columns: Kernel, Memcpy, Memset, Runtime, DataLoader, CPU Exec, Other; microseconds."""
    rows = published(folder, file, "per-step split")
    return np.array([row[1:] for row in rows], np.int64)


def of_category(trace: Trace, category: Category) -> Intervals:
    chosen = trace.events.category == category
    return union(trace.events.begin[chosen], trace.events.end[chosen])


@pytest.mark.parametrize("file", FILES)
def test_compute_and_copy_of_every_step_are_the_published_microseconds(shared_data: Path, file: str) -> None:
    trace, expected = read(shared_data / file), per_step(shared_data, file)
    ledger = account_for(trace, steps_of(trace))
    assert (ledger.wall // MICROSECOND).tolist() == expected.sum(axis=1).tolist()
    assert (ledger.entries[:, Account.COMPUTE] // MICROSECOND).tolist() == expected[:, 0].tolist()
    assert (ledger.entries[:, Account.COPY] // MICROSECOND).tolist() == expected[:, 1:3].sum(axis=1).tolist()


@pytest.mark.parametrize("file", FILES)
def test_our_interval_algebra_gives_all_published_columns(shared_data: Path, file: str) -> None:
    trace, expected = read(shared_data / file), per_step(shared_data, file)
    loader = matching(trace, LOADER.match)
    operator = (trace.events.category == Category.OPERATOR) & ~loader & ~matching(trace, STEP.match)
    sets = [
        *(of_category(trace, each) for each in (Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.RUNTIME)),
        union(trace.events.begin[loader], trace.events.end[loader]),
        union(trace.events.begin[operator], trace.events.end[operator]),
    ]
    windows = reach(trace, steps_of(trace))
    assert (intervals.claim(windows[:, 0], windows[:, 1], sets) // MICROSECOND).tolist() == expected.tolist()


@pytest.mark.parametrize("file", FILES)
def test_the_average_step_is_the_published_one(shared_data: Path, file: str) -> None:
    trace = read(shared_data / file)
    ledger = account_for(trace, steps_of(trace))
    expected = published(shared_data, file, "average step time and split")
    assert round(ledger.wall.mean() / MICROSECOND) == expected["total"]
    assert round(ledger.entries[:, Account.COMPUTE].mean() / MICROSECOND) == expected["Kernel"][0]


def test_the_slow_loader_is_the_largest_recoverable_account_without_workers_only(shared_data: Path) -> None:
    alone, helped = (account_for(trace, steps_of(trace)) for trace in (read(shared_data / file) for file in FILES))
    others = [account for account in Account if account not in (Account.COMPUTE, Account.INPUT)]
    assert (alone.entries[:, Account.INPUT] > alone.entries[:, others].sum(axis=1)).all()
    assert (helped.entries[:, Account.INPUT] < helped.entries[:, others].sum(axis=1)).all()


def published_timelines(folder: Path) -> dict[str, dict[str, float]]:
    rows = json.loads((folder / "expected.json").read_text())["expected"]
    found = {row["file"]: row["value"] for row in rows if row["metric"].startswith("GPU timeline (ms)")}
    return {file: value for file, value in found.items() if (folder / file).exists()}


def test_device_time_is_that_of_the_published_timelines(shared_data: Path) -> None:
    """TraceLens counts what has a launch in the trace, and memsets as computation.

    It adds begin and duration as float64 microseconds, which at these traces' times hold a nanosecond only just: each
    of its events may be off by one, where ours are exact.
    """
    timelines = published_timelines(shared_data)
    assert len(timelines) >= 5
    for file, expected in timelines.items():
        trace = read(shared_data / file)
        activities = device_activities(trace)
        rows = activities.rows[activities.launch != UNKNOWN]
        begin, end, category = trace.events.begin[rows], trace.events.end[rows], trace.events.category[rows]
        collective = matching(trace, COMMUNICATION_KERNEL.search)[rows] & (category == Category.KERNEL)
        copied = category == Category.MEMCPY
        sets = [union(begin[chosen], end[chosen]) for chosen in (~collective & ~copied, collective, copied)]
        shares = intervals.claim([begin.min()], [end.max()], sets)[0] / 1e6
        names = ("computation_time", "exposed_comm_time", "exposed_memcpy_time", "idle_time")
        rounding = len(rows) * 1e-6
        assert shares.tolist() == pytest.approx([expected[name] for name in names], abs=rounding), file
        assert shares.sum() == pytest.approx(expected["total_time"], abs=1e-6)

"""Waits on published traces, against a computation that shares no line with ours: json, sorted kernels, differences."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from steptime.analysis.stragglers.fleet import Task, reduce_rank
from steptime.analysis.stragglers.matching import match
from steptime.analysis.stragglers.straggler import compare
from steptime.analysis.stragglers.summary import RankSummary
from steptime.trace.gather import gather

NAMES = {"nccl:_all_gather_base": "all_gather", "nccl:_reduce_scatter_base": "reduce_scatter"}
"""What torch calls a collective inside, and what its users do."""
JOBS = ("param/dlrm_kineto", "hta/trace_filter")


def independent(folder: Path) -> dict[str, npt.NDArray[np.int64]]:
    """By torch's name of the collective, (ranks, calls) ns: durations of NCCL's kernels in the order of their start.

    A kernel's correlation id names the call that launched it, and the annotation around that call names the collective.
    """
    found: dict[int, dict[str, list[tuple[float, int]]]] = {}
    for path in sorted(folder.glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        launches = {
            event["args"]["correlation"]: event
            for event in events
            if event.get("cat") == "cuda_runtime" and "correlation" in event.get("args", {})
        }
        named = [event for event in events if event["name"].startswith("nccl:") and event["cat"] == "user_annotation"]
        kinds: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "kernel" and "nccl" in event["name"].lower():
                at = float(launches[event["args"]["correlation"]]["ts"])
                (around,) = (
                    each for each in named if float(each["ts"]) <= at <= float(each["ts"]) + float(each["dur"])
                )
                kinds[around["name"]].append((float(event["ts"]), round(1000 * float(event["dur"]))))
        found[document["distributedInfo"]["rank"]] = kinds
    return {
        NAMES.get(name, name.removeprefix("nccl:")): np.array(
            [[each for _, each in sorted(found[rank][name])] for rank in sorted(found)]
        )
        for name in {name for kinds in found.values() for name in kinds}
    }


def summaries(folder: Path) -> list[RankSummary]:
    reduced = [reduce_rank(Task(number, files)) for number, files in enumerate(gather([str(folder)]).ranks)]
    return [each.summary for each in reduced if each.summary is not None]


@pytest.mark.parametrize("job", JOBS)
def test_the_wait_of_each_rank_in_each_collective_is_what_plain_arithmetic_gives(shared_data: Path, job: str) -> None:
    expected = independent(shared_data / job)
    shared, notes = match(summaries(shared_data / job))
    assert notes == ()
    assert {each.name for each in shared} == set(expected)
    for each in shared:
        durations = expected[each.name]
        assert np.array_equal(each.duration, durations)
        assert np.array_equal(each.waits, durations - durations.min(axis=0))
        assert np.array_equal(each.transfer, durations.min(axis=0))


@pytest.mark.parametrize("job", JOBS)
def test_the_table_of_collectives_sums_what_was_waited(shared_data: Path, job: str) -> None:
    expected = independent(shared_data / job)
    found = summaries(shared_data / job)
    comparison = compare(found)
    assert comparison is not None
    steps = found[0].steps
    assert {row.name for row in comparison.collectives} == set(expected)
    for row in comparison.collectives:
        durations = expected[row.name]
        waits = durations - durations.min(axis=0)
        assert row.calls == durations.shape[1] / steps
        assert row.waiting == pytest.approx(waits.sum() / len(durations) / steps)
        assert row.transfer == pytest.approx(durations.min(axis=0).sum() / steps)
    whole = sum((each - each.min(axis=0)).sum(axis=1) for each in expected.values())
    for rank in comparison.rows:
        assert rank.waiting <= whole[rank.rank] / steps + 1  # less where two collectives overlap


def test_the_late_rank_of_a_published_job_is_named_and_two_in_turns_are_not(shared_data: Path) -> None:
    late = compare(summaries(shared_data / JOBS[0]))
    assert late is not None
    assert late.late is not None
    assert late.late.ranks == (7,)
    assert late.world == 8
    turns = compare(summaries(shared_data / JOBS[1]))
    assert turns is not None
    assert turns.late is None
    assert turns.world == 128

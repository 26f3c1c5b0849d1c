"""Steps that grow: which line is named, of those that were timed early and late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from journals import MS, JournalBuilder

from steptime.advice.pattern_evidence import change_use
from steptime.analysis.layout import lay_out_whole
from steptime.quantities import SourceLine
from steptime.recording.recording import GrowingFacts, Process, SampledPath, SampleFacts

SORTS = SourceLine("train.py", 29, "Metric.compute", "order = torch.cat(self.scores).argsort()")
UPDATES = SourceLine("train.py", 66, "Loop.train", "self.optimizer.step()")
FILLS = SourceLine("train.py", 23, "Metric.update", "self.scores.append(scores)")


def job_that_grows(folder: Path) -> Process:
    """Sixty steps whose own Python grows by a millisecond each; lines are timed in the sixth and the last but five."""
    job, starts = JournalBuilder(), list[int]()
    for number in range(60):
        starts.append(job.now)
        job.next(MS).forward(3 * MS).backward(4 * MS).step(MS).wait((2 + number) * MS)
    early, late = (
        SampleFacts(1, tuple(SampledPath(spent, "", (line,)) for line, spent in times.items()), starts[at])
        for at, times in ((5, {SORTS: 2 * MS, UPDATES: MS}), (55, {SORTS: 30 * MS, UPDATES: 90 * MS}))
    )
    growing = GrowingFacts("list", "Metric.scores", 1.0, FILLS)
    return replace(job.process(folder), sampled=(early, late), growing=(growing,))


def test_the_rest_of_the_step_grows_by_no_line_of_another_phase(tmp_path: Path) -> None:
    process = job_that_grows(tmp_path / "r")
    change = change_use(process, lay_out_whole(process))
    assert change is not None
    assert (change.phase, change.line) == ("rest", SORTS)


def test_the_list_that_the_line_reads_is_named_with_the_line_that_fills_it(tmp_path: Path) -> None:
    process = job_that_grows(tmp_path / "r")
    change = change_use(process, lay_out_whole(process))
    assert change is not None
    assert (change.longer, change.filled) == ("the list Metric.scores", FILLS)

"""What rules are told of a device's memory: from what the allocator counts, not from what is left between steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from advice.healthy import HEALTHY
from journals import MS, JournalBuilder

from steptime.advice.assemble import assemble
from steptime.advice.rules.memory import memory_leak
from steptime.advice.run_uses import HolderUse, MemoryUse
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.memory_samples import most_held
from steptime.journal import Kind
from steptime.quantities import Estimate, SourceLine
from steptime.recording.recording import GrowingFacts, LeakFacts, Process

MIB = 1 << 20
RESIDENT, ALLOCATED, RESERVED, ALLOCATED_PEAK, RESERVED_PEAK = 1, 2, 3, 6, 7


def job_on_a_device(folder: Path, *samples: tuple[int, int], device: str = "cpu") -> Process:
    """A process with samples of memory (identity, MiB) at each of 40 boundaries."""
    job = JournalBuilder()
    job.process_facts = {"device": device}
    for _ in range(40):
        job.next(MS).forward(3 * MS).backward(4 * MS).step(MS)
        for identity, size in samples:
            job.record(Kind.MEMORY, job.now, size * MIB, identity)
    return job.process(folder)


def memory_of(process: Process) -> MemoryUse:
    layout = lay_out_whole(process)
    memory = assemble(process, layout).memory
    assert memory is not None
    return memory


def test_the_advice_is_about_what_keeps_the_tensors() -> None:
    growth = MemoryUse("cpu", 2 << 30, growth=Estimate(1e6, 9e5, 2e6, 90, "bytes"), grows=True, grown=1 << 28)

    def advised(kind: str, most: int | None = None) -> str:
        held = replace(growth, holders=(HolderUse(kind, "kept", 1.0, 1e6, most=most),))
        (found,) = memory_leak(replace(HEALTHY, memory=held))
        return found.advice

    assert "while True: yield from loader" in advised("cycle")
    assert "lru_cache(maxsize=" in advised("cache")
    assert "has a limit" in advised("cache", most=512)
    assert "has a limit" in advised("deque", most=512)


def test_tensors_of_a_container_and_its_length_are_one_holder(tmp_path: Path) -> None:
    process = job_on_a_device(tmp_path / "r", (RESIDENT, 3000))
    leak, longer = (
        LeakFacts("deque", "Replay.items", 4.0, 4096.0, 0.0, 0.0, 4),
        GrowingFacts("deque", "Replay.items", 4.0),
    )
    (holder,) = memory_of(replace(process, leaks=(leak,), growing=(replace(longer, most=900),))).holders
    assert (holder.tensors, holder.entries, holder.most) == (4.0, 4.0, 900)


def held(process: Process) -> int | None:
    return most_held(process, lay_out_whole(process).timeline.steps)


def test_activations_that_are_free_again_between_steps_are_no_fragments(tmp_path: Path) -> None:
    between_steps = ((RESIDENT, 3000), (ALLOCATED, 439), (RESERVED, 12_800))
    process = job_on_a_device(tmp_path / "r", *between_steps, (ALLOCATED_PEAK, 11_300), (RESERVED_PEAK, 12_900))
    memory = memory_of(process)
    assert (memory.peak, memory.allocated_peak) == (12_900 * MIB, 11_300 * MIB)
    assert held(process) == 11_300 * MIB


def test_a_recording_without_the_allocators_peak_does_not_know_what_was_needed(tmp_path: Path) -> None:
    process = job_on_a_device(tmp_path / "r", (RESIDENT, 3000), (ALLOCATED, 439), (RESERVED, 12_800))
    memory = memory_of(process)
    assert (memory.peak, memory.allocated_peak) == (12_800 * MIB, None)


def test_without_a_device_it_is_the_resident_set(tmp_path: Path) -> None:
    process = job_on_a_device(tmp_path / "r", (RESIDENT, 3000))
    assert (memory_of(process).peak, held(process)) == (3000 * MIB, 3000 * MIB)


def test_memory_of_the_profiler_is_not_the_jobs(tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(30):
        start = job.now
        job.next(MS).forward(300 * MS).backward(400 * MS).step(MS)
        if 5 <= number < 10:
            job.record(Kind.PROFILED, start, job.now)
        size = 500 if number < 5 else 900 if number < 10 else 620
        job.record(Kind.MEMORY, job.now, size * MIB, RESIDENT)
    assert held(job.process(tmp_path / "r")) == 500 * MIB


def test_a_sum_of_losses_keeps_the_graph_of_every_step() -> None:
    """A number that has no bytes of its own to speak of."""
    holder = HolderUse("variable", "total_loss", 0.0, 0.0, graph=True, source=SourceLine("train.py", 12))
    (found,) = memory_leak(replace(HEALTHY, memory=MemoryUse("cpu", 1 << 30, holders=(holder,))))
    assert found.summary == "variable total_loss keeps the graph of every step"
    assert ".detach()" in found.advice

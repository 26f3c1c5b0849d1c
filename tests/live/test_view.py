"""What is said of the last minute of a job."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from journals import MS, JournalBuilder
from rich.console import Console

from steptime.cli.watch import screen
from steptime.errors import RecordingError
from steptime.journal import Kind
from steptime.live.answer import answer_of, last_line, line, machine_lines
from steptime.live.view import LiveView, RankView, view_of, with_stragglers
from steptime.live.watching import SILENCE, Watcher, find_recording
from steptime.quantities import Estimate
from steptime.recording.recording import DeviceSample, TelemetrySample


def train(built: JournalBuilder, count: int, own: int = 2 * MS, together: int = 20 * MS) -> JournalBuilder:
    """Steps that end together on all ranks: who has less work of its own waits in backward."""
    for _ in range(count):
        built.next(own).forward(3 * MS).backward(together - own - 4 * MS).step(MS)
    return built


def ended(folder: Path, **fields: object) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | fields))


def job_of_two(tmp_path: Path, own: tuple[int, int]) -> Path:
    for rank, mine in enumerate(own):
        built = JournalBuilder()
        built.process_facts = {"rank": rank, "world_size": 2, "host": f"node{rank}"}
        folder = train(built, 60, mine).write(tmp_path / f"part{rank}")
        (tmp_path / "r").mkdir(exist_ok=True)
        (folder / "manifest.json").rename(tmp_path / "r" / "manifest.json")
        (folder / "process-17").rename(tmp_path / "r" / f"process-{17 + rank}")
    return tmp_path / "r"


def test_an_attached_process_is_watched_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("earlier", "attached"):
        folder = train(JournalBuilder(), 4).write(tmp_path / "runs" / name)
        (folder / "process-17").rename(folder / f"process-{os.getpid()}")
    ended(tmp_path / "runs" / "earlier", ended_epoch_ns=1700000009000000000)
    assert find_recording(str(os.getpid())) == Path("runs/attached")


def test_a_journal_that_is_packed_while_we_look_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(JournalBuilder(), 4).write(tmp_path / "runs" / "r")
    monkeypatch.chdir(tmp_path)
    glob = Path.glob

    def gone(folder: Path, pattern: str) -> Iterator[Path]:
        for path in glob(folder, pattern):
            if path.name == "journal.bin":
                path.unlink()
            yield path

    monkeypatch.setattr(Path, "glob", gone)
    assert find_recording(None) == Path("runs/r")


def test_what_is_dead_for_long_is_reported_to_be(tmp_path: Path) -> None:
    folder = train(JournalBuilder(), 4).write(tmp_path / "r")
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (1.7e9, 1.7e9))
    watcher = Watcher(folder)
    view = watcher.look()
    watcher.close()
    assert view.state == "silent"
    assert last_line(view).endswith("and the job's end was not recorded: 4 steps.")
    assert view.silent > SILENCE


def test_the_parts_of_the_minute_sum_to_its_wall_clock(tmp_path: Path) -> None:
    built = train(JournalBuilder(), 40)
    built.fact("loader", identity=1, loader=1, dataset="D", batch_size=8, workers=2, prefetch_factor=2)
    for _ in range(6):
        built.next(MS, iterator=2).evaluate(2 * MS)
    built.span(Kind.CHECKPOINT, 5 * MS)
    start = built.now - 3 * MS
    built.record(Kind.GARBAGE, start, start + MS)
    train(built, 40)
    built.record(Kind.QUEUE, built.now - 15 * MS, 3, 1)
    built.record(Kind.MEMORY, built.now - 14 * MS, 1 << 20, 1)
    view, _ = view_of(built.process(tmp_path / "r"), 80)
    assert sum(part.total for part in (*view.phases, *view.between)) == view.wall == (80 * 20 + 18 + 5) * MS
    assert {part.name: part.total for part in view.between} == {"evaluation": 18 * MS, "checkpoint": 5 * MS}
    assert view.step is not None
    assert view.step.value == 20 * MS
    assert view.rate == pytest.approx(80 * 8 / 1.623)
    assert (view.queue.ready, view.queue.most) == (3, 4) if view.queue is not None else False
    assert (view.collections, view.collecting, view.bytes) == (1, MS, 1 << 20)
    assert max(view.curve) == 20 * MS


def test_without_a_loader_the_rate_is_of_what_the_model_is_called_with(tmp_path: Path) -> None:
    built = JournalBuilder()
    built.fact("inputs", identity=1, module="GPT", rows=8, tokens=512, steps=2)
    for _ in range(40):
        built.forward(MS, gradient=False).forward(2 * MS).backward(2 * MS).forward(2 * MS).backward(2 * MS).step(MS)
    view, _ = view_of(built.process(tmp_path / "r"), 40)
    assert view.rate == pytest.approx(1600, rel=0.03)
    built.fact("inputs", identity=1, module="GPT", rows=8, tokens=512, steps=2, changed=True)
    assert view_of(built.process(tmp_path / "again"), 40)[0].rate is None


def test_a_view_whose_parts_do_not_sum_is_refused() -> None:
    with pytest.raises(ValueError, match="sum"):
        RankView("rank 0", 0, "", "cpu", 1, wall=5)


def test_an_evaluation_that_runs_is_reported(tmp_path: Path) -> None:
    built = train(JournalBuilder(), 20)
    for _ in range(6):
        built.next(MS, iterator=2).evaluate(2 * MS)
    assert view_of(built.process(tmp_path / "r"), 20)[0].doing == "evaluation"


def test_a_process_that_has_not_trained_is_no_error(tmp_path: Path) -> None:
    view, own = view_of(JournalBuilder().process(tmp_path / "r"), 0)
    assert (view.steps, view.step, len(own)) == (0, None, 0)
    assert line(LiveView("r", "", "running", 3.0, 0.0, (view,))) == "3 s: no training step yet"


def test_the_rank_that_the_others_wait_for_is_marked(tmp_path: Path) -> None:
    watcher = Watcher(job_of_two(tmp_path, (2 * MS, 8 * MS)))
    view = watcher.look()
    watcher.close()
    assert [rank.late for rank in view.ranks] == [False, True]
    assert view.waiting == 6 * MS
    assert view.front is not None
    assert view.front.name == "rank 1"
    (table,) = (each for each in answer_of(view).tables if each.identity == "ranks")
    row = [cell.text for cell in table.rows[0]]
    assert row[:3] == ["rank 1", "node1", "60"]
    assert row[-1] == "straggler: the other ranks wait 6 ms/step for it"
    assert "rank 1 late (6 ms/step)" in line(view)


def test_equal_ranks_are_not_late(tmp_path: Path) -> None:
    watcher = Watcher(job_of_two(tmp_path, (2 * MS, 2 * MS)))
    assert not any(rank.late for rank in watcher.look().ranks)
    watcher.close()


def test_ranks_are_compared_in_the_steps_that_both_have_taken() -> None:
    import numpy as np

    step = Estimate(20.0 * MS, 20.0 * MS, 20.0 * MS, 40)
    views = [RankView(f"rank {rank}", rank, "a", "cpu", 40 + rank, steps=40, step=step) for rank in (0, 1)]
    slow = np.tile([2 * MS, 9 * MS], 20)
    ranks, waiting = with_stragglers([(views[0], slow), (views[1], slow[::-1].copy())])
    assert waiting == 0.0, "the second is one step ahead, and in the same steps they do the same"
    assert not any(rank.late for rank in ranks)


def test_the_end_is_reported_with_its_status(tmp_path: Path) -> None:
    folder = train(JournalBuilder(), 5).write(tmp_path / "r")
    ended(folder, ended_epoch_ns=1_700_000_090_000_000_000, exit_status=3)
    watcher = Watcher(folder)
    view = watcher.look()
    watcher.close()
    assert last_line(view) == "The job ended with status 3 after 91 s: 5 steps."


@pytest.mark.parametrize("width", [50, 60, 80, 200])
def test_bars_are_as_long_as_the_terminal_has_room(width: int, tmp_path: Path) -> None:
    watcher = Watcher(job_of_two(tmp_path, (2 * MS, 8 * MS)))
    view = watcher.look()
    watcher.close()
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(view, "q: leave", width))
    lines = console.export_text().splitlines()
    bars = [line for line in lines if "░" in line]
    assert len(bars) >= 3
    assert "…" not in "".join(bars)
    for bar in bars:
        full, whole = bar.count("█"), bar.count("█") + bar.count("░")
        assert full / whole * 100 == pytest.approx(float(bar.split()[-3]), abs=51 / whole)
    assert max(map(len, lines)) <= width


def test_a_recording_that_is_removed_while_it_is_watched_is_one_sentence(tmp_path: Path) -> None:
    watcher = Watcher(job_of_two(tmp_path, (2 * MS, 2 * MS)))
    watcher.look()
    shutil.rmtree(watcher.source)
    with pytest.raises(RecordingError, match=r"during steptime watch\. The job goes on"):
        watcher.look()
    watcher.close()


def test_the_machine_is_reported_with_what_holds_the_device_back() -> None:
    device = DeviceSample(
        uuid="GPU-385e383e-0b55", index=3, utilization=71.0, memory_bytes=3 << 30, clock_mhz=1410, max_clock_mhz=1980,
        throttle_reasons=0x44, power_watts=312.4, other_processes=1,
    )  # fmt: skip
    other = DeviceSample(uuid="MIG-485e383e-0b55", memory_bytes=2 << 30, memory_total_bytes=4 << 30)
    assert machine_lines(TelemetrySample(0, 1.25, 0.5, 1, devices=(device, other))) == [
        "GPU 3 (GPU-385e383e): 71 % busy, 3 GiB, 1,410 of 1,980 MHz, 312 W, held back by power cap and heat, "
        "1 other program on it",
        "GPU (MIG-485e383e): 2 GiB of 4 GiB",
        "CPU: this job 1.2 cores, other processes 0.5",
    ]

"""What measuring may cost a job: decided from counts and an injected clock, never from how fast this machine is."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.journal import RECORD, Kind  # noqa: E402
from steptime.probe import lines, profiling, schedule  # noqa: E402
from steptime.probe.allowance import (  # noqa: E402
    BARE,
    BARE_BYTES,
    DETAILED,
    DETAILED_BYTES,
    FASTEST_EVENT,
    LEAST,
    LONGEST,
    MOST_BYTES,
    PART,
    PER_NODE,
    SECOND,
    STACK_CALL_BYTES,
    STACKED_BARE,
    TIMES,
    Allowance,
    Form,
    graph_nodes,
)
from steptime.probe.discovery import Discovery  # noqa: E402
from steptime.probe.identity import RankPlace  # noqa: E402
from steptime.probe.lines import LineTimeline  # noqa: E402
from steptime.probe.memory import searching  # noqa: E402
from steptime.probe.profiling import ProfilerWindow  # noqa: E402
from steptime.probe.recorder import Recorder  # noqa: E402
from steptime.probe.session import Session, end_script  # noqa: E402

MS = 1_000_000


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time = self.held = 0
        self.free: int | None = None

    def allowance(self) -> Allowance:
        return Allowance(lambda: self.held, lambda: self.time, lambda: self.free)


def test_a_short_run_may_be_held_for_seconds_and_a_long_one_for_a_twentieth() -> None:
    clock = Clock()
    allowance = clock.allowance()
    assert allowance.share() == LEAST // 2
    clock.held = 2 * SECOND
    assert allowance.share() == SECOND // 2
    clock.held = 4 * SECOND
    assert allowance.share() == 0
    clock.time = 200 * SECOND
    assert allowance.share() == 3 * SECOND
    clock.time = 3600 * SECOND
    assert allowance.share() == LONGEST
    clock.time = 0
    assert allowance.share(asked=True) == LONGEST


def test_slow_steps_count_up_to_what_measuring_can_have_done() -> None:
    allowance = Clock().allowance()
    allowance.steps_took(steps=2, usual=100 * MS, took=300 * MS)
    assert allowance.spent == 100 * MS
    allowance.steps_took(steps=1, usual=100 * MS, took=60 * SECOND)  # an evaluation
    assert allowance.spent == 500 * MS
    allowance.steps_took(steps=3, usual=100 * MS, took=250 * MS)
    assert allowance.spent == 500 * MS


EVENTS = [
    (5_000, Form(5, detailed=True)),
    (LEAST // 2 // DETAILED, Form(1, detailed=True)),
    (LEAST // 2 // DETAILED + 1, Form(1, detailed=False)),
    (LEAST // 2 // BARE, Form(1, detailed=False)),
    (LEAST // 2 // BARE + 1, None),
    (0, Form(5, detailed=True)),
]


@pytest.mark.parametrize(("events", "form"), EVENTS)
def test_a_window_is_cut_to_one_step_then_loses_its_shapes_then_waits(events: int, form: Form | None) -> None:
    allowance = Clock().allowance()
    allowance.events = events
    assert allowance.plain(5) == form


def test_no_window_without_shapes_replaces_one_that_has_them() -> None:
    clock = Clock()
    allowance = clock.allowance()
    allowance.events, allowance.detailed = LEAST // 2 // BARE, True
    assert allowance.plain(5) is None
    clock.time = 3600 * SECOND
    assert allowance.plain(5) == Form(min(5, LONGEST // (allowance.events * DETAILED)), detailed=True)


def test_stacks_lose_their_shapes_and_allocations_before_they_are_left_out() -> None:
    allowance = Clock().allowance()
    allowance.expect(nodes=100, torch_calls=0, calls=1_000, parameters=0)
    assert allowance.stacked() == Form(1, detailed=True)
    allowance.expect(nodes=10_000, torch_calls=0, calls=1_000, parameters=0)
    assert allowance.stacked() == Form(1, detailed=False)
    allowance.events = LEAST // 2 // STACKED_BARE + 1
    assert allowance.stacked() is None
    allowance.expect(nodes=1, torch_calls=0, calls=1_000_000, parameters=0)
    assert allowance.stacked() is None


def test_what_the_first_window_has_cost_says_what_the_next_one_will() -> None:
    allowance = Clock().allowance()
    allowance.events = 1_000
    allowance.learn(Form(2, detailed=False), cost=2 * 50_000 * BARE, grown=2 * 2_000 * BARE_BYTES)
    assert (allowance.events, allowance.kept, allowance.detailed) == (50_000, 2_000, False)
    allowance.learn(Form(1, detailed=True), cost=20_000 * DETAILED, grown=0)  # of memory that was freed before
    assert (allowance.events, allowance.kept, allowance.detailed) == (20_000, 2_000, True)


def test_what_a_window_with_stacks_has_cost_says_what_the_next_one_will() -> None:
    allowance = Clock().allowance()
    allowance.events = 1_000
    allowance.learn(Form(1, detailed=True), cost=2 * SECOND, grown=0, stacks=True)
    assert (allowance.events, allowance.detailed) == (1_000, False)
    assert allowance.stacked() == Form(1, detailed=False)
    allowance.learn(Form(1, detailed=False), cost=2 * SECOND, grown=0, stacks=True)
    assert allowance.stacked() is None


EVENTS_IN_MEMORY = [
    (2 * DETAILED_BYTES, Form(2, detailed=True), Form(1, detailed=True)),
    (DETAILED_BYTES, Form(1, detailed=True), Form(1, detailed=False)),
    (DETAILED_BYTES - 1, Form(1, detailed=False), Form(1, detailed=False)),
    (BARE_BYTES, Form(1, detailed=False), None),
    (BARE_BYTES - 1, None, None),
]


@pytest.mark.parametrize(("each", "plain", "stacked"), EVENTS_IN_MEMORY)
def test_a_window_takes_a_part_of_the_memory_that_is_free(each: int, plain: Form | None, stacked: Form | None) -> None:
    clock = Clock()
    allowance = clock.allowance()
    allowance.expect(nodes=200, torch_calls=0, calls=0, parameters=0)
    clock.free = PART * each * allowance.events
    assert (allowance.plain(5), allowance.stacked()) == (plain, stacked)


def test_calls_of_functions_take_memory_with_stacks_alone() -> None:
    clock = Clock()
    allowance = clock.allowance()
    allowance.expect(nodes=1, torch_calls=0, calls=10_000, parameters=0)
    clock.free = PART * 10_000 * STACK_CALL_BYTES
    assert (allowance.plain(5), allowance.stacked()) == (Form(5, detailed=True), None)


def test_no_window_is_larger_than_a_gigabyte_unless_the_user_asks_for_it() -> None:
    clock = Clock()
    allowance = clock.allowance()
    allowance.expect(nodes=MOST_BYTES // DETAILED_BYTES // PER_NODE + 1, torch_calls=0, calls=0, parameters=0)
    clock.time, clock.free = 3600 * SECOND, 1 << 40
    assert allowance.plain(5) == Form(1, detailed=False)
    assert allowance.plain(5, asked=True) == Form(1, detailed=True)
    clock.free = 1 << 30
    assert allowance.plain(5, asked=True) is None


def test_ranks_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    clock.free = 1 << 30
    assert clock.allowance().room() == clock.free // PART
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert clock.allowance().room() == clock.free // PART // 8


def test_a_window_ends_before_what_the_job_does_in_it_fills_the_memory() -> None:
    clock = Clock()
    clock.free = 1 << 30
    allowance, form = clock.allowance(), Form(1, detailed=True)
    fast = TIMES * allowance.room() // BARE_BYTES * FASTEST_EVENT
    allowance.expect(nodes=100, torch_calls=0, calls=0, parameters=0)
    assert allowance.patience(form, SECOND // 2, MS, stacks=False, asked=False) == SECOND // 2
    assert allowance.patience(form, 10 * SECOND, MS, stacks=False, asked=False) == max(
        fast, TIMES * allowance.room() // allowance.bytes_of(form, stacks=False) * MS
    )
    assert allowance.patience(form, 80 * SECOND, 10 * SECOND, stacks=False, asked=False) == 80 * SECOND
    allowance.expect(nodes=allowance.room() // DETAILED_BYTES // PER_NODE, torch_calls=0, calls=0, parameters=0)
    assert allowance.patience(form, 80 * SECOND, 10 * SECOND, stacks=False, asked=False) == TIMES * 10 * SECOND


def test_nodes_of_the_graph_are_counted_for_nothing() -> None:
    parameter, before = torch.nn.Parameter(torch.ones(2)), graph_nodes()
    loss = parameter
    for _ in range(100):
        loss = loss * 2
    assert 100 <= graph_nodes() - before <= 102


def test_discovery_gives_up_after_as_many_calls_as_it_may_see() -> None:
    discovery, text = Discovery(most_calls=50), "abc"
    assert discovery.start()
    for _ in range(1_000):
        text.upper()
    found = discovery.stop()
    assert found.calls == 50


def test_discovery_counts_torchs_own_functions() -> None:
    discovery, tensor = Discovery(), torch.ones(2)
    assert discovery.start()
    for _ in range(10):
        torch.add(tensor, 1)
        tensor.mul(2)
        torch._C._nn.gelu(tensor)
        "a b".split(min(" ", "-"))  # which tensors can do, too
    assert discovery.stop().torch_calls == 30


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="sys.monitoring tells of timed functions only")
def test_the_line_timeline_gives_up_after_as_many_calls_as_it_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_CALLED", 50)
    notes: list[str] = []
    timeline = LineTimeline(lambda *_: None, lambda *_, **__: None, notes.append)

    def nothing() -> None:
        return

    def loop() -> None:
        for _ in range(1_000):
            nothing()

    assert timeline.start(loop.__code__, [], None)
    loop()
    assert sys.gettrace() is None
    timeline.stop()
    assert "after 50 calls" in notes[0]


# -- the script ------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """One that trains in this thread, listens to nothing, and whose allowance has a clock of the test's."""
    made = Session({"recording": str(tmp_path)}, schedule.run)
    clock = Clock()
    made.allowance = clock.allowance()
    made.allowance.clock = clock  # type: ignore[attr-defined]
    made._open()
    yield made
    end_script(made._script)  # else it ends at some later test's collection
    made.stop_listening()
    made.recorder.journal.close()


def steps(session: Session, count: int) -> None:
    for _ in range(count):
        torch.ones(4).add_(1)
        session._boundary(profiling.now())


def facts(session: Session, kind: str) -> list[dict[str, Any]]:
    every = map(json.loads, Path(session.recorder.folder, "facts.jsonl").read_text(encoding="utf-8").splitlines())
    return [each for each in every if each["fact"] == kind]


def windows(session: Session) -> list[tuple[int, int, bool, bool]]:
    """Number, steps, whether with stacks, and whether with shapes, of every window."""
    found = []
    for each in facts(session, "trace"):
        text = Path(session.recorder.folder, each["path"]).read_text(encoding="utf-8")
        found.append((each["number"], each["steps"], each["stacks"], "Input Dims" in text))
    return found


def takes(session: Session, number: int, plain: int, *, stacks: bool, **more: bool) -> list[bool]:
    """Runs the script of a window, and returns its answer once it is over."""
    answers: list[bool] = []

    def script() -> Iterator[None]:
        answers.append((yield from schedule._profiles(session, number, plain, stacks, **more)))
        while True:
            yield

    session._script = script()  # type: ignore[assignment]
    return answers


def test_a_usual_window_is_taken_whole(session: Session) -> None:
    session.allowance.expect(nodes=100, torch_calls=100, calls=1_000, parameters=10)
    answers = takes(session, schedule.STEADY_WINDOW, 5, stacks=True)
    steps(session, 10)
    assert windows(session) == [(3, 5, False, True), (4, 1, True, True)]
    assert answers == [True]
    assert not facts(session, "note")


def test_a_window_of_many_operators_is_cut_and_the_recording_says_so(session: Session) -> None:
    session.allowance.events = 200_000
    answers = takes(session, schedule.STEADY_WINDOW, 5, stacks=False)
    steps(session, 10)
    assert windows(session) == [(3, 1, False, False)]
    assert answers == [True]
    (note,) = facts(session, "note")
    assert note["text"].startswith(
        "profiled less than usual (1 step instead of 5, no shapes of tensors and no modules)"
    )


def test_a_window_for_which_there_is_no_memory_waits_and_the_recording_says_so(session: Session) -> None:
    session.allowance.expect(nodes=1_000, torch_calls=0, calls=0, parameters=0)
    session.allowance.clock.free = 40 << 20  # type: ignore[attr-defined]
    answers = takes(session, schedule.STEADY_WINDOW, 5, stacks=True)
    steps(session, 10)
    assert (answers, windows(session)) == ([False], [])
    (note,) = facts(session, "note")
    assert note["text"].endswith(
        "(window 3 waits until it may be taken): a step has about 15,000 events of the profiler; measuring may take "
        "3 s, or 5% of a longer run, and a window 10 MB of memory, of what is free"
    )
    session.allowance.clock.free = 400 << 20  # type: ignore[attr-defined]
    assert takes(session, schedule.STEADY_WINDOW, 5, stacks=True, late=True) == []
    steps(session, 10)
    assert windows(session) == [(3, 2, False, True), (4, 1, True, True)]


def test_a_rank_without_the_memory_for_what_the_first_one_takes_leaves_it_out(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "place", lambda: RankPlace(1, None, 2))
    schedule.agree(session.plan["recording"], schedule.Agreed(3, 2, 2, True, 0))
    session.allowance.expect(nodes=1_000, torch_calls=0, calls=0, parameters=0)
    session.allowance.clock.free = 40 << 20  # type: ignore[attr-defined]
    takes(session, schedule.STEADY_WINDOW, 5, stacks=True)
    steps(session, 10)
    assert windows(session) == []
    assert "window 3 waits" in facts(session, "note")[0]["text"]


def test_a_window_that_would_cost_too_much_waits_until_the_run_is_long_enough(session: Session) -> None:
    session.allowance.events, session.allowance.detailed = 600_000, True
    answers = takes(session, schedule.STEADY_WINDOW, 5, stacks=False)
    steps(session, 10)
    assert (answers, windows(session)) == ([False], [])
    assert "waits until it may be taken" in facts(session, "note")[0]["text"]
    session.allowance.clock.time = 3600 * SECOND  # type: ignore[attr-defined]
    again = takes(session, schedule.STEADY_WINDOW, 5, stacks=False, late=True)
    steps(session, 10)
    assert again == [True]
    assert windows(session) == [(3, 1, False, True)]


def test_plain_watching_takes_the_window_that_waits(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FAST_PATH_TIME", 0)
    monkeypatch.setattr(schedule, "REQUEST_PERIOD", 0)
    session.allowance.events, session.allowance.detailed = 600_000, True
    session._script = schedule._keep_timing(session, MS, False, True)
    steps(session, 20)
    assert windows(session) == []
    session.allowance.clock.time = 3600 * SECOND  # type: ignore[attr-defined]
    steps(session, 20)
    assert windows(session) == [(3, 1, False, True)]


def test_a_window_that_is_asked_for_is_taken_at_once(session: Session) -> None:
    session.allowance.events, session.allowance.slowed = 100_000, 60 * SECOND
    takes(session, schedule.STEADY_WINDOW + 2, 5, stacks=False)
    steps(session, 10)
    assert windows(session) == []
    takes(session, schedule.STEADY_WINDOW + 2, 5, stacks=False, asked=True)
    steps(session, 10)
    assert windows(session) == [(5, 5, False, True)]


def test_all_ranks_take_what_the_first_one_may(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "place", lambda: RankPlace(1, None, 2))
    monkeypatch.setattr(schedule, "ahead", lambda *_: 0)
    first = schedule.Agreed(3, 2, 2, False, 0, detailed=False)
    schedule.agree(session.plan["recording"], first)
    session.allowance.events = 10
    takes(session, schedule.STEADY_WINDOW, 5, stacks=True)
    steps(session, 10)
    assert windows(session) == [(3, 2, False, False)]


def test_where_the_first_rank_must_wait_all_do(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "place", lambda: RankPlace(1, None, 2))
    schedule.agree(session.plan["recording"], schedule.Agreed(3, 2, 0, False, 0))
    answers = takes(session, schedule.STEADY_WINDOW, 5, stacks=True)
    steps(session, 10)
    assert (answers, windows(session)) == ([False], [])
    assert not schedule._agreed(session, schedule.STEADY_WINDOW)
    schedule.agree(session.plan["recording"], schedule.Agreed(3, 12, 1, False, 0, late=True))
    assert schedule._agreed(session, schedule.STEADY_WINDOW)


def test_lines_are_sampled_only_while_there_is_anything_left(session: Session) -> None:
    session.allowance.slowed = 60 * SECOND
    assert next(schedule._sampled(session), "over") == "over"
    assert sys.gettrace() is None


def test_leaks_are_not_hunted_where_looking_takes_too_long(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 1 << 62, SECOND))
    monkeypatch.setattr(searching, "now", lambda: next(times))
    for _ in searching.search_growth(session):
        pass
    assert not facts(session, "leak")
    assert facts(session, "note")[0]["text"] == "leaks were not looked for: to look at what lives takes 1.0 s"


KEEPS = """
import torch
def train(steps, step, most):
    kept = []
    for _ in range(steps):
        kept.append(torch.ones(4))
        del kept[: len(kept) // most * most]
        step()
"""


def run_with_search(session: Session, job: str, folder: Path, *arguments: Any) -> None:
    """Runs `train(steps, step, …)` of a job with the search for growth, and looks at what it has reported."""
    search, found = searching.search_growth(session), list[searching.ReportedGrowth]()

    def step() -> None:
        steps(session, 1)
        try:
            next(search)
        except StopIteration as ended:
            found.extend([] if found else [ended.value])
            found[0]._due = 0
            found[0].look()

    script = folder / "train.py"
    script.write_text(job, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(job, script, "exec"), names)
    names["train"](arguments[0], step, *arguments[1:])


EPOCHS = """
import torch
def train(steps, step, most):
    outputs = []
    for number in range(steps):
        if number % 10 == 9:
            outputs.append(torch.ones(1 << 16))
            del outputs[:-most]
        step()
"""


@pytest.mark.parametrize("most", [1000, 1])
def test_what_an_epochs_end_leaves_behind_is_looked_for_once_memory_has_grown(
    session: Session, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MUCH_GROWN", 1 << 20)
    monkeypatch.setattr(searching, "memory_in_use", lambda: session.steps << 15)
    run_with_search(session, EPOCHS, tmp_path, 160, most)
    leaks = [(each["name"], each["site"]["text"]) for each in facts(session, "leak")]
    assert leaks == ([("outputs", "outputs.append(torch.ones(1 << 16))")] if most > 1 else [])


def test_nothing_is_looked_for_again_while_memory_stays_as_it_is(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "memory_in_use", lambda: 1 << 30)
    run_with_search(session, EPOCHS, tmp_path, 160, 1000)
    assert not facts(session, "leak")


@pytest.mark.parametrize("most", [20, 1000])
def test_a_list_that_was_emptied_since_it_was_reported_is_withdrawn(
    session: Session, most: int, tmp_path: Path
) -> None:
    run_with_search(session, KEEPS, tmp_path, 60, most)
    reported = {each["name"] for kind in ("leak", "growing") for each in facts(session, kind)}
    assert "kept" in reported
    freed = {name for each in facts(session, "freed") for name in each["names"]}
    assert freed == (reported if most == 20 else set())


def test_stages_in_the_same_steps_end_each_at_its_own() -> None:
    seen = []

    def stage(name: str, count: int) -> Generator[None, None, None]:
        for _ in range(count):
            yield
            seen.append(name)

    assert len(list(schedule._together(stage("a", 1), stage("b", 3), stage("c", 0)))) == 3
    assert seen == ["a", "b", "b", "b"]


# -- what a window takes ----------------------------------------------------------------------------------------------


def kept(session: Session) -> Counter[int]:
    session.recorder.journal.flush()
    data = Path(session.recorder.folder, "journal.bin").read_bytes()
    return Counter(kind for kind, *_ in RECORD.iter_unpack(data))


def test_a_window_that_the_job_ends_in_is_accounted_for(session: Session) -> None:
    session._script = schedule._profile(session, ProfilerWindow(session.recorder, 1, stacks=False), 3)
    session._boundary(profiling.now())
    before = kept(session)
    session.finish()
    after = kept(session)
    assert after[Kind.PROFILED] == before[Kind.PROFILED] + 1
    assert after[Kind.PAUSE] == before[Kind.PAUSE] + 2  # of the window, and of the whole end around it
    assert not windows(session)


def test_the_events_of_a_window_are_freed_when_they_are_written(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    original = torch.profiler.profile

    def profile(*arguments: Any, **options: Any) -> Any:
        made.append(original(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(torch.profiler, "profile", profile)
    for ends in (1, 0):
        window = ProfilerWindow(session.recorder, ends, stacks=False)
        window.start()
        window.stop(ends)
    assert [each.profiler.kineto_results for each in made] == [None, None]


def test_what_is_only_exported_is_exported_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    recorder = Recorder(print)
    recorder.open(str(tmp_path))

    def named(number: int) -> Counter[tuple[Any, ...]]:
        window = ProfilerWindow(recorder, number, stacks=False)
        window.start()
        model(torch.ones(2, 4)).sum().backward()
        window.stop(1)
        events = json.loads((tmp_path / f"trace-{number}.json").read_text(encoding="utf-8"))["traceEvents"]
        return Counter(
            (each.get("cat"), each.get("name"), each["ph"], str(each.get("args", {}).get("Input Dims")))
            for each in events
            if not str(each.get("name")).startswith("Process")
        )

    named(1)
    quick = named(2)
    monkeypatch.setattr(profiling, "only_exported", lambda: None)
    assert named(3) == quick


def test_pauses_that_lie_in_each_other_hold_the_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, times = Recorder(print), iter((10, 15, 40))
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(times))
    for start in (5, 2, 30):
        recorder.pause(start)
    assert recorder.held == 5 + 5 + 10

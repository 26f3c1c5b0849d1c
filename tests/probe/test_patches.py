"""What the probe puts into torch must not be seen by the user's program."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import struct
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime.journal import RECORD, Flag, Kind  # noqa: E402
from steptime.probe import backwards, calls  # noqa: E402
from steptime.probe.inputs import InputCheck, Inputs  # noqa: E402
from steptime.probe.patches import (  # noqa: E402
    BackwardTimer,
    FastPath,
    InferenceObserver,
    TopModuleTimer,
    save_timers,
)
from steptime.probe.ranges import RangePatch  # noqa: E402
from steptime.probe.recorder import ThreadNumbers  # noqa: E402


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.fast_path = FastPath(self.records, ThreadNumbers())
        self.fast_path.follow(get_ident())
        self.alone = True
        self.owners: list[Any] = []
        self.ranges: list[tuple[int, Any, bool]] = []
        self.forwards: list[tuple[int, int]] = []
        self.backwards: list[int] = []
        self.saves = 0

    @property
    def kept(self) -> list[tuple[int, ...]]:
        """Records as the journal writes them."""
        return list(RECORD.iter_unpack(struct.pack(f"<{len(self.records)}q", *self.records)))

    def range_starts(self, kind: int, owner: Any, start: int) -> int:
        assert start > 0
        self.owners.append(owner)
        return len(self.owners)

    def range_ends(self, kind: int, number: int, start: int, end: int, failed: bool) -> None:
        assert start <= end
        self.ranges.append((kind, self.owners[number - 1] if number else None, failed))

    def only(self, kind: int, owner: Any) -> bool:
        return self.alone

    def failed(self, error: Exception) -> None:
        raise error

    def backward_starts(self, tensors: Any, start: int) -> None:
        assert start > 0

    def backward_ends(self, start: int, end: int, flags: int) -> None:
        assert start <= end
        self.backwards.append(flags)

    def forward_ends(self, top_module: int, start: int, end: int, flags: int) -> None:
        assert start <= end
        self.forwards.append((top_module, flags))

    def saved(self, start: int, end: int) -> None:
        assert start <= end
        self.saves += 1


@pytest.fixture
def heard() -> Iterator[Heard]:
    """With every backward pass told to it."""
    found = Heard()
    calls.install()
    backwards.install()
    timer = BackwardTimer(found)
    backwards.observe(timer)
    yield found
    backwards.unobserve(timer)
    calls._observed.clear()
    calls.remove_if_idle()
    backwards.remove_if_idle()


@pytest.fixture
def ranges(heard: Heard) -> Iterator[Heard]:
    patch = RangePatch(heard)
    patch.install()
    yield heard
    patch.remove()


class Failing(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        raise ValueError("the user's own mistake")


def frames_of(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_loader_and_optimizer_are_heard_with_their_objects(ranges: Heard) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2)))
    for (batch,) in loader:
        optimizer.zero_grad()
        (parameter * batch).sum().backward()
        optimizer.step()
    kinds = [(kind, failed) for kind, _, failed in ranges.ranges]
    step = [(Kind.LOADER_NEXT, False), (Kind.ZERO_GRAD, False), (Kind.OPTIMIZER_STEP, False)]
    assert kinds == [*step, *step, (Kind.LOADER_NEXT, True)]
    assert all(owner is optimizer for kind, owner, _ in ranges.ranges if kind == Kind.OPTIMIZER_STEP)


def test_what_a_root_is_called_with_is_looked_at_only_while_somebody_waits(heard: Heard) -> None:
    model, looks = torch.nn.Linear(2, 1), list[tuple[int, ...]]()

    class Check(InputCheck):
        def look(self, start: int, arguments: tuple[Any, ...], named: Any) -> None:
            looks.append(tuple(arguments[0].shape))

    top_module = TopModuleTimer(heard, model, 3)
    top_module.install()
    model(torch.ones(4, 2))
    top_module.check = Check(Inputs(lambda: model, "Linear", 4, None), lambda: None)
    with torch.no_grad():
        model(torch.ones(9, 2))
    model(torch.ones(4, 2))
    heard.fast_path.until = 1 << 62
    model(torch.ones(5, 2))
    heard.fast_path.until = 0
    top_module.check.due = 1 << 62
    model(torch.ones(6, 2))
    assert looks == [(4, 2)]


def test_while_nobody_waits_for_a_boundary_intervals_are_only_kept(ranges: Heard) -> None:
    ranges.fast_path.until = 1 << 62
    model = torch.nn.Linear(2, 2)
    top_module = TopModuleTimer(ranges, model, 9)
    top_module.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward = torch.autograd.backward
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2))):
        backward(model(batch).sum())
        optimizer.step()
    step = [
        (Kind.FORWARD, Flag.GRADIENT | Flag.TRAINING, 9),
        (Kind.BACKWARD, 0, 0),
        (Kind.OPTIMIZER_STEP, 0, 2),
    ]
    batch_came, no_more = (Kind.LOADER_NEXT, 0, 1), (Kind.LOADER_NEXT, Flag.EXHAUSTED, 1)
    heard = [(kind, flags, number) for kind, flags, _, number, _, _ in ranges.kept]
    assert heard == [batch_came, *step, batch_came, *step, no_more]
    assert {record[2] for record in ranges.kept} == {1}
    assert all(start <= end for *_, start, end in ranges.kept)
    assert not ranges.forwards
    assert not ranges.backwards
    assert not ranges.ranges


def test_what_is_kept_names_the_thread_that_it_happened_in(heard: Heard) -> None:
    heard.fast_path.until = 1 << 62
    model = torch.nn.Linear(2, 2)
    TopModuleTimer(heard, model, 5).install()
    backward = torch.autograd.backward

    def learn() -> None:
        backward(model(input=torch.ones(1, 2)).sum())

    learn()
    other = threading.Thread(target=learn)
    other.start()
    other.join()
    assert [(kind, thread) for kind, _, thread, *_ in heard.kept] == [
        (Kind.FORWARD, 1),
        (Kind.BACKWARD, 1),
        (Kind.FORWARD, 2),
        (Kind.BACKWARD, 2),
    ]


def test_a_gradient_that_is_asked_for_is_a_partial_backward(heard: Heard) -> None:
    weight = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(weight.sum(), weight)[0].tolist() == [1, 1, 1]
    assert heard.backwards == [Flag.PARTIAL]


def test_what_is_kept_is_none_of_the_garbage_collectors_business(heard: Heard) -> None:
    heard.fast_path.until = 1 << 62
    parameter = torch.nn.Parameter(torch.ones(2))
    backward = torch.autograd.backward
    tracked = {False: 0, True: 0}
    gc.disable()
    try:
        for watched in (False, True, False, True):
            timers, backwards._observers[:] = backwards._observers[:], backwards._observers if watched else []
            for number in range(200):
                if number == 100:  # tuples that were freed are made anew from a store of their own, which fills first
                    gc.collect()
                backward(parameter.sum())
            tracked[watched] = gc.get_count()[0]
            backwards._observers[:] = timers
    finally:
        gc.enable()
    assert len(heard.kept) == 400
    assert abs(tracked[True] - tracked[False]) <= 20


def test_a_range_with_one_possible_owner_is_known_by_its_name(ranges: Heard) -> None:
    ranges.fast_path.until = 1 << 62
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(3):
        optimizer.step()
    assert len(ranges.owners) == 1  # asked once
    ranges.alone = False
    ranges_of_two = [torch.optim.Adam([parameter]), torch.optim.Adam([parameter])]
    for _ in range(2):
        for each in ranges_of_two:
            each.step()
    assert [owner is each for owner, each in zip(ranges.owners[1:], ranges_of_two * 2, strict=True)] == [True] * 4


def test_a_short_zero_grad_is_timed_once_while_nobody_waits_for_a_boundary(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = RangePatch(heard)
    patch.install()
    try:
        heard.fast_path.until = 1 << 62
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        for short in (1 << 62, 0):
            monkeypatch.setattr("steptime.probe.ranges.SHORT", short)
            heard.records.clear()
            patch.forget()
            for _ in range(3):
                optimizer.zero_grad()
            assert [kind for kind, *_ in heard.kept] == [Kind.ZERO_GRAD] * (1 if short else 3)
    finally:
        patch.remove()


def test_after_a_short_batch_only_its_next_is_kept(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    asked: list[bool] = []
    monkeypatch.setattr("steptime.probe.ranges.distinguish", asked.append)
    patch = RangePatch(heard)
    patch.install()
    heard.fast_path.until = 1 << 62

    class Stamping(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            fetched[get_ident()] = time.perf_counter_ns()
            collated[get_ident()] = time.perf_counter_ns() + 1
            return index

    fetched, collated = (vars(sys.modules["steptime.probe.ranges"])[name] for name in ("fetched", "collated"))
    try:
        for short, wanted in ((0, []), (1 << 62, [False])):
            monkeypatch.setattr("steptime.probe.ranges.SHORT_BATCH", short)
            heard.fast_path.together = False
            patch.forget()
            heard.records.clear()
            batches = iter(torch.utils.data.DataLoader(Stamping()))
            next(batches), next(batches)
            assert asked == wanted
            both = [Kind.FETCH, Kind.COLLATE, Kind.LOADER_NEXT]
            assert [kind for kind, *_ in heard.kept] == both + ([Kind.LOADER_NEXT] if short else both)
    finally:
        patch.remove()
        fetched.clear()
        collated.clear()


def test_a_range_of_the_users_that_is_named_like_torchs_is_left_alone(ranges: Heard) -> None:
    with torch.profiler.record_function("Optimizer.step#mine"):
        pass
    assert not ranges.owners
    assert not ranges.ranges


def test_ranges_of_the_users_own_are_left_alone(ranges: Heard) -> None:
    with torch.profiler.record_function("mine") as mine:
        pass
    assert ranges.ranges == []
    assert not [name for name in vars(mine) if "steptime" in name]


def test_the_range_patch_leaves_the_class_as_it_is_and_its_removal_restores_the_code(heard: Heard) -> None:
    target = torch.autograd.profiler.record_function
    before, codes = dict(vars(target)), [each.__code__ for each in (target.__enter__, target.__exit__)]
    patch = RangePatch(heard)
    patch.install()
    assert dict(vars(target)) == before
    patch.remove()
    assert [each.__code__ for each in (target.__enter__, target.__exit__)] == codes


def test_an_error_in_forward_shows_no_frame_of_ours(heard: Heard) -> None:
    model = Failing()
    with pytest.raises(ValueError, match="own mistake") as bare:
        model(1)
    TopModuleTimer(heard, model, 1).install()
    with pytest.raises(ValueError, match="own mistake") as watched:
        model(1)
    assert frames_of(watched.value) == frames_of(bare.value)
    assert heard.forwards == [(1, Flag.GRADIENT | Flag.TRAINING)]


def test_an_error_in_backward_shows_no_frame_of_ours(heard: Heard) -> None:
    loss = torch.ones(1)
    backwards._INLAY.remove()
    with pytest.raises(RuntimeError) as bare:
        loss.backward()
    backwards.install()
    heard.backwards.clear()
    with pytest.raises(RuntimeError) as watched:
        loss.backward()
    assert traceback.format_tb(watched.value.__traceback__)[1:] == traceback.format_tb(bare.value.__traceback__)[1:]
    assert heard.backwards == [0]


def test_anomaly_detection_is_seen_on_the_backward(heard: Heard) -> None:
    backward = torch.autograd.backward
    with torch.autograd.set_detect_anomaly(True):
        backward(torch.ones(1, requires_grad=True).sum())
    assert heard.backwards == [Flag.ANOMALY]


def test_a_watched_root_pickles_and_copies_as_before(heard: Heard) -> None:
    model = torch.nn.Linear(2, 2)
    bare = pickle.dumps(model)
    TopModuleTimer(heard, model, 1).install()
    assert pickle.dumps(model) == bare
    assert "_compiled_call_impl" not in vars(copy.deepcopy(model))
    file = io.BytesIO()
    torch.save(model, file)
    assert b"steptime" not in file.getvalue()


def test_a_watched_root_is_freed_as_soon_as_the_user_lets_go(heard: Heard) -> None:
    gc.disable()
    try:
        model = torch.nn.Linear(2, 2)
        patch = TopModuleTimer(heard, model, 1)
        patch.install()
        model(torch.ones(1, 2))
        gone = weakref.ref(model)
        del model
        assert gone() is None
        assert not patch.alive
        patch.remove()
    finally:
        gc.enable()


def test_a_root_that_the_user_compiles_afterwards_is_timed_as_it_is_called(heard: Heard) -> None:
    model = torch.nn.Linear(2, 2)
    patch = TopModuleTimer(heard, model, 1)
    patch.install()
    model._compiled_call_impl = users = lambda x: "compiled"
    assert model(1) == "compiled"
    patch.remove()
    assert not patch.alive
    assert model._compiled_call_impl is users
    assert len(heard.forwards) == 1


def test_a_compiled_root_is_timed_from_outside(heard: Heard) -> None:
    model = torch.nn.Linear(2, 2)
    model._compiled_call_impl = users = lambda x: "compiled"
    patch = TopModuleTimer(heard, model, 7)
    patch.install()
    assert model(1) == "compiled"
    assert [top_module for top_module, _ in heard.forwards] == [7]
    patch.remove()
    assert model._compiled_call_impl is users


def test_a_root_that_was_compiled_while_the_watch_was_off_stays_compiled(heard: Heard) -> None:
    model = torch.nn.Linear(2, 2)
    patch = TopModuleTimer(heard, model, 7)
    patch.install()
    patch.remove()
    model._compiled_call_impl = users = lambda x: "compiled"
    patch.install()
    TopModuleTimer(heard, model, 7).install()  # as where its roots are looked for once more
    assert model(1) == "compiled"
    assert [top_module for top_module, _ in heard.forwards] == [7]
    patch.remove()
    assert model._compiled_call_impl is users


def test_a_compiled_root_is_freed_with_all_that_its_compiled_call_holds(heard: Heard) -> None:
    model = torch.nn.Linear(2, 2)
    model._compiled_call_impl = functools.partial(torch.nn.Linear.forward, model)
    patch = TopModuleTimer(heard, model, 7)
    patch.install()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert not patch.alive


def test_what_torch_saves_is_timed_below_the_function_that_pickle_looks_up(heard: Heard) -> None:
    import inspect

    functions = (torch.save, torch.serialization._save, torch.nn.Module.__call__, torch.amp.GradScaler.step)
    before = [inspect.getsource(each) for each in functions]
    timers = save_timers(heard)
    for timer in timers:
        timer.install()
    try:
        for new in (True, False):
            file = io.BytesIO()
            torch.save({"a": 1}, file, _use_new_zipfile_serialization=new)
            assert torch.load(io.BytesIO(file.getvalue())) == {"a": 1}
        assert [inspect.getsource(each) for each in functions] == before
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save
    finally:
        for timer in timers:
            timer.remove()
    torch.save({}, io.BytesIO())
    assert heard.saves == 2


def test_a_job_that_only_infers_is_known_at_the_fourth_call_without_a_frame(heard: Heard) -> None:
    found: list[Any] = []
    original = torch.nn.Module.__call__
    watch = InferenceObserver(found.append)
    model = Failing()
    with pytest.raises(ValueError, match="own mistake") as bare:
        model(1)
    watch.install()
    try:
        assert model.__call__.__func__ is original
        for _ in range(4):
            with pytest.raises(ValueError, match="own mistake") as watched:
                model(1)
    finally:
        watch.remove()
    assert frames_of(watched.value) == frames_of(bare.value)
    assert torch.nn.Module.__call__ is original
    assert found == [model]


def test_what_fails_in_the_watch_never_reaches_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    from steptime.probe import schedule
    from steptime.probe.session import Session

    session = Session({"recording": "missing-folder/run"}, schedule.run)
    session.install()
    try:
        torch.nn.Linear(1, 1)(torch.ones(1)).sum().backward()  # no folder can be made
    finally:
        session.stop_listening()
    assert capsys.readouterr().err.count("switched off") == 1
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert not hasattr(torch.autograd.backward, "__wrapped__")

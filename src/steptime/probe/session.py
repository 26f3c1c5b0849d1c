"""Session: state of the running job, as the probe knows it.

It listens, counts steps and writes the journal. Any failure in it switches the whole probe off, with one message, and
training goes on. `schedule` decides what happens at which step.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import inspect
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from threading import get_ident
from typing import Any

import torch

from steptime.journal import Flag, Kind
from steptime.probe import backwards, calls, device, identity, loader
from steptime.probe.allowance import Allowance
from steptime.probe.inlay import Inlay
from steptime.probe.losses import LossObserver
from steptime.probe.memory import exhausted
from steptime.probe.messages import BarMark, switched_off
from steptime.probe.objects import ConstructionObserver, ObjectNumbers, Owners, torch_optimizer, unasked
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.pass_sites import PassSites, leaves
from steptime.probe.patches import (
    BackwardTimer,
    FastPath,
    Follower,
    InferenceObserver,
    NewModelObserver,
    TopModuleTimer,
    save_timers,
    scaler_timer,
)
from steptime.probe.ranges import RangePatch
from steptime.probe.recorder import Recorder, finish_as_child
from steptime.probe.steps import StepCounter, StepNumber, StepTimer, Untrained

GARBAGE = int(Kind.GARBAGE)
LEAST = 20_000
"""ns: shorter collections are not recorded. Hundreds of young ones per step cost microseconds."""
DEVICES_PERIOD = 1_000_000_000
"""ns between two checks of which devices the process has a context on."""
KEPT = 8192
"""Readings kept between two boundaries; the oldest are dropped. Even, because readings come in pairs."""


class GarbageObserver:
    """Timer of Python's garbage collections, without a Python function among gc.callbacks. `write` passes each
    collection to `interval(kind, identity, start, end)`, without its generation.

    Python handles a signal that arrives during a collection at the next bytecode. In a Python callback, the user's
    KeyboardInterrupt would be raised there, where the collector can only print and drop it. So the callback consists of
    C functions only: `getattr(stamps, "start", info)` reads a property whose getter is `next`, which appends the
    clock's reading.

    The job can see the callback: Python has no other hook for the start and duration of a collection (`gc`'s statistics
    only count, `sys.monitoring` has no such event). It is the first one, so that a job that appends and pops finds its
    own."""

    def __init__(self, interval: Callable[[int, int, int, int], None]) -> None:
        self._interval = interval
        self._readings: deque[int] = deque(maxlen=KEPT)
        self._callback = _stamper(self._readings)

    def install(self) -> None:
        gc.callbacks.insert(0, self._callback)

    def remove(self) -> None:
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def write(self) -> None:
        """Passes the collections so far on to `interval`; called at a boundary, outside of any collection."""
        readings = self._readings
        while len(readings) >= 2:
            start, end = readings.popleft(), readings.popleft()
            if end - start >= LEAST:
                self._interval(GARBAGE, 0, start, end)


def _stamper(readings: deque[int]) -> Callable[[str, dict[str, int]], Any]:
    """Returns a callback for the collector that appends the clock's reading, in C from end to end."""
    take = map(readings.append, iter(time.perf_counter_ns, None))

    class Stamps:
        start = stop = property(next)
        __next__ = take.__next__

    return functools.partial(getattr, Stamps())


LOADER_NEXT, OPTIMIZER_STEP, SCALER_STEP = int(Kind.LOADER_NEXT), int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP)
FORWARD, BACKWARD, QUEUE = int(Kind.FORWARD), int(Kind.BACKWARD), int(Kind.QUEUE)
CHECKPOINT, BOUNDARY = int(Kind.CHECKPOINT), int(Kind.BOUNDARY)
UPDATES = (OPTIMIZER_STEP, SCALER_STEP)
EXHAUSTED, GRADIENT, UNCHANGED = int(Flag.EXHAUSTED), int(Flag.GRADIENT), int(Flag.UNCHANGED)


Stage = Generator[None, None, None]


def guarding(method: Callable[..., None]) -> Callable[..., None]:
    """Decorator of session callbacks in torch: an error ends the instrumentation, and never reaches the user."""

    @functools.wraps(method)
    def guarded(self: Session, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
            self.failed(error)
            pass_on(error)

    return guarded


class Session:
    """Instrumentation of one process. It implements `patches.Listener`, and resumes the schedule (`schedule.run`) at
    step boundaries."""

    def __init__(self, plan: dict[str, Any], script: Callable[[Session], Stage]) -> None:
        self.plan, self._make_script = plan, script
        self.recorder = Recorder(self.switch_off)
        self.allowance = Allowance(lambda: self.recorder.held)
        self.fast_path = FastPath(self.recorder.journal.records, self.recorder.threads)
        self.counter, self.numbers = StepCounter(), ObjectNumbers()
        self.saves, self.steps, self.ended = 0, 0, StepNumber(self.recorder.journal)
        self.step_timer, self.untrained, self.pass_sites = StepTimer(), Untrained(), PassSites(self.recorder.fact)
        self.top_modules: list[TopModuleTimer] = []
        self.watching = self.slowed = False  # slowed: the probe itself makes steps longer
        self.trial, self.catching = Follower(), Follower()
        self.update_observer: Callable[[Any], None] | None = None
        self.logging: list[Follower] = []
        self.active, self._opening, self._pid = True, threading.Lock(), os.getpid()
        self.described: dict[int, int | None] = {}  # by number, with the batch size of a loader's iterator
        self._script: Stage | None = None
        self.housekeeping = Housekeeping(self.recorder)
        self._make_patches()

    def _make_patches(self) -> None:
        self._ranges = RangePatch(self)
        self.iterators = Owners(self._ranges.forget)
        self.optimizers = Owners(self._ranges.forget)
        self._constructions = ConstructionObserver(self._optimizer_made)
        self._steady: list[RangePatch | Inlay] = [self._ranges, scaler_timer(self), *save_timers(self)]
        self._backwards = BackwardTimer(self)
        self._losses = LossObserver(self)
        self._garbage = GarbageObserver(self.recorder.interval)
        self._inference = InferenceObserver(self.inferring)
        self._new_models = NewModelObserver(self.add_top_module, self.fast_path)

    def install(self) -> None:
        """Starts listening. Raises any error that torch's layout causes; the caller then switches off."""
        self.instrument()
        for patch in (self._losses, self._inference, self._constructions):
            patch.install()
        self._garbage.install()

    def instrument(self) -> None:
        calls.install()
        backwards.install()
        for patch in (*self._steady, *self.top_modules):
            patch.install()
        backwards.observe(self._backwards)
        self.watching = True

    def uninstrument(self) -> None:
        """Removes all timers; steps go unseen until `instrument`."""
        for patch in (*self._steady, *self.top_modules):
            patch.remove()
        backwards.unobserve(self._backwards)
        calls.remove_if_idle()
        backwards.remove_if_idle()
        self.watching = False

    def switch_off(self, reason: str) -> None:
        """Ends the probe in this process: restores everything, writes one line on stderr; the job goes on."""
        if not self.active:
            return
        self.stop_listening()
        end_script(self._script if get_ident() == self.fast_path.trainer else None)
        self.recorder.note(f"switched off: {reason}")
        switched_off(reason)

    def stop_listening(self) -> None:
        self.active = False
        for patch in (self._losses, self._inference, self._new_models, self._constructions, self._garbage):
            patch.remove()
        self.uninstrument()

    def failed(self, error: Exception) -> None:
        """Switches off after an error of ours; raises it with STEPTIME_DEBUG."""
        if not os.environ.get("STEPTIME_DEBUG"):
            self.switch_off(f"{type(error).__name__}: {error}")
        elif self.active:
            raise error

    def _open(self) -> None:
        """Makes the folder and starts the schedule, at the first sign of training."""
        if self.recorder.folder or not self._opening.acquire(blocking=False):  # two threads start at once
            return
        self.fast_path.follow(get_ident())
        folder = identity.make_folder(self.plan["recording"], self._pid)
        identity.write_process(folder, device="cpu", device_name="")
        self.recorder.open(folder)
        finish_as_child(self.finish)
        self._start_script()

    def _start_script(self) -> None:
        end_script(self._script)
        self.fast_path.until = 0
        self._script = self._make_script(self)
        next(self._script)

    # -- what the patches tell -------------------------------------------------------------------------------------

    def range_starts(self, kind: int, owner: Any, start: int) -> int:
        if kind == LOADER_NEXT:
            return self._loader_next_starts(owner, start)
        optimizer = torch_optimizer(owner) if kind == SCALER_STEP else owner
        if kind == OPTIMIZER_STEP and self.update_observer is not None:
            self.update_observer(optimizer)
        if (number := self.numbers.of(optimizer)[0]) not in self.described:
            number = _describe(self, optimizer, number)
        if start >= self.fast_path.until and get_ident() == self.fast_path.trainer:
            self.counter.update_starts(number)
        return number

    def range_ends(self, kind: int, number: int, start: int, end: int, failed: bool) -> None:
        if kind == LOADER_NEXT and (items := loader.next_ended(number, start, end)) is not None:
            self.recorder.fact(loader.ITEMS, **items)
        self.recorder.append(kind, EXHAUSTED if failed else 0, number, start, end)
        if kind in UPDATES and get_ident() == self.fast_path.trainer and self.counter.update_ends():
            self._boundary(end, kind, number)

    def only(self, kind: int, owner: Any) -> bool:
        return (self.iterators if kind == LOADER_NEXT else self.optimizers).only(owner)

    def iterator_made(self, iterator: Any) -> int:
        """Returns the number of a loader's iterator that is made or starts again."""
        self.iterators.add(iterator)
        return self.numbers.of(iterator)[0]

    def _loader_next_starts(self, iterator: Any, start: int) -> int:
        number, _ = self.numbers.of(iterator)
        if number not in self.described:
            facts = loader.iterator_facts(iterator, number)
            self.described[number] = facts["batch_size"]
            self.recorder.fact("loader", **facts)
        loader.distinguish(True)
        self.fast_path.together = False
        loader.next_starts(iterator, number, start)
        if (ready := loader.ready(iterator)) is not None:
            self.recorder.journal.sample(QUEUE, number, start, ready)
        return number

    def backward_starts(self, tensors: Any, start: int) -> None:
        if get_ident() != self.fast_path.trainer and self.fast_path.trainer:
            if self.counter.backwards or self.counter.updated:
                return
            self.fast_path.follow(get_ident())  # a thread that only infers was there first
        if not self.counter.backwards:
            self._inference.remove()
            self._open()
            self.fast_path.weights.add(leaves(tensors) if self.fast_path.weights.wanted else ())
        self.counter.backward_starts()
        self.pass_sites.starts(tensors, start, self.counter.is_outermost)

    def backward_ends(self, start: int, end: int, flags: int) -> None:
        self.recorder.append(BACKWARD, flags, 0, start, end)
        if get_ident() == self.fast_path.trainer and self.counter.backward_ends(bool(flags & UNCHANGED)):
            self._boundary(end, BACKWARD, 0, flags)

    def forward_ends(self, top_module: int, start: int, end: int, flags: int) -> None:
        self.recorder.append(FORWARD, flags, top_module, start, end)
        if not flags & GRADIENT:
            self.untrained.now += 1
        if get_ident() == self.fast_path.trainer and self.counter.forward_ends():
            self._boundary(end, FORWARD, top_module, flags)

    def saved(self, start: int, end: int) -> None:
        self.saves += 1
        self.recorder.append(CHECKPOINT, 0, 0, start, end)

    @guarding
    def _optimizer_made(self, optimizer: Any) -> None:
        self.optimizers.add(optimizer)
        self._new_models.install(self.top_modules)

    @guarding
    def inferring(self, module: torch.nn.Module) -> None:
        """Marks this as an inference job: a module is called again and again without a backward (see
        patches.InferenceObserver)."""
        self._inference.remove()
        self._open()
        self.add_top_module(module)
        self.counter.infer()

    # -- steps -----------------------------------------------------------------------------------------------------

    def _boundary(self, time_ns: int, kind: int = BOUNDARY, number: int = 0, flags: int = 0) -> None:
        """Counts a step that this record has ended, live; the analysis finds the exact boundaries in the journal."""
        self.steps = self.ended.one(kind | flags << 8 | self.fast_path.thread | number << 32, self.fast_path.until > 0)
        self.untrained.boundary(self.steps)
        self.step_timer.boundary(time_ns, self.steps)
        if not self.watching:
            self.recorder.append(BOUNDARY, 0, 0, time_ns, time_ns)
        self._new_models.boundary()
        if self.counter.changed:
            self.counter.changed = False
            self.allowance.again()
            self.recorder.fact("freed", names=())
            self._start_script()  # what was learnt at the old kind of boundary starts again
        elif time_ns >= self.fast_path.until and self._script is not None:
            self._garbage.write()
            self._ranges.again()
            with unasked():  # the boundary may be in a torch function mode of the job's, which would see what we read
                resume(self._script, self.recorder, time_ns)
            if not self.active:
                end_script(self._script)
        for each in (self.trial, self.catching, self.pass_sites, *self.logging):
            each.boundary(self.steps)

    @guarding
    def untimed_update(self, *_: Any) -> None:
        """Counts a step while the timers are off, from the optimizer's post hook."""
        if not self.watching and get_ident() == self.fast_path.trainer and self.counter.untimed_update():
            self._boundary(time.perf_counter_ns())

    def add_top_module(self, module: torch.nn.Module) -> None:
        number, new = self.numbers.of(module)
        if not new and any(top_module.alive and top_module.identity == number for top_module in self.top_modules):
            return
        with unasked():
            self.recorder.fact("root", **identity.top_module_facts(module, number))
        patch = TopModuleTimer(self, module, number)
        patch.install()
        self.top_modules[:] = [*(top_module for top_module in self.top_modules if top_module.module is not None), patch]

    def finish(self) -> None:
        """Writes the rest of the journal at the end of the process."""
        if os.getpid() != self._pid or not self.recorder.folder:
            return
        start = time.perf_counter_ns()
        with suppressed(Exception):  # the probe's boundary: the interpreter is going down, nobody would read a message
            end_script(self._script)
            self._garbage.write()
            self.catching.finish()
            self.trial.finish()
            self.housekeeping.finish()
            self.recorder.pause(start)
            self.recorder.journal.close()

    @guarding
    def out_of_memory(self) -> None:
        """Records the holders of the memory, if the process ends because memory ran out."""
        if os.getpid() != self._pid or not self.recorder.folder:
            return
        if (found := exhausted.facts(self.steps)) is not None:
            self.recorder.fact("out_of_memory", **found)

    def abandon(self) -> None:
        """Ends the session in a forked child, and its tracers; writes nothing, leaves the parent's files alone."""
        self.recorder.forget()
        self.stop_listening()
        end_script(self._script if get_ident() == self.fast_path.trainer else None)


def leave(session: Session) -> None:
    """Ends the session on request; the job goes on without instrumentation."""
    session.stop_listening()
    end_script(session._script)  # and a profiler that is on with it; one that runs ends by itself
    session.catching.finish()
    session.recorder.journal.close()
    loader.distinguish(False)
    identity.say_left(session.plan["recording"])


def _describe(session: Session, optimizer: Any, number: int) -> int:
    """Writes what an optimizer is that steps for the first time. One that is made in the place of another that is
    gone, as in each step of a loop, goes on under its number: by it steps are known."""
    session.fast_path.weights.stop()  # its updates are the steps
    session._open()
    with unasked():
        facts = identity.optimizer_facts(optimizer, number)
    site = facts["site"] and (facts["site"]["file"], facts["site"]["line"])
    number, made = session.numbers.in_place(optimizer, site) if site else (number, 1)
    kinds = session.numbers.kinds.get(number, ())
    another = facts["type"] not in kinds
    session.described[number] = None
    session.numbers.kinds[number] = kinds = (*kinds, facts["type"]) if another else kinds
    if another or made & (made - 1) == 0:  # 1, 2, 4, …: a fact costs more than a step of a small model
        of_all = {"identity": number, "made": made, "type": " or ".join(kinds)}
        session.recorder.fact("optimizer", **{**facts, **of_all})
        session._new_models.install(session.top_modules)
    return number


class Housekeeping:
    """Cheap duties at every boundary: memory samples, the compiler's callbacks, new compilations."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sample = device.memory_sampler(recorder.journal)
        self._compiler_seen = False
        self.compiled = False
        """True if torch.compile has been at work."""
        self.compilations = 0
        self._compiled_us = self._breaks = 0
        self._start = 0
        self._dirty = False
        self.bars = BarMark()
        self._devices: dict[int, str] = {}
        self._devices_due = 0

    def finish(self) -> None:
        """Samples memory at the end of the process: the device's peak may have grown since the last sample."""
        if device.in_use():
            self._sample(True)

    def boundary(self) -> None:
        self._sample(False)
        now = time.perf_counter_ns()
        self.bars.look(self._recorder.folder, now)
        if now >= self._devices_due:
            self._devices_due = now + DEVICES_PERIOD
            self._write_devices()
        handler: Any = sys.modules.get("torch._dynamo.callback")
        if not self._compiler_seen and hasattr(handler, "on_compile_end"):  # else another thread is importing it
            self._compiler_seen = self._dirty = True
            handler.on_compile_start(self._compile_starts)
            handler.on_compile_end(self._compile_ends)
        if self._dirty:
            self.write_compilations()

    def _write_devices(self) -> None:
        """Records the devices with a new context of this process; telemetry samples no others. A lost device is for the
        job to find."""
        found: dict[int, str] = {}
        with suppressed(RuntimeError):
            found = device.distinguished()
        for number, uuid in found.items():
            if self._devices.get(number) != uuid:
                self._devices[number] = uuid
                self._recorder.fact("device", identity=number, uuid=uuid)

    def _compile_starts(self, *_: Any) -> None:
        self.compiled = True
        self._start = time.perf_counter_ns()

    def _compile_ends(self, *_: Any) -> None:
        self._dirty = True
        self.compilations += 1
        if self._start:
            self._recorder.interval(int(Kind.COMPILE), 0, self._start, time.perf_counter_ns())
            self._start = 0

    def write_compilations(self) -> None:
        self._dirty = False
        facts, self._compiled_us = identity.compilation_facts(self._compiled_us)
        for fact in facts:
            self.compiled = True
            self._recorder.fact("compilation", **fact)
        breaks, self._breaks = identity.graph_break_facts(self._breaks)
        for fact in breaks:
            self._recorder.fact("graph_break", **fact)


def resume(script: Stage, recorder: Recorder, boundary: int) -> None:
    """Resumes a schedule. If it pauses the job, the pause starts at the boundary: on a busy machine, milliseconds may
    pass before this call."""
    paused = recorder.pauses
    with unasked():
        next(script, None)
    if recorder.pauses != paused:
        recorder.pause(boundary)


def end_script(stage: Stage | None) -> None:
    """Closes a suspended schedule, and with it a running profiler. One that is running ends at its next `yield`: the
    caller that resumed it checks for that."""
    with suppressed(Exception):  # the probe's boundary: what cannot be ended stays; the job goes on
        if stage is not None and inspect.getgeneratorstate(stage) != inspect.GEN_RUNNING:
            stage.close()


def desertion(lock: str) -> Callable[[], bool]:
    """Returns a function that is True once the `steptime attach` that holds a lock while it lives has died. Always
    False if its lock file is not visible from here (another container)."""
    if not os.path.exists(lock):
        return lambda: False

    def deserted() -> bool:
        try:
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except OSError as error:
            pass_on(error)
            return False
        return True

    return deserted

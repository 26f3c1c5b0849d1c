"""The session: what the probe knows of the job while it runs.

One law: it listens, counts steps and writes the journal; whatever fails in it switches the whole probe off, says so once,
and training goes on. What is done at which step stands in `script`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any

import torch

from steptime.capture.probe import device, identity, loader, script
from steptime.capture.probe.facts import Facts
from steptime.capture.probe.patches import (
    FunctionPatch,
    ModuleCallWatch,
    RangePatch,
    RootPatch,
    backward_wrapper,
    interval_wrapper,
    scaler_wrapper,
)
from steptime.journal import Journal, Kind

LOADER_NEXT, OPTIMIZER_STEP, SCALER_STEP = int(Kind.LOADER_NEXT), int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP)
FORWARD, BACKWARD = int(Kind.FORWARD), int(Kind.BACKWARD)
QUEUE = int(Kind.QUEUE)
GARBAGE, CHECKPOINT, BORDER, PAUSE = int(Kind.GARBAGE), int(Kind.CHECKPOINT), int(Kind.BORDER), int(Kind.PAUSE)
PARTIAL = 1
EXHAUSTED = 1
BACKWARDS_WITHOUT_OPTIMIZER = 3
"""So many backward passes with no optimiser step make backward the border (a first accumulation is often 2 to 4; a later optimiser
step corrects it)."""
CALLS_WITHOUT_BACKWARD = 4
"""So many calls of the first module without a backward make the job an inference job, until a backward comes."""


class Session:
    """One process's watch. All methods that torch calls are listed in `patches.Listener`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.loader = loader
        self.journal = Journal()
        self.facts: Facts | None = None
        self.folder = ""
        self.mode = 0
        self.steps = 0
        self.roots: list[RootPatch] = []
        self.watching = False
        self.marks: device.Marks | None = None
        self._active = True
        self._pid = os.getpid()
        self._threads: dict[int, int] = {}
        self._trainer = 0
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._last_number = 0
        self._depth = 0
        self._in_backward = 0
        self._updated_in_backward = False
        self._cycle: set[int] = set()
        self._updates = 0
        self._cycle_length = 0
        self._backwards = 0
        self._stepped = False
        self._first_called: Any = None
        self._calls = 0
        self._garbage_begin = 0
        self._script: Generator[None, None, None] | None = None
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._compiler_watched = False
        self._make_patches()

    # -- patches ---------------------------------------------------------------------------------------------------

    def _make_patches(self) -> None:
        scaler = torch.amp.GradScaler
        self._range = RangePatch(self)
        self._backward = FunctionPatch(torch.autograd, "backward", backward_wrapper(self, partial=False))
        self._gradient = FunctionPatch(torch.autograd, "grad", backward_wrapper(self, partial=True))
        self._scaler = FunctionPatch(scaler, "step", scaler_wrapper(self))
        self._save = FunctionPatch(torch, "save", interval_wrapper(self, CHECKPOINT))
        self._module_calls = ModuleCallWatch(self.module_called)

    def install(self) -> None:
        """Starts listening. Raises whatever torch's layout makes fail; the caller switches off."""
        self._gradient.install()
        self._module_calls.install()
        self.watch_on()
        gc.callbacks.append(self.garbage)

    def watch_on(self) -> None:
        """Puts every steady patch in place."""
        for patch in (self._range, self._backward, self._scaler, self._save, *self.roots):
            patch.install()
        self.watching = True

    def watch_off(self) -> None:
        """Takes all patches away; steps go unseen until `watch_on`."""
        for patch in (self._range, self._backward, self._scaler, self._save, *self.roots):
            patch.remove()
        self.watching = False

    def switch_off(self, reason: str) -> None:
        """The end of us in this process: everything restored, one line on stderr, the job goes on."""
        if not self._active:
            return
        self._active = False
        self.stop_listening()
        self.note(f"switched off: {reason}")
        sys.stderr.write(f"steptime: switched off: {reason}; the job goes on\n")

    def stop_listening(self) -> None:
        """Restores torch as it was."""
        self.watch_off()
        self._gradient.remove()
        self._module_calls.remove()
        if self.garbage in gc.callbacks:
            gc.callbacks.remove(self.garbage)

    def guarded(self, work: Callable[[], None]) -> None:
        """Runs work of ours inside the user's thread; a failure switches us off instead of reaching the user."""
        try:
            work()
        except Exception as error:  # the probe's border: nothing of ours may raise into the user's program
            if os.environ.get("STEPTIME_DEBUG"):
                raise
            self.switch_off(f"{type(error).__name__}: {error}")

    # -- the journal -----------------------------------------------------------------------------------------------

    def activate(self) -> None:
        """At the first sign of training: the process gets its folder."""
        if self.folder:
            return
        self.folder = identity.make_folder(self.plan["recording"], self._pid)
        self.facts = Facts(os.path.join(self.folder, "facts.jsonl"))
        identity.write_process(self.folder, device="cpu", device_name="")
        self.journal.open(os.path.join(self.folder, "journal.bin"))
        for kind, fields in self._pending:
            self.facts.write(kind, **fields)
        self._pending.clear()
        self._script = script.run(self)
        next(self._script)

    def fact(self, kind: str, **fields: Any) -> None:
        """Writes a fact, or keeps it until the process has a folder."""
        if self.facts is None:
            if len(self._pending) < 256:
                self._pending.append((kind, fields))
            return
        self.facts.write(kind, **fields)

    def note(self, text: str) -> None:
        """A sentence for the report; best effort."""
        try:
            self.fact("note", text=text)
        except OSError:
            return  # the disk is full: stderr has said it already

    def interval(self, kind: int, identity_number: int, begin: int, end: int) -> None:
        """Appends an interval of this thread."""
        self._append(kind, 0, identity_number, begin, end)

    def _append(self, kind: int, flags: int, number: int, begin: int, end: int) -> None:
        ident = threading.get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = min(len(self._threads), 65535)
        try:
            self.journal.append(kind, flags, thread, number, begin, end)
        except OSError as error:
            self.switch_off(f"the recording cannot be written ({error.strerror})")

    def pause(self, begin: int) -> None:
        """What happened since `begin` was ours: it belongs to no step."""
        self._append(PAUSE, 0, 0, begin, time.perf_counter_ns())

    def number_of(self, owner: Any) -> tuple[int, bool]:
        """A small number for an object, and whether it is new. Holds it weakly."""
        key = id(owner)
        known = self._numbers.get(key)
        if known is not None and known[1]() is owner:
            return known[0], False
        self._last_number += 1
        try:
            reference: Any = weakref.ref(owner)
        except TypeError:
            reference = _strong(None)
        self._numbers[key] = (self._last_number, reference)
        return self._last_number, True

    # -- what the patches tell -------------------------------------------------------------------------------------

    def range_begins(self, kind: int, owner: Any, begin: int) -> None:
        """See patches.Listener."""
        if kind == OPTIMIZER_STEP or kind == SCALER_STEP:
            if self._depth == 0 and threading.get_ident() == (self._trainer or threading.get_ident()):
                number, _ = self.number_of(_optimizer(owner))
                if number in self._cycle:
                    self._cycle_length, self._updates = self._updates, 0
                    self._cycle.clear()
                self._cycle.add(number)
            self._depth += 1
        elif kind == LOADER_NEXT:
            self._loader_next_begins(owner, begin)

    def range_ends(self, kind: int, owner: Any, begin: int, end: int, failed: bool) -> None:
        """See patches.Listener."""
        number = 0
        if kind == OPTIMIZER_STEP or kind == SCALER_STEP:
            self._depth -= 1
            number, new = self.number_of(_optimizer(owner))
            if new or not self._stepped:
                self.guarded(lambda: self._new_optimizer(owner, number))
        elif kind == LOADER_NEXT:
            number, _ = self.number_of(owner)
            self.loader.next_ended(end)
        self._append(kind, EXHAUSTED if failed else 0, number, begin, end)
        if (kind == OPTIMIZER_STEP or kind == SCALER_STEP) and self._depth == 0:
            self._updated(end)

    def _loader_next_begins(self, iterator: Any, begin: int) -> None:
        number, new = self.number_of(iterator)
        if new:
            self.guarded(lambda: self.fact("loader", **{**self.loader.iterator_facts(iterator), "identity": number}))
        ready = self.loader.ready(iterator)
        if ready is not None:
            self.journal.sample(QUEUE, number, begin, ready)

    def _new_optimizer(self, optimizer: Any, number: int) -> None:
        self._trainer = self._trainer or threading.get_ident()
        self._stepped = True
        self.activate()
        self.fact("optimizer", **identity.optimizer_facts(_optimizer(optimizer), number))

    def _updated(self, end: int) -> None:
        if self._in_backward:
            self._updated_in_backward = True
            return
        self._updates += 1
        if self.mode != 1:
            self._change_mode(1)
        if self._updates == (self._cycle_length or 1):
            self.guarded(lambda: self._border(end))

    def backward_begins(self, begin: int) -> None:
        """See patches.Listener."""
        self._in_backward += 1
        if not self._backwards:
            self.guarded(self._first_backward)
        self._backwards += 1
        if self.marks is not None:
            self.marks.mark(BACKWARD)

    def _first_backward(self) -> None:
        self._trainer = self._trainer or threading.get_ident()
        self._module_calls.remove()
        self.activate()

    def backward_ends(self, begin: int, end: int, flags: int) -> None:
        """See patches.Listener."""
        self._in_backward -= 1
        self._append(BACKWARD, flags, 0, begin, end)
        if self._in_backward or flags & PARTIAL and self._stepped:
            return
        if self._updated_in_backward:
            self._updated_in_backward = False
            if self.mode != 1:
                self._change_mode(1)
            self.guarded(lambda: self._border(end))
        elif not self._stepped and self._backwards >= BACKWARDS_WITHOUT_OPTIMIZER:
            if self.mode != 2:
                self._change_mode(2)
            self.guarded(lambda: self._border(end))

    def forward_begins(self, begin: int) -> None:
        """See patches.Listener."""
        if self.marks is not None:
            self.marks.mark(FORWARD)

    def forward_ends(self, root: int, begin: int, end: int, flags: int) -> None:
        """See patches.Listener."""
        self._append(FORWARD, flags, root, begin, end)
        if self.mode == 3 and not self._backwards:
            self.guarded(lambda: self._border(end))

    def module_called(self, module: torch.nn.Module) -> None:
        """A module is called and no backward has been seen: the fourth call of the first one makes an inference job."""
        if self._first_called is None:
            if next(module.parameters(), None) is not None:
                self._first_called = weakref.ref(module)
        if self._first_called is not None and self._first_called() is module:
            self._calls += 1
            if self._calls == CALLS_WITHOUT_BACKWARD:
                self.guarded(lambda: self._infer(module))

    def _infer(self, module: torch.nn.Module) -> None:
        self._module_calls.remove()
        self._trainer = self._trainer or threading.get_ident()
        self.activate()
        self.add_root(module)
        self.mode = 3

    def garbage(self, phase: str, info: dict[str, int]) -> None:
        """gc.callbacks."""
        if phase == "start":
            self._garbage_begin = time.perf_counter_ns()
        elif self._garbage_begin:
            self._append(GARBAGE, 0, info.get("generation", 0), self._garbage_begin, time.perf_counter_ns())

    # -- steps -----------------------------------------------------------------------------------------------------

    def _change_mode(self, mode: int) -> None:
        """The border's signal has changed: what was learnt at the old borders starts again."""
        restart = self.mode != 0 and self._script is not None
        self.mode = mode
        if restart and self._script is not None:
            self._script.close()
            self._script = script.run(self)
            next(self._script)

    def _border(self, time_ns: int) -> None:
        """A step has ended (online view; the exact borders are found from the journal later)."""
        self.steps += 1
        if not self.watching:
            self._append(BORDER, 0, 0, time_ns, time_ns)
        if self.marks is not None:
            self.marks.border()
        if self._script is not None:
            next(self._script, None)

    def unwatched_update(self, *_: Any) -> None:
        """The optimiser's post hook while the watch is off: only the border is stamped."""
        self._updates += 1
        if self._updates >= (self._cycle_length or 1):
            self._updates = 0
            self.guarded(lambda: self._border(time.perf_counter_ns()))

    def add_root(self, module: torch.nn.Module) -> None:
        """Times a root module from now on."""
        number, new = self.number_of(module)
        if not new and any(root.alive and root.identity == number for root in self.roots):
            return
        patch = RootPatch(self, module, number)
        patch.install()
        self.roots.append(patch)
        self.fact("root", **identity.root_facts(module, number))

    def finish(self) -> None:
        """At the end of the process: the rest of the journal is written."""
        if os.getpid() != self._pid or not self.folder:
            return
        try:
            if self._script is not None:
                self._script.close()
            self.journal.close()
        except Exception:  # the interpreter is going down; what was written by now is what there is
            return

    def abandon(self) -> None:
        """In a forked child: nothing is written, the parent's files are left alone."""
        self.journal.forget()
        self.facts = None
        self._active = False
        self.stop_listening()


def _strong(value: Any) -> Callable[[], Any]:
    return lambda: value


def _optimizer(owner: Any) -> Any:
    """The torch optimiser behind a wrapper such as Accelerate's, so that GradScaler and the step agree on one number."""
    inner = getattr(owner, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else owner

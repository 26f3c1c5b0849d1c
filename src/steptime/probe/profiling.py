"""Windows of torch's own profiler: a few steady steps, started and stopped at step boundaries.

The ranges (torch.profiler.record_function) that are open when a window ends are ended with it. torch keeps the address
of a range's event in the range, and frees the events when the profiler stops. A range that began in one window and ends
in another, as one around `optimizer.step()` does where the second follows at once, writes its end into memory that is
somebody else's by then (torch 2.13, onFunctionExit in profiler_kineto.cpp): the job dies of it, some time later, or
computes with it. A range that has ended once ends a second time without effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import starmap
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from steptime.journal import Kind, append_to
from steptime.probe import device
from steptime.probe.compiler import in_compiled_call
from steptime.probe.identity import clock_pair, process_group
from steptime.probe.inlay import Inlay
from steptime.probe.memory import allocations
from steptime.probe.modules import ModuleRanges
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.recorder import Recorder


class OpenRanges:
    """Keeps the ranges that this thread opens between `opened` and `end`; the profiler sees those of no other thread.
    In between it stands for torch's own function that opens them, as whose equal it is taken."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._ranges: list[Any] = []
        self._original: Any = None

    def start(self) -> None:
        """Listens. Raises AttributeError where torch opens its ranges in another way."""
        packet = torch.ops.profiler._record_function_enter_new
        self._original, builtins = packet._op, torch.jit._builtins._get_builtin_table()
        if (name := builtins.get(id(self._original))) is not None:
            builtins[id(self)] = name  # what TorchScript looks up
        packet._op = self

    def __call__(self, *arguments: Any) -> Any:
        """Opens a range. It is kept in the same step of the interpreter: a window may be ended between two."""
        if get_ident() != self._thread:
            return self._original(*arguments)
        ranges = self._ranges
        ranges.extend(starmap(self._original, (arguments,)))
        return ranges[-1]

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self._original == other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def end(self) -> None:
        """Ends every range that is still open, and listens no more. The profiler must still be on."""
        packet = torch.ops.profiler._record_function_enter_new
        if packet._op is self:
            packet._op = self._original
            torch.jit._builtins._get_builtin_table().pop(id(self), None)
        for opened in self._ranges:
            torch.ops.profiler._record_function_exit._RecordFunction(opened)
        self._ranges = []


now = time.perf_counter_ns
TEARDOWN = "TEARDOWN_CUPTI"
"""Kineto reads it each time that a profile stops on a CUDA device: with "1" it takes NVIDIA's tracer (CUPTI) down, in a
thread of its own, at one of the next calls of CUDA. A profile that starts before that is done sees no kernel (kineto
pull request 1554). With anything else, or nothing, the tracer stays."""
TRACER = "torch.profiler.python_tracer"
"""Module that torch imports for stacks; it is let go again, as a job may look at what is imported."""
SETTLING = 0.05
"""Seconds for gloo's threads to write down the ends of collectives that a step has waited for: gloo wakes who waits
first, and an end that comes when the profiler has stopped is written into freed memory (see above)."""
SILENT = 99
"""Above every severity of Kineto's lines (Logger.h)."""
CONFIG_LOADER = "8instance", "10stopThread"
"""Functions of Kineto's, as C++ names them."""
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""Python's form of a byte of a name that is not UTF-8 (PEP 383)."""
SPOILT, SPOILT_TIME = 2, 100_000_000
"""A step that takes so many times as long as the job's steps and as the shortest of its window, and ns more, ends the
window: the shapes of its tensors take memory that grows with each (`steptime.analysis.recorded_breakdown`)."""


@contextlib.contextmanager
def plain_name(folder: str) -> Iterator[str]:
    """A name of the folder that Kineto can take: it wants UTF-8, reads `://` as a protocol, and writes the name into
    the trace as it is, where a quotation mark, a backslash or a line's end breaks the JSON."""
    plain = folder.isascii() and folder.isprintable() and not any(each in folder for each in ('"', "\\", "://"))
    if plain or not os.path.isdir("/proc/self/fd"):
        yield folder
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}"
    finally:
        os.close(opened)


def notify_kineto(detach: bool) -> None:
    """Sets whether the next profile that stops takes CUDA's tracer down, unless the user has said so. The variable is
    set in C alone: `os.environ` stays as it is. It is given a value before the first profile starts and only another
    one later, since a thread that reads the environment in C must not see it grow."""
    if TEARDOWN not in os.environ:
        os.putenv(TEARDOWN, "1" if detach and comes_back() else "0")


def comes_back() -> bool:
    """True if the tracer can be attached again in a job with CUDA graphs: before CUDA 12.6 the job may crash then
    (torch.profiler.profiler says so where it keeps the tracer itself)."""
    version = re.match(r"(\d+)\.(\d+)", torch.version.cuda or "")
    return version is not None and (int(version[1]), int(version[2])) >= (12, 6)


@contextlib.contextmanager
def kineto_silenced() -> Iterator[None]:
    """Kineto (torch 2.13) writes a line on stderr when a profile starts and one when it stops. Those of ours are left
    out, by its level of severity; a profiler of the job's own has its lines. A value that Kineto itself has set
    meanwhile, at its first profile, stays."""
    level = _KinetoState.level()
    before = level.value
    level.value = SILENT
    try:
        yield
    finally:
        if level.value == SILENT:
            level.value = before


class _KinetoState:
    """State of this process."""

    known: Any = None

    @classmethod
    def level(cls) -> Any:
        """The variable in memory. Where the library does not show it, Kineto is told by the environment in C, once and
        for all: `os.environ` stays as it is."""
        if cls.known is None:
            try:
                cls.known = ctypes.c_int.in_dll(_library(), "_ZN9libkineto6Logger14severityLevel_E")
            except (OSError, ValueError) as error:
                pass_on(error)
                cls.known = ctypes.c_int()
                if "KINETO_LOG_LEVEL" not in os.environ:
                    os.putenv("KINETO_LOG_LEVEL", str(SILENT))
        return cls.known


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))


def start_in_silence(profile: Any) -> None:
    """Starts a profiler of torch's.

    Up to torch 2.12 the first one of a process warns on the user's stderr that it does not keep events from one cycle
    to the next, and those of the job's own do not warn again. It does not warn where it keeps them. So it is told to
    while it starts, and no longer: at its end torch would make a Python object of every event.
    """
    profile.acc_events = True
    with kineto_silenced():  # of a profile without a schedule these two are its `start`
        profile.prepare_trace()
    with kineto_silenced():  # Kineto's first profile sets the level itself
        profile.start_trace()
    profile.acc_events = profile.profiler.acc_events = False


def end_config_thread() -> None:
    """Ends the thread that Kineto's first profile starts, to look for orders from outside. A forked child inherits the
    condition that it waits on, and would wait for it without end where it leaves by `exit` (~ConfigLoader). It stays
    where the user gives Kineto such orders, or torch has another layout."""
    if "KINETO_USE_DAEMON" in os.environ or "KINETO_CONFIG" in os.environ:
        return
    with suppressed(OSError, AttributeError):
        library = _library()
        instance, stop = (f"_ZN9libkineto12ConfigLoader{name}Ev" for name in CONFIG_LOADER)
        found = ctypes.CFUNCTYPE(ctypes.c_void_p)((instance, library))()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)((stop, library))(found)


def put_back(profile: Any) -> None:
    """Makes it Python's profile function again: that which the job has set in the middle of a window, and which torch
    takes for its own when it ends its stacks."""
    if any(kind.__module__ == "_lsprof" for kind in type(profile).__mro__):  # cProfile's
        profile.enable()
    elif callable(profile):
        sys.setprofile(profile)


def only_exported() -> Any:
    """Has torch (from 2.13 on) make no objects of events that are only exported: of large windows that is half of what
    their end takes. None where it cannot."""
    try:
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


def let_go(profile: Any) -> None:
    """Frees the events now, some hundred bytes each: a profiler of torch's refers to itself, and would hold them until
    the garbage collector's next full run or the job's end."""
    profile.action_map = {}
    if profile.profiler is not None:
        profile.profiler.kineto_results = None


def _modes(kind: type = torch.overrides.TorchFunctionMode) -> Iterator[type]:
    """All kinds of torch function modes that are known in this process."""
    kinds: list[type] = type.__subclasses__(kind)
    for each in kinds:
        yield each
        yield from _modes(each)


def _is_of_the_jobs(kind: type) -> bool:
    return not kind.__module__.startswith("torch.")


def _another_starts(profiler: Any) -> None:
    """A profiler of torch's is about to start: two in one process spoil each other, and may crash it."""
    for window in tuple(_on):
        window.give_way(profiler)


_on: list[ProfilerWindow] = []
_INLAY = Inlay(
    torch.autograd.profiler.profile._prepare_trace,
    """
if not torch.compiler.is_dynamo_compiling():
    "starts"(self)
BODY
""",
    starts=_another_starts,
)


class ProfilerWindow:
    """One recording of torch.profiler from `start` to `stop`. Both hold the user's thread, and write for how long."""

    def __init__(
        self,
        recorder: Recorder,
        number: int,
        stacks: bool,
        trained: Iterable[Any] | None = None,
        modules: Iterable[tuple[str, Any]] = (),
        *,
        followed: bool = False,
        shapes: bool = True,
    ) -> None:
        """`trained`: the job's parameters, where its allocations are wanted; `modules`: its modules by path, as far as
        they are known; `followed`: another window comes soon, which needs the device's tracer; `shapes`: of tensors."""
        self._recorder, self._folder, self._trained = recorder, recorder.folder, trained
        self.number, self.stacks, self.caught, self._followed = number, stacks, False, followed
        self._on_device, self.shapes = False, shapes
        self._profile: Any = None
        self._partial = os.path.join(self._folder, f"trace-{number}.json.partial")
        self._open = OpenRanges()
        self._modules = ModuleRanges(modules)
        self._memory = self._history = False
        self._tracer_known = TRACER in sys.modules
        self._tracer: Any = None
        self.opened = self._boundary = self._shortest = 0
        self.steps = self.held = 0
        """Whole steps that its trace holds: none, and there is no trace. For how many ns its end has held the job."""

    @property
    def on(self) -> bool:
        return self._profile is not None

    def obstacle(self) -> str:
        """Why torch's profiler must not be started now, or an empty text."""
        if torch.autograd._profiler_enabled():
            return "another one was recording, and two spoil each other"
        if threading.current_thread() is not threading.main_thread():
            return "the training thread is not the main one, which Kineto wants"
        if self.stacks and sys.getprofile() is not None:
            return "the job has a profile function of Python's, whose place its stacks would take"
        rpc = sys.modules.get("torch.distributed.rpc.api")
        if rpc is not None and rpc._is_current_rpc_agent_set():
            return "the job calls other processes by RPC, which torch's profiler announces on its stderr"
        if in_compiled_call():
            return "a step ends inside of a compiled function, whose own range the profiler would cut"
        if self.stacks and (torch._C._len_torch_function_stack() or any(map(_is_of_the_jobs, _modes()))):
            return "a mode of the job's would see what torch asks of parameters for its stacks"
        specification = getattr(sys.modules.get("torch._dynamo"), "__spec__", None)
        if getattr(specification, "_initializing", False):
            return "another thread was importing torch._dynamo, which it imports too"
        modules = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)] if self.stacks else []
        names = (each.__dict__.get("__file__") for each in modules)
        if any(isinstance(name, str) and HALF_CHARACTER.search(name) for name in names):
            return "its stacks would hold a file's name that is not UTF-8, which torch cannot read"
        return ""

    def start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        self._on_device = device.in_use()
        if self._on_device:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            notify_kineto(detach=False)
        append_to(self._partial, b"")  # where the job dies in here, somebody must know that it was profiled
        self._memory = self._trained is not None and allocations.claim(self._trained)
        self._profile = torch.profiler.profile(
            activities=activities,
            record_shapes=self.shapes,
            with_stack=self.stacks,
            profile_memory=self._memory,
            experimental_config=None if self.stacks or self._on_device else only_exported(),
        )
        self._open.start()
        witness = torch.empty(1, device="cpu") if self._memory else None  # the job may have set another default
        start_in_silence(self._profile)
        self._tracer = sys.getprofile()
        end_config_thread()
        if self._memory:
            with allocations.errors_only():
                del witness  # was allocated before: torch warns of the first such, and of every thousandth
        self._history = self._trained is not None and allocations.start_history()
        self._modules.start()
        _INLAY.install()
        _on.append(self)
        self.opened = self._boundary = now()

    def spoils(self, usual: int) -> bool:
        """True if the profiler spoilt the step that ends now. usual: ns of a step without it."""
        end = now()
        took, self._boundary = end - self._boundary, end
        self._shortest = min(self._shortest or took, took)
        expected = max(usual, self._shortest)
        return took > max(SPOILT * expected, expected + SPOILT_TIME)

    def stop(self, steps: int) -> None:
        """Ends the recording, if it is on, and writes the trace if that holds whole steps. Raises OSError."""
        if self._profile is None:
            return
        if not steps:
            self.abandon()
            return
        end = now()
        self._recorder.fact("trace", steps=steps, begin=self.opened, end=end, **self._write())
        self.steps = steps
        self._account(end)

    def _account(self, end: int) -> None:
        """Time that the window took from the job: slow steps until `end`, and the time since."""
        self._recorder.interval(int(Kind.PROFILED), self.number, self.opened, end)
        self._recorder.pause(end)
        self.held = now() - end

    def _write(self) -> dict[str, Any]:
        """The trace; returns the rest of its `TraceFacts`."""
        epoch, monotonic = clock_pair()
        profile = self._end(os.path.join(self._folder, f"memory-{self.number}.pickle"))
        if not os.access(self._folder, os.W_OK | os.X_OK):  # Kineto would complain on the user's stderr and go on
            raise OSError(f"nothing can be written to {self._folder} any more")
        path = f"trace-{self.number}.json"
        with plain_name(self._folder) as folder, kineto_silenced():
            profile.export_chrome_trace(os.path.join(folder, os.path.basename(self._partial)))
        let_go(profile)
        os.replace(self._partial, os.path.join(self._folder, path))
        return {
            "number": self.number,
            "path": path,
            "stacks": self.stacks,
            "caught": self.caught,
            "epoch_ns": epoch,
            "monotonic_ns": monotonic,
            "thread": threading.get_native_id(),
            "memory": self._memory,
        }

    def give_way(self, other: Any) -> None:
        """Ends the recording before one of the job's own starts."""
        if self._profile is not None and self._profile.profiler is not other:
            self._recorder.note("the profiler ended early: the job began to profile itself")
            self.abandon()

    def abandon(self) -> None:
        """Ends the recording without a trace (the job changes its ways in the middle of it)."""
        if self._profile is not None:
            end = now()
            let_go(self._end(""))
            with suppressed(OSError):  # the recording is gone
                os.unlink(self._partial)
            self._account(end)

    def _end(self, history: str) -> Any:
        """Switches off what `start` switched on, whatever fails. history: where that of the allocator goes, if any."""
        profile, self._profile = self._profile, None
        if self in _on:
            _on.remove(self)
        try:
            self._modules.end()
            self._open.end()
            distributed = process_group()
            if distributed is not None and "gloo" in str(distributed.get_backend_config()):
                time.sleep(SETTLING)
            if self._history:
                allocations.end_history(history)
        finally:
            if self._on_device:
                notify_kineto(detach=not self._followed)
            another = sys.getprofile()
            with kineto_silenced():
                profile.stop()
            if another is not self._tracer:
                put_back(another)
            if self._on_device:
                notify_kineto(detach=False)
            if not self._tracer_known and sys.modules.pop(TRACER, None) is not None:
                vars(torch.profiler).pop(TRACER.rpartition(".")[2], None)
        return profile

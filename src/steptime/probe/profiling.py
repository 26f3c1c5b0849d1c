"""Windows of torch's own profiler: a few steady steps, started and stopped at step boundaries.

The end of a window ends the ranges (torch.profiler.record_function) that are open. torch keeps the address of a range's
event in the range, and frees the events when the profiler stops. A range that starts in one window and ends in the
next, such as one around `optimizer.step()`, writes its end into memory that somebody else owns by then (torch 2.13,
onFunctionExit in profiler_kineto.cpp). The job crashes some time later, or computes with it. Ending a range a second
time has no effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Iterable, Iterator
from itertools import starmap
from threading import get_ident
from typing import Any

import torch

from steptime.journal import Kind, append_to
from steptime.probe import device
from steptime.probe.compiler import in_compiled_call
from steptime.probe.deadline import Deadline, may_end
from steptime.probe.identity import clock_pair, process_group
from steptime.probe.inlay import Inlay
from steptime.probe.memory import allocations
from steptime.probe.modules import ModuleRanges
from steptime.probe.objects import files_of_modules, unseen
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.recorder import Recorder


class OpenRanges:
    """List of the ranges that this thread opens between `start` and `end`; the profiler sees those of no other thread.
    In between, this object replaces torch's function that opens ranges, and equals it."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._ranges: list[Any] = []
        self._original: Any = None

    def start(self) -> None:
        """Replaces torch's function. Raises AttributeError if torch opens its ranges in another way."""
        packet = torch.ops.profiler._record_function_enter_new
        self._original, builtins = packet._op, torch.jit._builtins._get_builtin_table()
        if (name := builtins.get(id(self._original))) is not None:
            builtins[id(self)] = name  # what TorchScript looks up
        packet._op = self

    def __call__(self, *arguments: Any) -> Any:
        """Opens a range and stores it in one step of the interpreter: between two, a window may end."""
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
        """Ends every open range, and restores torch's function. The profiler must still be on."""
        packet = torch.ops.profiler._record_function_enter_new
        if packet._op is self:
            packet._op = self._original
            torch.jit._builtins._get_builtin_table().pop(id(self), None)
        with unseen():
            for opened in self._ranges:
                torch.ops.profiler._record_function_exit._RecordFunction(opened)
        self._ranges = []


now = time.perf_counter_ns
TEARDOWN = "TEARDOWN_CUPTI"
"""Environment variable that Kineto reads whenever a profile stops on a CUDA device. With "1" it removes NVIDIA's tracer
(CUPTI), in its own thread, at one of the next CUDA calls; a profile that starts before that sees no kernel (kineto pull
request 1554). Otherwise the tracer stays."""
TRACER = "torch.profiler.python_tracer"
"""Module that torch imports for stacks. It is removed again, because a job may inspect its imports."""
SETTLING = 0.05
"""Seconds for gloo's threads to record the ends of collectives that a step has waited for. gloo first wakes the waiting
thread, and an end after the profiler's stop is written into freed memory (see above)."""
SILENT = 99
"""Level above every severity of Kineto's lines (Logger.h)."""
CONFIG_LOADER = "8instance", "10stopThread"
"""Functions of Kineto's, as C++ names them."""
CONFIG_LOOKS, CONFIG_LOOK = 40, 0.0005
"""How often, and how many seconds apart, the job is held for a look at whether Kineto's thread waits: it does after a
tenth of a millisecond where a CPU is free."""
HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""Pattern of Python's form of a file name's byte that is not UTF-8 (PEP 383)."""
INSTALLED = re.compile(r"(.*/(?:site|dist)-packages/[^/]+)")
"""Path of a package, in a file's."""
SPOILT, SPOILT_TIME = 2, 100_000_000
"""A step ends the window if it takes SPOILT times the expected time and SPOILT_TIME, ns, more. Expected: the longer of
the usual step and the shortest of the window. The shapes of its tensors take memory that grows with each
(`steptime.analysis.recorded_breakdown`)."""


def installed() -> list[str]:
    """Paths (folders or files) of the imported packages."""
    found = map(INSTALLED.match, files_of_modules())
    return sorted({each[1] for each in found if each})


@contextlib.contextmanager
def plain_name(folder: str) -> Iterator[str]:
    """Context manager with a name of the folder that Kineto can take. Kineto needs UTF-8, takes `://` for a protocol,
    and copies the name into the trace, where a quotation mark, a backslash or a line break makes invalid JSON."""
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
    """Sets whether the next profile that stops removes CUDA's tracer, unless the user has set it. Only the C
    environment changes, `os.environ` does not. The variable exists before the first profile, since threads that read
    the C environment must not see it grow."""
    if TEARDOWN not in os.environ:
        os.putenv(TEARDOWN, "1" if detach and comes_back() else "0")


def comes_back() -> bool:
    """True if CUDA's tracer can be attached again in a job with CUDA graphs. Before CUDA 12.6 the job may then crash
    (torch.profiler.profiler says so where it keeps the tracer itself)."""
    version = re.match(r"(\d+)\.(\d+)", torch.version.cuda or "")
    return version is not None and (int(version[1]), int(version[2])) >= (12, 6)


@contextlib.contextmanager
def kineto_silenced() -> Iterator[None]:
    """Context manager that hides Kineto's lines (torch 2.13) on stderr when our profile starts and stops, by severity
    level. The job's own profiler keeps its lines. A level that Kineto sets meanwhile, at its first profile, stays."""
    level = _KinetoState.level()
    before = level.value
    level.value = SILENT
    try:
        yield
    finally:
        if level.value == SILENT:
            level.value = before


class _KinetoState:
    """Process-wide state."""

    known: Any = None

    @classmethod
    def level(cls) -> Any:
        """Returns Kineto's level as a variable in memory. If the library hides it, the C environment silences Kineto
        for good; `os.environ` stays the same."""
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
    """Starts a profiler of torch's without its warning.

    Up to torch 2.12 the first one of a process warns on the user's stderr that it drops events between cycles; later
    ones of the job's then do not. With acc_events it does not warn. So acc_events is on during the start only: at the
    end it would make a Python object of every event."""
    before = _threads()
    profile.acc_events = True
    with kineto_silenced():  # of a profile without a schedule these two are its `start`
        profile.prepare_trace()
    with kineto_silenced():  # Kineto's first profile sets the level itself
        profile.start_trace()
    profile.acc_events = profile.profiler.acc_events = False
    end_config_thread(_threads() - before)


def end_config_thread(new: set[str]) -> None:
    """Ends the thread that Kineto's first profile starts to listen for profiling requests from outside. A forked child
    inherits that thread's condition variable without the thread; if the child calls exit(), Kineto's destructor
    (~ConfigLoader) waits for it forever. The thread is kept if the user asked for such requests (KINETO_USE_DAEMON,
    KINETO_CONFIG), or if torch's library has another layout. new: threads that started during the profile."""
    if not new or "KINETO_USE_DAEMON" in os.environ or "KINETO_CONFIG" in os.environ:
        return
    for _ in range(CONFIG_LOOKS):
        if all(map(_sleeps, new)):
            return stop_config_thread()
        time.sleep(CONFIG_LOOK)
    start_new_thread(stop_config_thread, ())


def stop_config_thread() -> None:
    """Wakes Kineto's thread and returns when it has ended. The thread checks for this only after each of its waits of
    five seconds. If it is about to start one, as on a busy machine, the caller waits as long."""
    with suppressed(OSError, AttributeError):
        library = _library()
        instance, stop = (f"_ZN9libkineto12ConfigLoader{name}Ev" for name in CONFIG_LOADER)
        found = ctypes.CFUNCTYPE(ctypes.c_void_p)((instance, library))()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)((stop, library))(found)


def _threads() -> set[str]:
    """Numbers of this process's threads; none where the system does not say."""
    try:
        return set(os.listdir("/proc/self/task"))
    except OSError as error:
        pass_on(error)
        return set()


def _sleeps(thread: str) -> bool:
    """True of a thread that waits for something, or is gone."""
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] == b"S"
    except OSError as error:
        pass_on(error)
        return True


def put_back(profile: Any) -> None:
    """Restores a profile function of Python's that the job set during a window, and torch's end of stacks removed."""
    if any(kind.__module__ == "_lsprof" for kind in type(profile).__mro__):  # cProfile's
        profile.enable()
    elif callable(profile):
        sys.setprofile(profile)


def only_exported() -> Any:
    """Returns a configuration with which torch (2.13 and later) makes no Python objects of exported events, which takes
    half of the time to end a large window; None if torch has none."""
    try:
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


def let_go(profile: Any) -> None:
    """Frees the profiler's events now, some hundred bytes each. A profiler of torch's refers to itself, so they would
    stay until the next full garbage collection."""
    profile.action_map = {}
    if profile.profiler is not None:
        profile.profiler.kineto_results = None


def _modes(kind: type = torch.overrides.TorchFunctionMode) -> Iterator[type]:
    """Yields all torch function modes known in this process."""
    kinds: list[type] = type.__subclasses__(kind)
    for each in kinds:
        yield each
        yield from _modes(each)


def _prepares(profiler: Any) -> None:
    """Ends our windows before another profiler of torch's starts: two in one process may crash it."""
    _prepared[id(profiler)] = weakref.ref(profiler)
    for window in tuple(_on):
        window.give_way(profiler)


_on: list[ProfilerWindow] = []
_prepared: dict[int, weakref.ref[Any]] = {}
"""Profilers of torch's between the start of their warm-up and their end. In the warm-up torch does not yet call itself
profiled, but has one state for all: a window that ends in there takes it from the job's profiler, which then raises."""
_CALLED = """
if not torch.compiler.is_dynamo_compiling():
    "called"(self)
BODY
"""
_INLAYS = (
    Inlay(torch.autograd.profiler.profile._prepare_trace, _CALLED, called=_prepares),
    Inlay(torch.autograd.profiler.profile.__exit__, _CALLED, called=lambda profiler: _prepared.pop(id(profiler), None)),
)


def observe_profilers() -> None:
    """Tracks, from now on, when the job's own profilers run."""
    for inlay in _INLAYS:
        inlay.install()


class ProfilerWindow:
    """One recording of torch.profiler from `start` to `stop`. Both block the user's thread, and record how long."""

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
        exported: bool = True,
    ) -> None:
        """`trained`: the job's parameters, to record allocations; `modules`: (path, module) of the known ones;
        `followed`: another window, which needs the device's tracer, comes soon; `shapes`: records tensor shapes;
        `exported`: ends with a trace, not with `events`."""
        self._recorder, self._folder, self._trained = recorder, recorder.folder, trained
        self.number, self.stacks, self.caught, self._followed = number, stacks, False, followed
        self._on_device, self.shapes, self._exported = False, shapes, exported
        self._profile: Any = None
        self._partial = os.path.join(self._folder, f"trace-{number}.json.partial")
        self._open = OpenRanges()
        self._modules = ModuleRanges(modules)
        self._memory = self._history = False
        self._tracer_known = TRACER in sys.modules
        self._tracer: Any = None
        self.opened = self._boundary = self._shortest = 0
        self.steps = self.held = self.grown = 0
        """Whole steps that its trace holds: none, and there is no trace. For how many ns its end has held the job, and
        by how many bytes of memory the process grew meanwhile."""

    @property
    def on(self) -> bool:
        return self._profile is not None

    def obstacle(self) -> str:
        """Reason why torch's profiler must not start now; "" if it may."""
        if torch.autograd._profiler_enabled() or any(each() is not None for each in list(_prepared.values())):
            return "another profiler was recording"
        if threading.current_thread() is not threading.main_thread():
            return "the training thread is not the main thread, which Kineto needs"
        if self.stacks and sys.getprofile() is not None:
            return "the job uses Python's sys.setprofile, which call stacks would replace"
        rpc = sys.modules.get("torch.distributed.rpc.api")
        if rpc is not None and rpc._is_current_rpc_agent_set():
            return "the job uses RPC, for which torch's profiler writes to standard error"
        if in_compiled_call():
            return "a step ends inside a compiled function"
        if self.stacks and (
            torch._C._len_torch_function_stack() or any(not mode.__module__.startswith("torch.") for mode in _modes())
        ):
            return "a mode of the job's would see what torch asks of parameters for its stacks"
        if self.stacks and torch.nn.Module.__call__ is not torch.nn.Module._wrapped_call_impl:
            return "the job replaces torch.nn.Module.__call__, in whose frames torch's stacks look for the module"
        specification = getattr(sys.modules.get("torch._dynamo"), "__spec__", None)
        if getattr(specification, "_initializing", False):
            return "another thread was importing torch._dynamo at that moment"
        if self.stacks and any(map(HALF_CHARACTER.search, files_of_modules())):
            return "the name of a source file is not valid UTF-8, which torch cannot store"
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
            experimental_config=only_exported() if self._exported and not (self.stacks or self._on_device) else None,
        )
        self._open.start()
        witness = torch.empty(1, device="cpu") if self._memory else None  # the job may have set another default
        start_in_silence(self._profile)
        self._tracer = sys.getprofile()
        if self._memory:
            with allocations.errors_only():
                del witness  # was allocated before: torch warns of the first such, and of every thousandth
        self._history = self._trained is not None and allocations.start_history()
        self._modules.start()
        observe_profilers()
        _on.append(self)
        self.opened = self._boundary = now()

    def spoils(self, usual: int) -> bool:
        """True if the profiler made the step that ends now too long. usual: duration of a step without it, ns."""
        end = now()
        took, self._boundary = end - self._boundary, end
        self._shortest = min(self._shortest or took, took)
        expected = max(usual, self._shortest)
        return took > max(SPOILT * expected, expected + SPOILT_TIME)

    def stop(self, steps: int) -> None:
        """Ends the recording, if it is on, and writes the trace if it has whole steps. Raises OSError."""
        if self._profile is None:
            return
        if not steps:
            self.abandon()
            return
        end = now()
        self._recorder.fact("trace", steps=steps, start=self.opened, end=end, **self._write())
        self.steps = steps
        self._record_cost(end)

    def _record_cost(self, end: int) -> None:
        """Records the time that the window took from the job: slow steps until `end`, ns, and the time since."""
        self._recorder.interval(int(Kind.PROFILED), self.number, self.opened, end)
        self._recorder.pause(end)
        self.held = now() - end

    def _write(self) -> dict[str, Any]:
        """The trace; returns the rest of its `TraceFacts`."""
        before, (epoch, monotonic) = device.resident_bytes(), clock_pair()
        profile = self._end(os.path.join(self._folder, f"memory-{self.number}.pickle"))
        if not os.access(self._folder, os.W_OK | os.X_OK):  # Kineto would complain on the user's stderr and go on
            raise OSError(f"{self._folder} is no longer writable")
        path = f"trace-{self.number}.json"
        with plain_name(self._folder) as folder, kineto_silenced():
            profile.export_chrome_trace(os.path.join(folder, os.path.basename(self._partial)))
        self.grown = max(0, device.resident_bytes() - before)
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
            "packages": installed() if self.stacks else [],
        }

    def give_way(self, other: Any) -> None:
        """Ends the recording before the job's own profiler starts."""
        if self._profile is not None and self._profile.profiler is not other:
            self._recorder.note("steptime's profile ended early, because the job started its own profiler")
            self.abandon()

    def events(self) -> list[Any]:
        """Ends the recording without a trace, and returns its events; [] if it may not end here."""
        found: list[Any] = []
        if self._profile is not None and may_end():
            end = now()
            profile = self._end("")
            found = profile.profiler.kineto_results.events()
            self._dropped(profile, end)
        self.abandon()
        return found

    def _dropped(self, profile: Any, end: int) -> None:
        """Frees a recording without a trace, which ended at `end`, ns."""
        let_go(profile)
        if self._recorder.folder:  # else a forked child: the file is the parent's
            with suppressed(OSError):  # the recording is gone
                os.unlink(self._partial)
        self._record_cost(end)

    def abandon(self) -> None:
        """Ends the recording without a trace as soon as possible, because the job changed its ways during it."""
        if self._profile is not None and not may_end():
            Deadline(0, self.abandon, lambda error: None).__enter__()
        elif self._profile is not None:
            end = now()
            self._dropped(self._end(""), end)

    def _end(self, history: str) -> Any:
        """Switches off everything that `start` switched on, even on errors. history: path for the allocator's, or
        ""."""
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

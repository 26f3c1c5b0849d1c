"""Changes of the whole process: environment, debug switches, profilers, threads, garbage collection."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import anomaly_mode, profiler as autograd_profiler
from torch.autograd.profiler_util import EventList
from torch.distributions import Distribution

from steptime.probe.changes.applier import Applier, with_arguments
from steptime.probe.identity import flushes_denormals
from steptime.probe.objects import parameters_of


class EnvironmentVariables(Applier):
    """Change of environment variables, made at the launch. arguments: names and values of the variables."""

    detail = "in force since the process started"

    def install(self) -> None:
        self.applied = self.exercised = True
        for name, value in self.arguments.items():
            if os.environ.get(name) != str(value):
                self.applied = False
                self.detail = f"{name} is {os.environ.get(name, 'not set')}: a script in between has set it"


class Preloaded(Applier):
    """Change that preloads a library, made at the launch. target: its name (jemalloc, tcmalloc) or path."""

    def install(self) -> None:
        """Checks whether the dynamic loader has loaded the library."""
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            self.applied = self.exercised = os.path.basename(self.target) in maps.read()
        self.detail = "loaded" if self.applied else f"no library {self.target} was found, or it was not loaded"


class AnomalyOff(Applier):
    """Change that removes anomaly detection, which keeps a stack for every operator of the forward. No arguments."""

    detail = "the job does not switch anomaly detection on"

    def install(self) -> None:
        """Disables both ways of switching anomaly detection on."""

        def edit(bound: inspect.BoundArguments) -> None:
            if bound.arguments.get("mode"):
                bound.arguments["mode"] = False
                self._seen()

        cls: Any = anomaly_mode.set_detect_anomaly
        cls.__init__ = with_arguments(self, cls.__init__, edit)
        context: Any = anomaly_mode.detect_anomaly
        context.__enter__ = lambda _: self._seen()
        self.applied = True

    def _seen(self) -> None:
        self.works("anomaly detection was left off")


class DeterministicOff(Applier):
    """Change that removes deterministic algorithms of torch and of cuDNN. No arguments."""

    switchable = True
    detail = "the job does not ask for deterministic algorithms"
    _before = (False, False, False)
    _cuda = False

    def install(self) -> None:
        """Switches deterministic algorithms off; later requests of the job have no effect."""
        original = torch.use_deterministic_algorithms

        def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
            if mode:
                self._seen()

        self.on()
        torch.use_deterministic_algorithms = use_deterministic_algorithms
        self._set = original

    _set = staticmethod(torch.use_deterministic_algorithms)

    def on(self) -> None:
        super().on()
        asked = torch.are_deterministic_algorithms_enabled()
        cudnn = bool(torch.backends.cudnn.deterministic)
        self._before = asked, torch.is_deterministic_algorithms_warn_only_enabled(), cudnn
        self._set(False)
        torch.backends.cudnn.deterministic = False
        self.applied = True
        if asked or (cudnn and self._cuda):
            self._seen()

    def off(self) -> None:
        super().off()
        asked, warns, torch.backends.cudnn.deterministic = self._before
        self._set(asked, warn_only=warns)

    def top_module(self, module: torch.nn.Module) -> None:
        """Switches off modes that were set in another way."""
        self._cuda = self._cuda or any(each.is_cuda for each in parameters_of(module))
        if self.in_force:
            self.on()

    def _seen(self) -> None:
        self.works("deterministic algorithms were left off")


class FlushDenormal(Applier):
    """Change that flushes denormals: numbers too small for the processor's normal arithmetic become zero. No arguments.

    The mode belongs to a thread, and new threads inherit it. So it is set before torch starts any."""

    def install(self) -> None:
        if flushes_denormals():
            self.detail = "denormals were already flushed"
            return
        self.applied = bool(torch.set_flush_denormal(True))
        self.detail = "no step ran under it" if self.applied else "this processor has no such mode"

    def boundary(self, steps: int) -> None:
        if self.applied:
            self.exercised = flushes_denormals()
            self.detail = "" if self.exercised else "the job has switched it off"


class UncheckedDistributions(Applier):
    """Change of torch.distributions: arguments are checked only if a distribution requests it. No arguments."""

    switchable = True
    detail = "the checks of torch.distributions were already off"
    _before = False

    def on(self) -> None:
        super().on()
        self._before = Distribution._validate_args
        Distribution.set_default_validate_args(False)
        self.applied = self.applied or self._before

    def off(self) -> None:
        super().off()
        Distribution.set_default_validate_args(self._before)

    def boundary(self, steps: int) -> None:
        """Checks whether the job has switched the checks on again."""
        if self.applied and self.in_force:
            self.exercised = not Distribution._validate_args
            self.detail = "" if self.exercised else "the job has switched them on"


FROZEN_AFTER = 2
"""Steps after which model, optimizer state and workers exist."""
THRESHOLD = 50_000
"""Allocations until the youngest generation is collected; Python's default is 700 (2000 from 3.13 on)."""


class GarbageFreeze(Applier):
    """Change that hides existing objects from the garbage collector, and makes collections rarer. No arguments."""

    detail = f"the job has not made {FROZEN_AFTER} steps"

    def boundary(self, steps: int) -> None:
        if steps < FROZEN_AFTER or self.applied:
            return
        if not gc.isenabled():
            self.detail = "the job has switched the collector off"
            return
        gc.collect()
        gc.freeze()
        gc.set_threshold(THRESHOLD, *gc.get_threshold()[1:])
        self.applied = True
        self.works(f"{gc.get_freeze_count()} objects frozen, threshold {THRESHOLD}")


RESULTS = ("key_averages", "events")
"""Methods that return recorded events: they return an empty list."""
EXPORTS = ("export_chrome_trace", "export_stacks", "export_memory_timeline", "add_metadata", "add_metadata_json")
"""Methods that write recorded events: they do nothing."""


class ProfilerOff(Applier):
    """Change that removes the job's profiler: torch.profiler.profile never starts, as if its schedule only waits. No
    arguments."""

    detail = "the job makes no profiler"

    def install(self) -> None:
        newer: Any = torch.profiler.profile

        def edit(bound: inspect.BoundArguments) -> None:
            bound.arguments["schedule"] = lambda step: torch.profiler.ProfilerAction.NONE
            bound.arguments["on_trace_ready"] = None
            self._seen()

        newer.__init__ = with_arguments(self, newer.__init__, edit)
        for name in RESULTS + EXPORTS:
            original = getattr(newer, name, None)
            if original is not None:
                setattr(newer, name, _of_nothing(original, name in RESULTS))
        older: Any = autograd_profiler.profile
        older.__enter__, older.__exit__ = self._entered(older.__enter__), _left(older.__exit__)
        self.applied = True

    def _entered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # From torch 2.6 on events are made when they are asked for, behind a property.
        computed = isinstance(getattr(autograd_profiler.profile, "function_events", None), property)

        @functools.wraps(original)
        def __enter__(profiler: Any) -> Any:
            if not profiler.enabled:
                return original(profiler)
            self._seen()
            profiler.__dict__["_function_events" if computed else "function_events"] = _nothing()
            return profiler

        return __enter__

    def _seen(self) -> None:
        self.works("the job's profiler records nothing")


def _of_nothing(original: Callable[..., Any], is_result: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(profiler: Any, *args: Any, **kwargs: Any) -> Any:
        if profiler.profiler is not None:
            return original(profiler, *args, **kwargs)
        return _nothing() if is_result else None

    return method


def _left(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __exit__(profiler: Any, *args: Any) -> Any:
        return False if profiler.enabled else original(profiler, *args)

    return __exit__


def _nothing() -> EventList:
    """Returns the events of a profiler that has seen no operator."""
    events = EventList([])
    events._build_tree()
    return events


WORKER = "torch.utils.data._utils.worker"


class ThreadCount(Applier):
    """Change of the number of torch's threads. arguments: intra_op."""

    def install(self) -> None:
        """Sets the number of threads, also for later requests of the job; a loader's worker keeps its single thread."""
        self._number = number = int(self.arguments["intra_op"])
        before = torch.get_num_threads()
        original = torch.set_num_threads

        def set_num_threads(count: int) -> None:
            if sys._getframe(1).f_globals.get("__name__") == WORKER:
                original(count)
                return
            if count != number:
                self.applied, self.detail = True, f"{count} → {number}"
            original(number)

        torch.set_num_threads = set_num_threads
        original(number)
        self.applied = before != number
        self.detail = f"{before} → {number}" if self.applied else f"there were already {number}"

    def boundary(self, steps: int) -> None:
        if self.applied:
            self.exercised = torch.get_num_threads() == self._number

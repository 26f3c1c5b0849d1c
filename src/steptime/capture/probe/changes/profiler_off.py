"""The change "profiler-off": the job's own profilers are entered and left, and record nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler_util import EventList

from steptime.capture.probe.changes.applier import Applier, with_arguments

RESULTS = ("key_averages", "events")
"""Methods that ask for what was recorded: they give an empty list."""
EXPORTS = ("export_chrome_trace", "export_stacks", "export_memory_timeline", "add_metadata", "add_metadata_json")
"""Methods that write it: they do nothing."""


class ProfilerOff(Applier):
    """No arguments. torch.profiler.profile never starts, as with a schedule that only waits."""

    def install(self) -> None:
        """Wraps both profilers."""
        self.detail = "the job makes no profiler"
        newer: Any = torch.profiler.profile

        def edit(bound: inspect.BoundArguments) -> None:
            bound.arguments["schedule"] = _never
            bound.arguments["on_trace_ready"] = None
            self._seen()

        newer.__init__ = with_arguments(self, newer.__init__, edit)
        for name in RESULTS + EXPORTS:
            original = getattr(newer, name, None)
            if original is not None:
                setattr(newer, name, _of_nothing(original, name in RESULTS))
        older: Any = autograd_profiler.profile
        older.__enter__ = self._entered(older.__enter__)
        older.__exit__ = _left(older.__exit__)
        self.applied = True

    def _entered(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __enter__(profiler: Any) -> Any:
            if not profiler.enabled:
                return original(profiler)
            self._seen()
            profiler.__dict__["_function_events" if _computes_events() else "function_events"] = _nothing()
            return profiler

        return __enter__

    def _seen(self) -> None:
        self.exercised = True
        self.detail = "the job's profiler records nothing"


def _never(step: int) -> Any:
    return torch.profiler.ProfilerAction.NONE


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


def _computes_events() -> bool:
    """Whether events are made when they are asked for, behind a property (torch 2.6 and later)."""
    return isinstance(getattr(autograd_profiler.profile, "function_events", None), property)


def _nothing() -> EventList:
    """What a profiler has recorded that has seen no operator."""
    events = EventList([])
    events._build_tree()
    return events

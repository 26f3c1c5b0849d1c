"""Which DataLoaders a change is meant for, and their constructions."""

from __future__ import annotations

import inspect
import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from steptime.capture.probe import sites
from steptime.capture.probe.changes.applier import Applier, count, with_arguments

Arguments = dict[str, Any]


class LoaderChange(Applier, ABC):
    """Changes arguments with which DataLoaders are constructed. target: the `file:line` of the construction for exactly
    that one. The argument `site` names it by line and name of the file, in whatever folder the job runs now. Without
    either, those that train are changed (shuffled, or with a sampler of their own).

    A framework may construct a loader anew from the one that it was given: the change is made each time.
    """

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._changed: weakref.WeakSet[Any] = weakref.WeakSet()
        self._others = 0
        self._reasons: list[str] = []
        self._used: set[int] = set()

    @abstractmethod
    def decide(self, arguments: Arguments) -> str:
        """Edits the arguments of one construction. Returns why it was left as it is, or ""."""

    def iterator(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """The iterator of a changed loader, which `original` makes."""
        return original(loader)

    def install(self) -> None:
        """Wraps DataLoader.__init__, and listens to the iterators that are made."""
        signature = inspect.signature(DataLoader.__init__)

        def edit(bound: inspect.BoundArguments) -> None:
            settings = {name: each.default for name, each in signature.parameters.items() if name != "self"}
            settings.update(bound.arguments)
            loader = settings.pop("self")
            reason = self._decide(settings)
            if reason is None:
                bound.arguments.update({name: settings[name] for name in settings if name in signature.parameters})
                self._changed.add(loader)

        DataLoader.__init__ = with_arguments(self, DataLoader.__init__, edit)
        original = DataLoader._get_iterator

        def _get_iterator(loader: Any) -> Any:
            if loader not in self._changed:
                return original(loader)
            self._used.add(id(loader))
            return self.iterator(loader, original)

        DataLoader._get_iterator = _get_iterator

    def _decide(self, settings: Arguments) -> str | None:
        if not self._is_meant(settings):
            self._others += 1
            return "another loader"
        reason = self.decide(settings)
        if reason:
            self._reasons.append(reason)
            return reason
        self.applied = True
        return None

    def _is_meant(self, settings: Arguments) -> bool:
        if self.target:
            place = sites.user_frame(sys._getframe(3))
            return place is not None and _names(self.target, place)
        if not self.arguments.get("site"):
            return self.is_for(settings)
        place = sites.user_frame(sys._getframe(3))
        return self.is_known(settings) or (place is not None and _is_like(str(self.arguments["site"]), place))

    def is_known(self, settings: Arguments) -> bool:
        """Whether it is made from a loader that was changed."""
        return False

    def is_for(self, settings: Arguments) -> bool:
        """Whether a loader of these arguments is meant where no target is named."""
        return trains(settings)

    def border(self, steps: int) -> None:
        """A step was taken: loaders that were asked for batches by now are in use."""
        self.exercised = bool(self._used)
        if self.exercised:
            self.detail = f"{count(len(self._used), 'loader')} changed" + (
                f", {self._others} left alone" if self._others else ""
            )
        elif self._reasons:
            self.detail = self._reasons[0]
        elif self.applied:
            self.detail = "no training step has asked a changed loader for a batch"
        elif self._others:
            self.detail = f"none of {count(self._others, 'DataLoader')} is the one to change"
        else:
            self.detail = "the job makes no DataLoader"


def trains(settings: Arguments) -> bool:
    """Whether a loader trains: one that evaluates goes through its items in their order."""
    if isinstance(settings["dataset"], IterableDataset):
        return True  # cannot be shuffled: its order says nothing
    sampler = settings["batch_sampler"] if settings["batch_sampler"] is not None else settings["sampler"]
    inner = getattr(sampler, "sampler", sampler)
    return bool(settings["shuffle"]) or (inner is not None and not isinstance(inner, SequentialSampler))


def _names(target: str, place: tuple[str, int, str]) -> bool:
    file, _, line = target.rpartition(":")
    return line == str(place[1]) and os.path.abspath(file) == os.path.abspath(place[0])


def _is_like(site: str, place: tuple[str, int, str]) -> bool:
    """By line and name of the file: an arm runs in a copy of the job's folder."""
    file, _, line = site.rpartition(":")
    return line == str(place[1]) and os.path.basename(file) == os.path.basename(place[0])


def holds_device_tensors(dataset: Any) -> bool:
    """Whether an attribute of the dataset is a tensor on a device: a forked worker cannot use it."""
    values: list[Any] = list(getattr(dataset, "__dict__", {}).values())
    values += [each for value in values if isinstance(value, list | tuple) for each in value[:8]]
    return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values)

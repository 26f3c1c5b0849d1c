"""The change "loader": num_workers, persistent_workers, prefetch_factor, pin_memory and non_blocking copies."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import IterableDataset

from steptime.capture.probe.changes.loaders import Arguments, LoaderChange, holds_device_tensors

WITH_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
"""Arguments that torch refuses without workers, with what stands for none of them."""
NONE = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}
SET_ALREADY = "the loader is set so already"
SETTINGS = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")


class LoaderSettings(LoaderChange):
    """arguments: any of SETTINGS, and non_blocking (copies from pinned memory do not wait)."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._datasets: dict[int, Any] = {}

    def install(self) -> None:
        """Also makes the copies non-blocking where that is asked for."""
        super().install()
        if self.arguments.get("non_blocking") and torch.cuda.is_available():
            let_copies_go_on()

    def decide(self, arguments: Arguments) -> str:
        """See LoaderChange."""
        wanted = {name: self.arguments[name] for name in SETTINGS if name in self.arguments}
        workers = wanted.get("num_workers", arguments["num_workers"])
        if workers and not arguments["num_workers"]:
            if isinstance(arguments["dataset"], IterableDataset):
                return "an IterableDataset without workers: each worker would yield all of it"
            if holds_device_tensors(arguments["dataset"]):
                return "the dataset holds tensors on a device, which a forked worker cannot use"
        if wanted.get("pin_memory") and not torch.accelerator.is_available():
            if len(wanted) == 1:
                return "memory is pinned for an accelerator, and there is none"
            del wanted["pin_memory"]
        if not workers:
            wanted.update({name: NONE[name] for name in WITH_WORKERS})
        if all(arguments[name] == value for name, value in wanted.items()):
            return "" if self._datasets.get(id(arguments["dataset"])) is arguments["dataset"] else SET_ALREADY
        self._datasets[id(arguments["dataset"])] = arguments["dataset"]
        arguments.update(wanted)
        return ""

    def is_known(self, settings: Arguments) -> bool:
        """Accelerate and Lightning make a loader anew from the one that was changed, with its settings."""
        kept = (settings[name] == self.arguments[name] for name in SETTINGS[:-1] if name in self.arguments)
        return self._datasets.get(id(settings["dataset"])) is settings["dataset"] and all(kept)


def let_copies_go_on() -> None:
    """Copies out of pinned memory, by Tensor.to and Tensor.cuda, do not wait for their end, unless the caller says what
    they do."""
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, _without_waiting(getattr(torch.Tensor, name), name))


def _without_waiting(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # Only out of pinned memory: a copy to the host that does not wait would be read too early.
        if not _says_whether_to_wait(name, args, kwargs) and tensor.device.type == "cpu" and tensor.is_pinned():
            kwargs["non_blocking"] = True
        return original(tensor, *args, **kwargs)

    return copy


def _says_whether_to_wait(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """By name, or by its place in cuda(device, non_blocking), to(dtype, non_blocking), to(other, non_blocking) and
    to(device, dtype, non_blocking)."""
    second = name == "cuda" or (bool(args) and isinstance(args[0], torch.dtype | torch.Tensor))
    return "non_blocking" in kwargs or len(args) > (1 if second else 2)

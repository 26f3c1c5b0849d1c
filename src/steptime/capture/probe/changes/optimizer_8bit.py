"""The change "optimizer-8bit": Adam and AdamW with their state in 8 bits, of a package that is installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

import torch

from steptime.capture.probe.changes.applier import Applier

PACKAGES = (("bitsandbytes", "bitsandbytes.optim"), ("torchao", "torchao.optim"))
"""Package, and the module in which its Adam8bit and AdamW8bit are."""
CLASSES = ("Adam", "AdamW")


class Optimizer8Bit(Applier):
    """arguments: package (one of PACKAGES; else the first that is installed)."""

    def install(self) -> None:
        """Replaces the two classes by ones that make the other's objects."""
        wanted = self.arguments.get("package")
        known = [pair for pair in PACKAGES if wanted in (None, pair[0])]
        found = next((pair for pair in known if importlib.util.find_spec(pair[0]) is not None), None)
        if found is None:
            self.refused(f"not installed: {' or '.join(name for name, _ in known) or wanted}")
            return
        self._module = found[1]
        self.detail = f"the job makes no {' or '.join(CLASSES)} of torch.optim"
        for name in CLASSES:
            setattr(torch.optim, name, self._replaced(name))

    def _replaced(self, name: str) -> type:
        original: Any = getattr(torch.optim, name)
        change = self

        def make(cls: type, params: Any, *args: Any, **kwargs: Any) -> Any:
            if cls is not replacement:
                return object.__new__(cls)
            params = list(params)
            other = change._make(original, name, params, args, kwargs)
            return original(params, *args, **kwargs) if other is None else other

        # An object of another class from __new__: Python does not call this one's __init__.
        replacement = type(name, (original,), {"__new__": make, "__module__": original.__module__})
        return replacement

    def _make(self, original: Any, name: str, params: list[Any], args: Any, kwargs: Any) -> Any:
        try:
            group = params[0]["params"] if isinstance(params[0], dict) else params
            if not all(each.is_cuda for each in group):
                self.refused("its kernels need a CUDA device")
                return None
            cls = getattr(importlib.import_module(self._module), f"{name}8bit")
            given = inspect.signature(original).bind(params, *args, **kwargs).arguments
            known = inspect.signature(cls).parameters
            made = cls(**{key: value for key, value in given.items() if key in known})
        except Exception as error:  # noqa: BLE001 - the probe's border: the job gets the optimiser that it asked for
            self.failed(error)
            return None
        self.applied = True
        self._class = cls
        self.detail = f"{cls.__module__}.{cls.__name__}"
        return made

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Whether it makes steps."""
        if self.applied and isinstance(optimizer, self._class):
            self.exercised = True

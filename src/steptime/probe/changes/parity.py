"""Numbers that a variant computes: losses, gradient norms and peak memory by step, for a comparison with the
baseline's.

Nothing waits for the device between steps: losses stay on it as copies and are read together. Reads and gradient norms
are in a PAUSE of the journal, and a step with a PAUSE is not timed.
"""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import sys
import time
from itertools import count
from typing import Any

import torch

from steptime.journal import append_to
from steptime.probe import device
from steptime.probe.changes.applier import keep_unscaled, losses_of, unscaled
from steptime.probe.changes.carried import options_of
from steptime.probe.changes.launches import LaunchCounter
from steptime.probe.changes.loss_course import LossCourse
from steptime.probe.changes.sketches import sketch
from steptime.probe.changes.variant import ProcessVariant
from steptime.probe.changes.work import REPLACED, WorkRecorder, numbers, replaced
from steptime.probe.modules import named_parameters
from steptime.probe.objects import each_once, local_values, parameters_of
from steptime.probe.recorder import Recorder, json_number

NORM_PERIOD = 16
"""Steps between two gradient norms, and writes, after the warm-up: each makes a step untimed."""
ROOTS = 0
"""Owner of norms over the top modules' parameters; others are an optimizer's id."""


class ParityRecorder:
    """Writer of a variant's numbers into parity.jsonl in the process's folder (docs/recording-format.md)."""

    def __init__(self, variant: ProcessVariant, *, profiles: bool = True) -> None:
        self._began = time.perf_counter_ns()
        self._last = variant.warm_up + variant.steps if variant.fingerprint_steps else None
        # Of a rehearsal all steps but the last, whose launches are counted.
        self._every = max(variant.warm_up, 1, self._last - 1 if self._last else 0)
        self._fingerprints = variant.fingerprint_steps
        self._until = variant.until_loss
        self._course, self._reached = LossCourse(), False
        self._recorder: Recorder | None = None
        self._steps = 0
        self._losses: list[Any] = []
        self._norms: dict[int, tuple[list[Any], list[Any], float]] = {}
        self._directions: dict[str, Any] = {}
        self._scaler: Any = None
        self._scaled = False
        self._rows: list[dict[str, Any]] = []
        self._names: dict[int, str] = {}
        self._path = ""
        self._counts_launches = profiles and bool(variant.fingerprint_steps) and not variant.exact
        self._options: list[tuple[str, int]] = []
        self._updated: list[tuple[Any, Any]] = []
        self.work = WorkRecorder()
        self._launches = LaunchCounter()
        self._replaced: set[str] = set()

    def install(self) -> None:
        """Makes GradScaler.scale store its unscaled loss."""
        keep_unscaled(functools.partial(setattr, self, "_scaler"))
        self._replaced.update(replaced())

    def attach(self, recorder: Recorder) -> None:
        """Connects the recorder of this process; after a fork, the child's, which has done no step."""
        self._recorder, self._path, self._steps = recorder, "", 0
        self._losses, self._rows = [], []
        self._course, self._reached = LossCourse(), False
        self._norms.clear()
        self.work.row()
        self.work.pause = recorder.pause
        self._look_at_work()

    # -- reports -------------------------------------------------------------------------------------------------------

    def top_module(self, module: torch.nn.Module) -> None:
        taken = set(self._names.values())
        for name, parameter in named_parameters(module):
            # Without what wrappers put before a name (DistributedDataParallel, torch.compile).
            name = name.removeprefix("module.").replace("_orig_mod.", "")
            alike = next(each for n in count(1) if (each := f"{name} ({n})" if n > 1 else name) not in taken)
            self._names.setdefault(id(parameter), alike)
        self.work.top_module(module, self._name)

    def _name(self, parameter: Any) -> str:
        return self._names.get(id(parameter), "")

    def backward(self, tensors: Any) -> None:
        begun = losses_of(tensors)
        before = [unscaled.of(tensor) for tensor in begun]
        self._scaled = any(each is not None for each in before)
        self.work.backward()
        for tensor, known in zip(begun, before, strict=True):
            loss = (tensor if known is None else known).detach()
            # A copy: a captured graph, or the user, may write over the original before it is read.
            self._losses.append(loss.clone() if loss.dim() == 0 else loss.float().mean())

    def after_backward(self, top_modules: list[torch.nn.Module]) -> None:
        """Called when an outermost backward has ended. The last one of a step counts: its gradients are complete, but
        not clipped."""
        if self._is_due():
            parameters = list(each_once(*map(parameters_of, top_modules)))
            if any(parameter.grad is not None for parameter in parameters):
                scale = float(self._scaler.get_scale()) if self._scaled and self._scaler is not None else 1.0
                self._look(parameters, ROOTS, scale)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before an optimizer's step, whose gradients are clipped and without a scale by then. Stores their
        norms and those after the last backward."""
        if not self._is_due() or ROOTS not in self._norms:
            return
        parameters, norms, scale = self._norms[ROOTS]
        before = {id(each): norm for each, norm in zip(parameters, norms, strict=True) if norm is not None}
        with torch.no_grad():
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if id(parameter) in before and parameter.grad is not None:
                    self._updated.append((before[id(parameter)] / scale, _norm(parameter.grad)))

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after an optimizer's step. Inside a backward, only here are its gradients visible."""
        if self._is_due():
            self._options += options_of(optimizer)
        if self._is_due() and ROOTS not in self._norms:
            self._look([parameter for group in optimizer.param_groups for parameter in group["params"]], id(optimizer))

    def _is_due(self) -> bool:
        step = self._steps + 1
        return step <= self._every or step % NORM_PERIOD == 0

    def boundary(self, steps: int, iterators: int) -> None:
        """Collects a step's row. iterators: number of loader iterators started so far."""
        self._steps = steps
        row: dict[str, Any] = {"step": steps, "iterators": iterators, "losses": self._losses, "norms": self._norms}
        row |= {
            "end": time.perf_counter_ns(),
            "peak": _peak_bytes(),
            "directions": list(self._directions.items()),
            "options": self._options,
            "updated": self._updated,
            **self.work.row(),
        }
        self._losses, self._norms, self._directions, self._options, self._updated = [], {}, {}, [], []
        self._rows.append(row)
        self._look_at_work()
        row |= self.work.carried_state(steps, self._last)  # last: what fails in it costs nothing else
        if self._last is not None and self._recorder is not None and self._counts_launches:
            row |= self._launches.boundary(steps, self._last, self._recorder)

    def _look_at_work(self) -> None:
        self.work.looking, self.work.in_full = self._is_due(), self._steps + 1 <= self._fingerprints
        if self.work.looking:
            self._replaced.update(replaced())

    def restart(self) -> None:
        """Discards all rows, because they were no steps; the numbering starts at step 1 again."""
        self._steps, self._rows = 0, []
        self._course, self._reached = LossCourse(), False
        self._look_at_work()
        if self._path:
            os.truncate(self._path, 0)

    def reached(self) -> bool:
        """True if the mean loss has fallen to the requested level, judging by the losses read so far."""
        return self._reached

    # -- reading and writing ---------------------------------------------------------------------------------------

    def _look(self, parameters: list[Any], owner: int, scale: float = 1.0) -> None:
        if device.in_use():  # its work is the steps'; the look itself is nobody's
            device.drained()
        start = time.perf_counter_ns()
        with torch.no_grad():
            self._norms[owner] = (parameters, [_norm(parameter.grad) for parameter in parameters], scale)
            if self._steps < self._fingerprints:
                self._directions |= {
                    self._name(parameter): sketch(parameter.grad) / scale
                    for parameter in parameters
                    if parameter.grad is not None
                }
            self.write()
        if self._recorder is not None and self._recorder.folder:
            self._recorder.pause(start)

    def finish(self) -> None:
        """Writes the remaining rows at the end of the process."""
        self._replaced.update(replaced())
        if self._recorder is not None:
            for name in sorted(self._replaced):
                self._recorder.note(REPLACED + name)
        self.write()

    def write(self) -> None:
        rows, self._rows = self._rows, []
        if not rows or self._recorder is None or not self._recorder.folder:
            return
        self._path = os.path.join(self._recorder.folder, "parity.jsonl")
        append_to(self._path, "".join(json.dumps(self._line(row)) + "\n" for row in rows).encode())

    def _line(self, row: dict[str, Any]) -> dict[str, Any]:
        losses = [float(loss) for loss in row["losses"]]
        if losses and self._until is not None:
            self._reached = self._course.add(sum(losses)) <= self._until or self._reached
        values = [
            (parameter, None if norm is None else float(norm) / scale)
            for parameters, norms, scale in row["norms"].values()
            for parameter, norm in zip(parameters, norms, strict=True)
        ]
        known = [value for _, value in values if value is not None]
        without = [self._name(parameter) for parameter, value in values if not value]
        line: dict[str, Any] = {
            "step": row["step"],
            "loss": None,
            "backwards": len(losses),
            "gradient_norm": json_number(math.sqrt(math.fsum(value * value for value in known))) if known else None,
            "peak_bytes": row["peak"],
            "began_ns": self._began,
            "end_ns": row["end"],
            "without": without,
            **numbers(row),
        }
        if losses:
            finite = all(map(math.isfinite, losses))
            line["loss"] = json_number(math.fsum(losses) / len(losses) if finite else sum(losses))
        if row["step"] <= self._fingerprints and values:
            names = (self._names.get(id(parameter), f"#{index}") for index, (parameter, _) in enumerate(values))
            line["gradients"] = [[name, json_number(value)] for name, (_, value) in zip(names, values, strict=True)]
        return line


def _norm(gradient: Any) -> Any:
    """Returns the 2-norm as a 0-D tensor on the gradient's device; None without a gradient."""
    if gradient is None:
        return None
    gradient = local_values(gradient)
    return torch.linalg.vector_norm(gradient, dtype=torch.float32 if gradient.element_size() < 4 else None)


def _peak_bytes() -> int:
    """Returns the peak of this step on a device (its counter is reset), else of the process so far."""
    if device.in_use():
        peak = device.statistics()["allocated_bytes"]["all"]["peak"]
        torch.cuda.reset_peak_memory_stats()
        return int(peak)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)

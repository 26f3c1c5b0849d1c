"""What a variant computes: losses, gradient norms and peak memory by step, for a comparison with the baseline's.

Nothing waits for the device between steps: losses stay where they are, as copies, and are read together. Reading, and
norms of gradients, lie in a PAUSE of the journal: the step that holds one is no step to time.
"""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import sys
import time
from typing import Any

import torch

from steptime.journal import append_to
from steptime.probe.changes.applier import UNSCALED, keep_unscaled, losses_of
from steptime.probe.changes.variant import ProcessVariant
from steptime.probe.objects import each_once, local_values, parameters_of
from steptime.probe.recorder import Recorder, json_number

NORM_PERIOD = 16
"""Of every so manieth step behind the warm-up the gradient norm is taken, and what was kept is written: each look at
the gradients costs a step that is then not timed."""
ROOTS = 0
"""Owner of norms that were taken of the root modules' parameters; others are an optimiser's id."""


class ParityRecorder:
    """Writes parity.jsonl in the process's folder: see docs/recording-format.md."""

    def __init__(self, variant: ProcessVariant) -> None:
        self._every = max(variant.warm_up, variant.fingerprint_steps, 1)
        self._fingerprints = variant.fingerprint_steps
        self._recorder: Recorder | None = None
        self._steps = 0
        self._losses: list[Any] = []
        self._norms: dict[int, tuple[list[Any], list[Any], float]] = {}
        self._scaler: Any = None
        self._scaled = False
        self._rows: list[dict[str, Any]] = []
        self._names: dict[int, str] = {}
        self._path = ""

    def install(self) -> None:
        """GradScaler.scale remembers the loss that it scales."""
        keep_unscaled(functools.partial(setattr, self, "_scaler"))

    def attach(self, recorder: Recorder) -> None:
        """The recorder of this process; after a fork, the child's, which has done no step."""
        self._recorder, self._path, self._steps = recorder, "", 0
        self._losses, self._rows = [], []
        self._norms.clear()

    # -- what is told ----------------------------------------------------------------------------------------------

    def root(self, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters():
            # Without what wrappers put before a name (DistributedDataParallel, torch.compile).
            self._names.setdefault(id(parameter), name.removeprefix("module.").replace("_orig_mod.", ""))

    def backward(self, tensors: Any) -> None:
        begun = losses_of(tensors)
        self._scaled = any(hasattr(tensor, UNSCALED) for tensor in begun)
        for tensor in begun:
            loss = getattr(tensor, UNSCALED, tensor).detach()
            # A copy: a captured graph, or the user, may write over the original before it is read.
            self._losses.append(loss.clone() if loss.dim() == 0 else loss.float().mean())

    def after_backward(self, roots: list[torch.nn.Module]) -> None:
        """An outermost backward has ended. The last one of a step counts: gradients are whole, nothing is clipped."""
        if self._is_due():
            parameters = list(each_once(*map(parameters_of, roots)))
            if any(parameter.grad is not None for parameter in parameters):
                scale = float(self._scaler.get_scale()) if self._scaled and self._scaler is not None else 1.0
                self._look(parameters, ROOTS, scale)

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimiser's step is done; where it was made inside the backward, its gradients are only here."""
        if self._is_due() and ROOTS not in self._norms:
            self._look([parameter for group in optimizer.param_groups for parameter in group["params"]], id(optimizer))

    def _is_due(self) -> bool:
        step = self._steps + 1
        return step <= self._every or step % NORM_PERIOD == 0

    def boundary(self, steps: int) -> None:
        self._steps = steps
        row: dict[str, Any] = {"step": steps, "losses": self._losses, "norms": self._norms, "peak": _peak_bytes()}
        self._losses, self._norms = [], {}
        self._rows.append(row)

    def restart(self) -> None:
        """What was written so far were no steps: step 1 comes again."""
        self._steps, self._rows = 0, []
        if self._path:
            os.truncate(self._path, 0)

    # -- reading and writing ---------------------------------------------------------------------------------------

    def _look(self, parameters: list[Any], owner: int, scale: float = 1.0) -> None:
        begin = time.perf_counter_ns()
        with torch.no_grad():
            self._norms[owner] = (parameters, [_norm(parameter.grad) for parameter in parameters], scale)
            self.write()
        if self._recorder is not None and self._recorder.folder:
            self._recorder.pause(begin)

    def write(self) -> None:
        rows, self._rows = self._rows, []
        if not rows or self._recorder is None or not self._recorder.folder:
            return
        self._path = os.path.join(self._recorder.folder, "parity.jsonl")
        append_to(self._path, "".join(json.dumps(self._line(row)) + "\n" for row in rows).encode())

    def _line(self, row: dict[str, Any]) -> dict[str, Any]:
        losses = [float(loss) for loss in row["losses"]]
        values = [
            (parameter, None if norm is None else float(norm) / scale)
            for parameters, norms, scale in row["norms"].values()
            for parameter, norm in zip(parameters, norms, strict=True)
        ]
        known = [value for _, value in values if value is not None]
        line: dict[str, Any] = {
            "step": row["step"],
            "loss": None,
            "backwards": len(losses),
            "gradient_norm": json_number(math.sqrt(math.fsum(value * value for value in known))) if known else None,
            "peak_bytes": row["peak"],
        }
        if losses:
            finite = all(map(math.isfinite, losses))
            line["loss"] = json_number(math.fsum(losses) / len(losses) if finite else sum(losses))
        if row["step"] <= self._fingerprints and values:
            names = (self._names.get(id(parameter), f"#{index}") for index, (parameter, _) in enumerate(values))
            line["gradients"] = [[name, json_number(value)] for name, (_, value) in zip(names, values, strict=True)]
        return line


def _norm(gradient: Any) -> Any:
    """The 2-norm as a tensor without dimensions where the gradient lives; None where there is no gradient."""
    if gradient is None:
        return None
    gradient = local_values(gradient)
    return torch.linalg.vector_norm(gradient, dtype=torch.float32 if gradient.element_size() < 4 else None)


def _peak_bytes() -> int:
    """Of this step where a device counts (its counter starts again), else of the process so far."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return int(peak)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)

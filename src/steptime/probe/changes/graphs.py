"""A model whose forward and backward are captured as CUDA graphs, by torch.cuda.make_graphed_callables."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from steptime.probe import calls
from steptime.probe.changes.applier import Applier, count
from steptime.probe.objects import parameters_of
from steptime.probe.ours import pass_on

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
WARM_UP = 3
"""Calls on a side stream before the capture, torch's own default: what is allocated or chosen once is not captured."""
OURS_AND_TORCH = tuple(str(Path(sys.modules[name].__file__ or "").parent) for name in ("torch", "steptime"))


def obstacle(module: torch.nn.Module) -> str:
    """Reason why a module cannot be captured; "" if it can."""
    name = type(module).__name__
    if name == "OptimizedModule" or module._compiled_call_impl is not None:
        return "the job compiles this model itself: mode='reduce-overhead' captures there"
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        return "it is wrapped by DistributedDataParallel: capture the model before it is wrapped"
    hooked = next((each for each in module.modules() if any(getattr(each, hooks) for hooks in HOOKS)), None)
    if hooked is not None:
        return f"{type(hooked).__name__} has hooks, which a replay does not call"
    if not all(parameter.is_cuda for parameter in parameters_of(module)):
        return "the model is on no CUDA device, and CUDA graphs are CUDA's"
    return ""


def unfit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Reason why a call has no addresses to read inputs from; "" if it has."""
    if kwargs:
        return (
            f"it is called with {', '.join(sorted(kwargs))}= by name: make_graphed_callables takes tensors by position"
        )
    other = next((each for each in args if not isinstance(each, torch.Tensor)), None)
    if other is not None:
        return f"an argument is a {type(other).__name__}: make_graphed_callables takes tensors"
    return "" if args else "it is called without a tensor"


def signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Properties that must be as at the capture: a graph has one shape, dtype and device for each input."""
    return tuple((each.shape, each.stride(), each.dtype, each.device, each.requires_grad) for each in args)


def place_of(error: BaseException) -> str:
    """User's line that raised the error, as " at model.py:31"; "" if there is none."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS_AND_TORCH)
    ]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


class _Around(torch.nn.Module):  # type: ignore[misc]
    """A module around the user's: torch puts the replay into this one."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        return self.inner._call_impl(*args)


class GraphedCallables(Applier):
    """Change that captures the training model by torch.cuda.make_graphed_callables, on its first inputs. No arguments.

    A call runs as before without gradients, in evaluation, with inputs of another signature, and before the backward of
    the last one: a graph has one set of activations."""

    detail = "no model has been trained"

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._graphed: Any = None
        self._captured: tuple[Any, ...] = ()
        self._addresses: list[tuple[Any, int]] = []
        self._open = self._over = False
        self._replays = 0
        self._plain: dict[str, int] = {}

    def top_module(self, module: torch.nn.Module) -> None:
        if self.applied or self._over:
            return
        if found := obstacle(module):
            self.detail = found
            return
        calls.change(module, self._around)
        self.applied = True

    def _around(self, before: calls.Call) -> calls.Call:
        def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._over or not (module.training and torch.is_grad_enabled()):
                return before(module, args, kwargs)
            if self._graphed is None:
                self._capture(module, args, kwargs)
            why = "" if self._graphed is not None else "not captured"
            if not why and (kwargs or unfit(args, kwargs) or signature(args) != self._captured):
                why = "had inputs of another shape, dtype or layout"
            elif not why and self._open:
                why = "came before the last one's backward"
            if why:
                self._plain[why] = self._plain.get(why, 0) + 1
                return before(module, args, kwargs)
            self._open = True
            self._replays += 1
            return self._graphed(*args)

        return call

    def _capture(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Captures a call like this one; the model's buffers are then as before. A refusal is final."""
        if found := unfit(args, kwargs):
            self._give_up(found)
            return
        samples = tuple(each.detach().clone().requires_grad_(each.requires_grad) for each in args)
        buffers = [(each, each.detach().clone()) for each in module.buffers()]
        cached = torch.is_autocast_cache_enabled()
        try:
            torch.set_autocast_cache_enabled(False)  # cast weights would be read from addresses that are freed
            make: Any = torch.cuda.make_graphed_callables
            graphed = make(_Around(module), samples, num_warmup_iters=WARM_UP, allow_unused_input=True)
            self._graphed, self._captured = graphed, signature(args)
            self._addresses = [(each, each.data_ptr()) for each in parameters_of(module)]
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the job goes on as it was written
            pass_on(error)
            first, *_ = str(error).strip().splitlines() or [""]
            self._give_up(f"it cannot be captured{place_of(error)}: {first[:200]}")
        finally:
            torch.set_autocast_cache_enabled(cached)
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)

    def _give_up(self, why: str) -> None:
        self._over, self._graphed, self._addresses = True, None, []
        self.exercised, self.detail = False, why

    def after_backward(self) -> None:
        self._open = False

    def boundary(self, steps: int) -> None:
        """Checks the addresses that the graph reads and writes, and counts its calls."""
        if self._graphed is None:
            return
        if any(parameter.data_ptr() != address for parameter, address in self._addresses):
            self._give_up(f"weights moved to other addresses in step {steps}, where the graph does not read them")
            return
        plain = "".join(f"; {count(number, 'call')} {why}, and ran as before" for why, number in self._plain.items())
        if self._replays > sum(self._plain.values()):
            self.works(f"{count(self._replays, 'call')} replayed{plain}")
        else:
            self.exercised, self.detail = False, f"only {count(self._replays, 'call')} replayed{plain}"

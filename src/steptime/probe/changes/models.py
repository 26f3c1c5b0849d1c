"""Changes of how a model runs: compiled, other layouts, other kernels, activation checkpointing."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint

from steptime.probe import calls
from steptime.probe.changes import traceable
from steptime.probe.changes.applier import Applier, count, with_arguments, wrap_top_module
from steptime.probe.objects import parameters_of
from steptime.probe.ours import pass_on

UNTRAINED = "no model has been trained"


def _on_cuda(module: torch.nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in parameters_of(module))


class CudnnBenchmark(Applier):
    """Change to cuDNN's benchmark mode, which tries its algorithms for each new shape. No arguments."""

    detail = UNTRAINED

    def install(self) -> None:
        self._before = bool(torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = True
        self.applied = True

    def top_module(self, module: torch.nn.Module) -> None:
        """Sets the mode again, and checks whether the model has convolutions on a CUDA device."""
        theirs = bool(torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = True
        convolutions = sum(isinstance(each, torch.nn.modules.conv._ConvNd) for each in module.modules())
        if not _on_cuda(module):
            self.detail = "the model is on no CUDA device"
        elif self._before:
            self.detail = "it was already on"
        elif not convolutions:
            self.detail = "the model has no convolution"
        else:
            self.works(f"{convolutions} convolutions" + ("" if theirs else " (the job had switched it off)"))


SWITCHES = {
    "flash": "enable_flash_sdp",
    "efficient": "enable_mem_efficient_sdp",
    "math": "enable_math_sdp",
    "cudnn": "enable_cudnn_sdp",
}


class AttentionBackend(Applier):
    """Change that restricts scaled_dot_product_attention to one backend. arguments: backend (one of SWITCHES)."""

    switchable = True
    detail = UNTRAINED
    _cuda = False

    def prepare(self) -> None:
        """Counts the calls of attention in the first step."""
        self._calls: list[int] = []
        functional: Any = torch.nn.functional
        self._original = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = traceable.counted_attention(self._original, self._calls)

    def on(self) -> None:
        """Switches off all backends but the chosen one."""
        super().on()
        self._before = {name: enabled() for name, enabled, _ in _switches()}
        for name, _, enable in _switches():
            enable(name == self.arguments["backend"])
        self.applied = True

    def off(self) -> None:
        super().off()
        for name, _, enable in _switches():
            enable(self._before[name])

    def top_module(self, module: torch.nn.Module) -> None:
        """Checks for a CUDA device: the switches are for CUDA only."""
        self._cuda = self._cuda or _on_cuda(module)

    def boundary(self, steps: int) -> None:
        if steps != 1:
            return
        torch.nn.functional.scaled_dot_product_attention = self._original
        if not self._cuda:
            self.detail = "the model is on no CUDA device"
        elif not self._calls:
            self.detail = "scaled_dot_product_attention was not called, or only from compiled code"
        else:
            self.works(f"{self.arguments['backend']}, {len(self._calls)} calls per step")


def _switches() -> Iterator[tuple[str, Callable[[], bool], Callable[[bool], None]]]:
    """Yields name, getter and setter of the switches that this torch has."""
    for name, switch in SWITCHES.items():
        enable: Any = getattr(torch.backends.cuda, switch, None)
        if enable is not None:
            yield name, getattr(torch.backends.cuda, f"{switch.removeprefix('enable_')}_enabled"), enable


IMAGE = 4
"""Dimensions of a batch of images, and of the weight of a 2-D convolution."""


class ChannelsLast(Applier):
    """Change to channels_last convolutions. Parameters stay the same objects; gradients and optimizer states follow."""

    switchable = True
    order = 1
    detail = UNTRAINED

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._weights: list[Any] = []
        self._before: dict[int, tuple[int, ...]] = {}

    def top_module(self, module: torch.nn.Module) -> None:
        """Converts the weights of a module, and its inputs from now on."""
        weights = [each for each in parameters_of(module) if each.dim() == IMAGE and each.shape[2:].numel() > 1]
        changed = [each for each in weights if not each.is_contiguous(memory_format=torch.channels_last)]
        if not changed:
            if not self.exercised:
                self.detail = "no weight of a convolution" if not weights else "the weights already have this layout"
            return
        self._weights += changed
        if self.in_force:
            self._convert()
        wrap_top_module(module, self._with_images)
        self.applied = True
        self.works(f"{count(len(self._weights), 'weight')} of convolutions")

    def on(self) -> None:
        super().on()
        self._convert()

    def off(self) -> None:
        """Restores the strides of each weight, its optimizer state and its gradient."""
        super().off()
        for weight in self._weights:
            for tensor in (weight, *self._alike(weight)):
                tensor.data = _with_strides(tensor.data, self._before[id(weight)])

    def _convert(self) -> None:
        self._before = {id(each): each.stride() for each in self._weights}
        for weight in self._weights:
            for tensor in (weight, *self._alike(weight)):
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

    def _alike(self, weight: Any) -> Iterator[Any]:
        """Yields tensors of the weight's shape that updates read with it."""
        for optimizer in self.optimizers():
            state = optimizer.state.get(weight, {})
            yield from (
                each for each in state.values() if isinstance(each, torch.Tensor) and each.shape == weight.shape
            )
        if weight.grad is not None:
            yield weight.grad

    def _with_images(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.in_force:
                return inner(*args, **kwargs)
            return inner(*map(_image, args), **{name: _image(value) for name, value in kwargs.items()})

        return call


def _with_strides(values: Any, strides: tuple[int, ...]) -> Any:
    if values.stride() == strides:
        return values
    return torch.empty_strided(values.shape, strides, dtype=values.dtype, device=values.device).copy_(values)


def _image(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == IMAGE and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value


CHECKPOINT_OPTIONS = (
    "use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop",
)  # fmt: skip


class Checkpointing(Applier):
    """Change of activation checkpointing of blocks. arguments: enabled (True by default; False turns the job's own
    calls of torch's checkpoint into plain calls), blocks (number of first blocks to checkpoint; all by default).

    A block is a child of a ModuleList or Sequential with parameters, children, and siblings of its class."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._on = bool(arguments.get("enabled", True))
        self._most = arguments.get("blocks")
        self.switchable = not self._on
        self._blocks: dict[int, torch.nn.Module] = {}
        self._plain = 0
        self.detail = UNTRAINED if self._on else "the job does not call torch's checkpoint"

    def prepare(self) -> None:
        """Replaces torch's checkpoint, if it is to be off, before the job imports it."""
        if self._on:
            return
        original = torch_checkpoint.checkpoint

        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self.in_force:
                return original(function, *args, **kwargs)
            self._plain += 1
            return function(*args, **{name: kwargs[name] for name in kwargs if name not in CHECKPOINT_OPTIONS})

        torch_checkpoint.checkpoint = checkpoint
        self.applied = True

    def top_module(self, module: torch.nn.Module) -> None:
        if not self._on:
            return
        for block in islice(_blocks(module), self._most):
            if id(block) not in self._blocks and not isinstance(block, torch.jit.ScriptModule):
                self._blocks[id(block)] = block
                kind: Any = type(block)
                block.__class__ = traceable.recomputing(kind)
        self.applied = self.exercised = bool(self._blocks)
        self.detail = count(len(self._blocks), "block") if self._blocks else "the model has no repeated blocks"

    def boundary(self, steps: int) -> None:
        if self._plain:
            self.works(f"{count(self._plain, 'call')} of checkpoint made plain")


def _blocks(top_module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yields the outermost blocks only, because nested ones would be computed again twice."""
    inside: set[int] = set()
    for holder in top_module.modules():
        if id(holder) in inside or not isinstance(holder, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        children = [each for each in holder.children() if any(True for _ in each.children())]
        children = [each for each in children if next(parameters_of(each), None) is not None]
        kinds = [type(each) for each in children]
        for child in children:
            if kinds.count(type(child)) > 1:
                inside.update(id(each) for each in child.modules())
                yield child


COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx")


class Compile(Applier):
    """Change that compiles the training model by torch.compile. arguments: mode (None, "reduce-overhead",
    "max-autotune", …), backend.

    Calls without gradients, or in evaluation mode, run uncompiled. Exercised only if graphs were compiled: torch
    silently skips some modules."""

    switchable = True
    detail = UNTRAINED
    _top_modules = _known = 0
    _failed = False

    def on(self) -> None:
        super().on()
        if not self.exercised:
            self._known = _graphs()

    def top_module(self, module: torch.nn.Module) -> None:
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            if not self.applied:
                self.detail = "the job compiles this model itself"
            return
        chosen = {name: self.arguments[name] for name in ("mode", "backend") if self.arguments.get(name)}
        if chosen.get("mode") == "default":
            del chosen["mode"]
        compiled = torch.compile(traceable.called, **chosen)
        calls.change(module, lambda call: self._otherwise_as_before(compiled, call))
        self.applied = True
        self._top_modules += 1

    def _otherwise_as_before(self, compiled: Callable[..., Any], before: calls.Call) -> calls.Call:
        """Calls the module uncompiled if the compiler fails, or outside of training."""

        def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self.in_force or self._failed or not (module.training and torch.is_grad_enabled()):
                return before(module, args, kwargs)
            try:
                return compiled(module, *args, **kwargs)
            except Exception as error:  # an error of the compiler's own; the user's goes on
                pass_on(error)
                if not type(error).__module__.startswith(COMPILERS):
                    raise
                self._failed = True
                self.failed(error)
            return before(module, args, kwargs)

        return call

    def boundary(self, steps: int) -> None:
        if not self.applied or self._failed:
            return
        graphs, breaks = _graphs() - self._known, sum(_counters("graph_break").values())
        self.exercised = graphs > 0
        # Of all compilations that torch remembers (the newest 64).
        metrics: Any = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", tuple)()
        self.seconds = round(sum(int(getattr(metric, "duration_us", 0) or 0) for metric in metrics) / 1e6, 3)
        if graphs:
            self.detail = (
                f"{count(graphs, 'graph')}, {count(breaks, 'break')}, in {count(self._top_modules, 'top module')}"
            )
        else:
            self.detail = NOTHING_COMPILED


NOTHING_COMPILED = "nothing was compiled: no graph came out of it"


def _counters(group: str) -> Any:
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get(group, {})


def _graphs() -> int:
    return int(_counters("stats").get("unique_graphs", 0))


class DynamicShapes(Applier):
    """Change to dynamic=True in the job's torch.compile. No arguments. Exercised if a changed call compiled a graph."""

    detail = "the job compiles nothing"
    _calls = 0

    def install(self) -> None:
        """Wraps torch.compile, which nn.Module.compile calls, too."""

        def edit(bound: inspect.BoundArguments) -> None:
            if bound.arguments.get("dynamic") is True:
                self.detail = "the job already compiles for symbolic sizes"
                return
            bound.arguments["dynamic"] = True
            self._calls += 1
            self.applied = True

        torch.compile = with_arguments(self, torch.compile, edit)

    def boundary(self, steps: int) -> None:
        if self._calls and (graphs := _graphs()):
            self.works(f"{count(self._calls, 'call')} of torch.compile changed, {count(graphs, 'graph')}")
        elif self._calls:
            self.exercised, self.detail = False, NOTHING_COMPILED

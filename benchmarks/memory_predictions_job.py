"""A training job for benchmarks/memory_predictions.py, and the history of its memory: everything that torch allocated
on the CPU, from before the model was made to behind the last step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steptime.analysis.memory_samples import CPU_PLACE
from steptime.analysis.trace_steps import find_steps
from steptime.memory.lives import AllocationHistory, histories_of_trace
from steptime.trace.cache import read_remembered
from steptime.trace.reader import DEFAULT_MAX_SIZE

WORDS, LENGTH = 2000, 64


@dataclass(frozen=True)
class Job:
    """steps: that are trained. optimizer: "adamw", "fused", "8-bit" or "sgd". zeros: gradients are filled with zeros
    instead of given back; early: before the forward, not behind it."""

    model: str
    batch: int
    steps: int = 3
    optimizer: str = "adamw"
    autocast: bool = False
    checkpointing: bool = False
    zeros: bool = False
    early: bool = False


class Spread(nn.Module):
    """A normalisation by hand, as in many a language model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        whole = x.to(torch.float32)
        size = torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.scale * (whole * size)


class HandMade(nn.Module):
    """A block with its attention, softmax, normalisation and gate written out."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = Spread(width), Spread(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        query, key, value = (each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for each in (self.query, self.key, self.value))  # fmt: skip
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        raised = torch.exp(scores - scores.amax(-1, keepdim=True))
        mixed = (raised / raised.sum(-1, keepdim=True)) @ value
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        gate = self.gate(y)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(y))


class Residual(nn.Module):
    """Two convolutions with batch norms around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.one, self.other = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.one(self.first(x)))
        return torch.relu(x + self.other(self.second(y)))


class Wide(nn.Module):
    """A block of a perceptron: many weights for what it computes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def _encoder(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)


class Model(nn.Module):
    """Blocks of one kind between a first and a last layer."""

    def __init__(self, first: nn.Module, blocks: Iterable[nn.Module], last: nn.Module, checkpointing: bool) -> None:
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last
        self.checkpointing = checkpointing

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.last(x)  # type: ignore[no-any-return]


def _model(job: Job) -> Model:
    kind, on = job.model, job.checkpointing
    if kind == "convolutions":
        last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
        return Model(nn.Conv2d(3, 48, 3, padding=1), (Residual(48) for _ in range(4)), last, on)
    if kind == "wide":
        return Model(nn.Linear(256, 512), (Wide(512) for _ in range(4)), nn.Linear(512, 10), on)
    block: Callable[[int], nn.Module] = _encoder if kind == "encoder" else HandMade
    return Model(nn.Embedding(WORDS, 128), (block(128) for _ in range(6)), nn.Linear(128, WORDS), on)


def _batch(job: Job) -> tuple[Tensor, Tensor]:
    if job.model == "convolutions":
        return torch.randn(job.batch, 3, 32, 32), torch.randint(0, 10, (job.batch,))
    if job.model == "wide":
        return torch.randn(job.batch, 256), torch.randint(0, 10, (job.batch,))
    return torch.randint(0, WORDS, (job.batch, LENGTH)), torch.randint(0, WORDS, (job.batch * LENGTH,))


class Bytes(torch.optim.Optimizer):
    """AdamW whose two moments take a byte a number, and a float for each block of 256: as bitsandbytes keeps them. The
    rounding is plain, since only the memory is looked at."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self._update(each, group["lr"])

    def _update(self, weight: Tensor, lr: float) -> None:
        state = self.state[weight]
        if not state:
            blocks = -(-weight.numel() // 256)
            for name in ("first", "second"):
                state[name] = torch.zeros(blocks * 256, dtype=torch.uint8), torch.ones(blocks)
        moments = []
        for name, value, beta in (("first", weight.grad, 0.9), ("second", weight.grad.square(), 0.999)):  # type: ignore[union-attr]
            codes, scale = state[name]
            moment = (codes.view(-1, 256).float() - 128).mul_(scale[:, None]).view(-1)[: weight.numel()]
            moment = moment.mul_(beta).add_(value.reshape(-1), alpha=1 - beta)  # type: ignore[union-attr]
            padded = nn.functional.pad(moment, (0, codes.numel() - weight.numel())).view(-1, 256)
            scale.copy_(padded.abs().amax(1).clamp_(min=1e-12) / 127)
            codes.copy_((padded / scale[:, None]).round_().add_(128).view(-1))
            moments.append(moment)
        weight.view(-1).sub_(moments[0].div_(moments[1].abs_().sqrt_().add_(1e-8)), alpha=lr)


def _optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    if job.optimizer == "8-bit":
        return Bytes(model.parameters())
    if job.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.01)
    return torch.optim.AdamW(model.parameters(), fused=job.optimizer == "fused")


def train(job: Job) -> None:
    """The job as a user writes it."""
    torch.manual_seed(0)
    model = _model(job)
    optimizer = _optimizer(job, model)
    for _ in range(job.steps):
        x, wanted = _batch(job)
        if job.early:
            optimizer.zero_grad(set_to_none=not job.zeros)
        with torch.autocast("cpu", torch.bfloat16) if job.autocast else nullcontext():
            out = model(x)
            loss = nn.functional.cross_entropy(out.flatten(0, -2), wanted)
        if not job.early:
            optimizer.zero_grad(set_to_none=not job.zeros)
        loss.backward()
        optimizer.step()


def history_of(job: Job) -> AllocationHistory:
    """What `steptime memory` reads of a trace of it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, with_stack=True) as profiler:
        train(job)
    with tempfile.TemporaryDirectory(prefix="memory-predictions-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = read_remembered(path, max_size=DEFAULT_MAX_SIZE, cache=False)
        steps = find_steps(trace)
        found = histories_of_trace(trace, steps.boundaries, steps.how)
    return next(each for each in found if each.device == CPU_PLACE)

"""An allocator of our own that writes snapshots as torch does, for tests: it knows the truth that readers must find."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steptime.memory.lives import AllocationHistory, histories
from steptime.memory.snapshot import read_snapshot
from steptime.memory.triage import MemoryTriage, triage

PAGE = 512
SEGMENT = 20 << 20

Frames = list[dict[str, Any]]


def frame(file: str, line: int, function: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": function}


TRAIN = frame("/home/me/train.py", 10, "<module>")
MODULE = frame("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 1790, "_call_impl")
OPTIMIZER = frame("/venv/lib/python3.12/site-packages/torch/optim/optimizer.py", 533, "wrapper")
FORWARD = [frame("/home/me/model.py", 54, "forward"), MODULE, TRAIN]
BATCH = [frame("/home/me/train.py", 12, "<module>")]
STATE = [frame("/venv/lib/python3.12/site-packages/torch/optim/adam.py", 150, "_init_group"), OPTIMIZER, TRAIN]
BUILD = [frame("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 900, "_apply"), TRAIN]
ZERO_GRAD = [frame("/venv/lib/python3.12/site-packages/torch/optim/optimizer.py", 990, "zero_grad"), TRAIN]
ENGINE: Frames = []
"""Autograd's threads on a device have no Python frames."""


@dataclass
class Allocator:
    """Segments of one size, filled from the front; `live` and `peak` are kept beside, by hand."""

    device: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    blocks: dict[int, tuple[int, Frames]] = field(default_factory=dict)
    live: int = 0
    peak: int = 0
    clock: int = 1_700_000_000_000_000
    recording: bool = True
    segment: int = SEGMENT

    def malloc(self, size: int, frames: Frames) -> int:
        taken = -(-size // PAGE) * PAGE
        address = self._place(taken)
        self.blocks[address] = (size, frames)
        self.live += size
        self.peak = max(self.peak, self.live)
        self._event("alloc", address, size, frames)
        return address

    def free(self, address: int, frames: Frames | None = None) -> None:
        size, _ = self.blocks.pop(address)
        self.live -= size
        self._event("free_requested", address, size, frames or [])
        self._event("free_completed", address, size, frames or [])

    def fail(self, size: int, frames: Frames, free: int = 0) -> None:
        self._event("oom", free, size, frames)
        self.events[-1]["device_free"] = self.events[-1].pop("addr")

    def _event(self, action: str, address: int, size: int, frames: Frames) -> None:
        self.clock += 7
        if self.recording:
            entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.clock}
            self.events.append({**entry, "frames": frames})

    def _gaps(self) -> list[tuple[int, int]]:
        found = []
        for start in self.segments:
            at = start
            for address in sorted(each for each in self.blocks if start <= each < start + self.segment):
                found.append((at, address - at))
                at = address + -(-self.blocks[address][0] // PAGE) * PAGE
            found.append((at, start + self.segment - at))
        return [(at, size) for at, size in found if size]

    def _place(self, taken: int) -> int:
        for at, size in self._gaps():
            if size >= taken:
                return at
        self.segments.append(0x7F0000000000 + len(self.segments) * self.segment * 2)
        self._event("segment_alloc", self.segments[-1], self.segment, [])
        return self.segments[-1]

    @property
    def largest_gap(self) -> int:
        return max((size for _, size in self._gaps()), default=0)

    def snapshot(self) -> dict[str, Any]:
        return {
            "segments": [self._segment(start) for start in self.segments],
            "device_traces": [[] for _ in range(self.device)] + [self.events],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
            "external_annotations": [],
        }

    def _segment(self, start: int) -> dict[str, Any]:
        used = [
            {
                "address": address, "size": -(-size // PAGE) * PAGE, "requested_size": size,
                "state": "active_allocated", "frames": frames,
            }
            for address, (size, frames) in self.blocks.items() if start <= address < start + self.segment
        ]  # fmt: skip
        gaps = [
            {"address": at, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
            for at, size in self._gaps() if start <= at < start + self.segment
        ]  # fmt: skip
        blocks = sorted(used + gaps, key=lambda block: int(str(block["address"])))
        return {
            "device": self.device, "address": start, "total_size": self.segment, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
            "allocated_size": sum(block["size"] for block in used), "active_size": 0, "requested_size": 0,
        }  # fmt: skip


def train(allocator: Allocator, steps: int, weights: tuple[int, ...] = (400_000, 100_000), *, layers: int = 3) -> None:
    """Steps of Adam: a batch, activations of every layer, gradients, temporaries, the optimizer's state."""
    state: list[int] = []
    for _ in range(steps):
        batch = allocator.malloc(50_000, BATCH)
        kept = [allocator.malloc(300_000 + layer, FORWARD) for layer in range(layers)]
        allocator.free(allocator.malloc(70_000, FORWARD), FORWARD)
        gradients = [allocator.malloc(size, ENGINE) for size in reversed(weights)]
        for block in reversed(kept):
            allocator.free(allocator.malloc(90_000, ENGINE), ENGINE)
            allocator.free(block, ENGINE)
        if not state:
            state = [allocator.malloc(size, STATE) for size in weights for _ in range(2)]
        scratch = allocator.malloc(max(weights), [STATE[1], TRAIN])
        allocator.free(scratch, [STATE[1], TRAIN])
        for block in gradients:
            allocator.free(block, ZERO_GRAD)
        allocator.free(batch, BATCH)


def history_of(allocator: Allocator, folder: Path) -> AllocationHistory:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return histories(read_snapshot(path))[0]


def triage_of(allocator: Allocator, folder: Path, capacity: int | None = None) -> MemoryTriage:
    return triage(history_of(allocator, folder), capacity=capacity)

"""The hunt for leaks: three looks at what lives, a few steps apart, at boundaries of steps.

What was made between the first two looks and lives at the third has outlived several steps; who keeps it is asked of
the garbage collector. A running sum of losses keeps no tensors of Python alive, but a graph that grows.

What was made in a few steps is young to the garbage collector, so only its young generations are looked through; where
it promotes some of them meanwhile, the hunt begins again and looks at all.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

import torch

from steptime.probe.memory.holders import Holder, holder_of
from steptime.probe.memory.living import gradient_function, nodes_behind, promotions, size_of, storage_of, tensors

APART = 4
"""Steps between two looks: what a job keeps for a step or two (the last batch, the last loss) is gone by then."""
LOOKS = 3
MOST_SAMPLES = 24
"""Survivors whose holder is looked for."""
LEAST_NODES = 2
"""Nodes of the graph a step: a sum makes one, and its operand's own."""
PASSING = "Queue.queue"
"""What waits in a queue.Queue is taken out again, as the batches that a DataLoader pins ahead are."""
YOUNG_KEPT = sys.version_info < (3, 14)
"""From then on the collector is incremental, and objects grow old at the first collection."""


class LeakHunt:
    """Call `look` at boundaries until it is `done`; then `leaks` holds what was found."""

    def __init__(self) -> None:
        self._young, self._promotions = YOUNG_KEPT, promotions()
        self._known: dict[int, weakref.ref[Any]] = {}
        self._made: list[weakref.ref[Any]] = []
        self._graphs: list[int] = []
        self._steps: list[int] = []
        self.leaks: list[dict[str, Any]] = []

    @property
    def done(self) -> bool:
        return len(self._steps) == LOOKS

    def look(self, step: int, frame: FrameType | None) -> None:
        """One look; the third one finds. frame: where the user's loop is running."""
        if self._young and promotions() != self._promotions:
            self._young = False
            self._steps, self._graphs = [], []
        with torch._C.DisableTorchFunction():  # what tensors of the job's own classes would be asked by
            self._look(step, frame)

    def _look(self, step: int, frame: FrameType | None) -> None:
        living = list(tensors(young=self._young))
        self._steps.append(step)
        deepest = max(living, key=nodes_behind, default=None)
        self._graphs.append(nodes_behind(deepest) if deepest is not None else 0)
        if len(self._steps) == 1:
            self._known = {id(each): weakref.ref(each) for each in living}
        elif len(self._steps) == 2:
            # A number may be given to a new object when the old one is gone.
            old = self._known
            self._made = [weakref.ref(each) for each in living if id(each) not in old or old[id(each)]() is not each]
            self._known = {}
        else:
            living.clear()
            self._find(deepest, frame)

    def _find(self, deepest: Any, frame: FrameType | None) -> None:
        survivors = [each for each in (reference() for reference in self._made) if each is not None]
        self._made = []
        steps = self._steps[1] - self._steps[0]
        growth = [after - before for before, after in zip(self._graphs, self._graphs[1:], strict=False)]
        nodes = min(growth) / APART if growth and min(growth) >= LEAST_NODES * APART else 0.0
        if len(survivors) >= steps:
            self._tell(survivors, deepest, steps, nodes, frame)
        elif nodes and deepest is not None:
            self._tell([deepest], deepest, steps, nodes, frame)

    def _tell(self, kept: list[Any], deepest: Any, steps: int, nodes: float, frame: FrameType | None) -> None:
        with_graph = sum(gradient_function(each) is not None for each in kept)
        storages = {storage_of(each): size_of(each) for each in kept}
        sample = sorted(kept, key=size_of, reverse=True)[:MOST_SAMPLES]
        count = len(kept)
        kept.clear()
        holder = holder_of(sample, frame)
        if holder is None and nodes:  # the graph keeps them, and somebody keeps the graph
            holder = holder_of([deepest], frame)
        holder = holder or Holder("", "", None)
        if holder.name == PASSING:
            return
        self.leaks.append(
            {
                "kind": holder.kind,
                "name": holder.name,
                "site": holder.site,
                "tensors": count / steps,
                "bytes": sum(storages.values()) / steps if count > 1 else 0.0,
                "graphs": with_graph / steps,
                "nodes": nodes,
                "steps": steps,
            }
        )

"""Lines that start many backward passes in one step, and whether these go through one graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from steptime.probe import sites
from steptime.probe.objects import unasked
from steptime.probe.patches import Follower

MANY, LOOKED = 16, 4
"""Passes of a step from which on so many are looked at: micro-batches are rarely as many, samples and outputs mostly
more."""
DEEPEST = 256
"""Nodes of a graph that are followed."""
NODE, OUTPUT = torch._C.TensorBase.grad_fn, torch._C.TensorBase.output_nr
PROBING, NEAREST = ("Dot", "Mul", "Mv"), 3
"""Products with a vector, by the names of nodes, and nodes from the start of a pass in which one shows that the vector
may be what the pass before gave: conjugate gradients and power iterations have to take one after the other."""
SECOND = "BackwardBackward"
"""In the name of a node of a gradient's own graph."""


class PassSites(Follower):
    """Observer of the thread's backward passes, by the line that starts them; reports each once, as `PassSiteFacts`."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._passes, self._report = 0, report
        self._looks: list[tuple[tuple[str, int, str] | None, int, tuple[int, int]]] = []
        self._known: set[tuple[str, int, str]] = set()

    def starts(self, tensors: Iterable[Any], start: int, outermost: bool = True) -> None:
        """Called when a pass starts, at `start` ns. outermost: True if it is in no other pass."""
        self._passes += outermost
        if not outermost or not MANY <= self._passes < MANY + LOOKED:
            return
        with unasked():
            self._looks.append((sites.user_frame(sys._getframe(1)), bottom(tensors), top(tensors)))
        (site, below, _), *others = self._looks
        if len(others) < LOOKED - 1 or site is None or site in self._known or any(each[0] != site for each in others):
            return
        self._known.add(site)
        apart = len({each[2] for each in self._looks}) == LOOKED  # the same result again: with another vector
        shared = below >= 0 and apart and all(each[1] == below for each in others)
        self._report("passes", site=sites.line_at(site), start=start, shared=shared)

    def boundary(self, steps: int) -> None:
        self._passes = 0
        self._looks.clear()


def bottom(tensors: Iterable[Any]) -> int:
    """Sequence number of the node at one end of a graph, which identifies passes through the same nodes; -1 without
    such a node, and for a pass that may depend on the one before."""
    node = next((found for each in tensors if (found := NODE.__get__(each)) is not None), None)
    for number in range(DEEPEST):
        name = type(node).__name__
        if SECOND in name or (number < NEAREST and name.startswith(PROBING)):
            return -1
        children = node.next_functions if node is not None else ()
        below = (child for child, _ in children if child is not None)
        found = next((child for child in below if type(child).__name__ != "AccumulateGrad"), None)
        if found is None:
            break
        node = found
    return int(node._sequence_nr()) if node is not None else -1


def top(tensors: Iterable[Any]) -> tuple[int, int]:
    """(sequence number, index of the result) of the node that a pass starts at; (-1, -1) without a node."""
    found = ((node, OUTPUT.__get__(each)) for each in tensors if (node := NODE.__get__(each)) is not None)
    return next(((int(node._sequence_nr()), int(place)) for node, place in found), (-1, -1))


def leaves(tensors: Iterable[Any]) -> list[Any]:
    """Tensors whose gradients a pass computes, as far as the first nodes of its graph lead to them."""
    with unasked():
        nodes = [found for each in tensors if (found := NODE.__get__(each)) is not None]
    found, known, at = list[Any](), set(map(id, nodes)), 0
    while at < min(len(nodes), DEEPEST):  # all are held, so that their identities are their own
        for child, _ in nodes[at].next_functions:
            if child is not None and id(child) not in known:
                known.add(id(child))
                nodes.append(child)
                found += [child.variable] if type(child).__name__ == "AccumulateGrad" else []
        at += 1
    return found

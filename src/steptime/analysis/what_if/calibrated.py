"""Calibrated replay: whether the CPU or the device decides a step's duration, on the scale of an unprofiled step.

The profiler slows the CPU and leaves the device as it is. So the CPU's own work in the graph is scaled until the replay
takes as long as a steady step.

A step is as long as its longest chain of dependencies. The chains that become the longest when CPU or device work costs
nothing, or half, are kept with their contents, and savings by any other change are computed from them. Each chain is a
lower bound on the step after a change, so the savings are an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.what_if.critical_path import KIND_OF_NODE, PathKind, edge_kinds
from steptime.analysis.what_if.graph import NONE, EdgeKind, Graph, GraphRun, NodeKind, run
from steptime.arrays import Bool, Int64

Parts = tuple[tuple[str, float], ...]
"""(title of a `PathKind`, ns per step) pairs."""

DEVICE_WORK = frozenset(kind.title for kind in (PathKind.KERNEL, PathKind.COMMUNICATION, PathKind.COPY))
HOST_WORK = frozenset(
    kind.title for kind in (PathKind.INPUT, PathKind.SYNC, PathKind.DISPATCH, PathKind.ALLOCATION, PathKind.HOST)
)
LITTLE = 0.05
"""Fraction of the step: work that saves less when it costs nothing does not decide the step. Runs of one job differ by
as much."""
LARGEST_ERROR = 0.1
"""Largest error of a replay, as a fraction of the step, for any claim. Kernels of a profiled step last up to 6 % longer
than in a steady one (a job of 2.8 ms in DistributedDataParallel on an H100)."""
UNPROFILED = 0.3
"""Least fraction of the profiled CPU work that remains without the profiler: 0.29 to 0.66 in ten recordings of jobs on
an H100 and an H200 (torch 2.11), each calibrated to its steady or its shortest step."""
CLOSE = 1e-3
"""Accuracy of the scaling, as a fraction of the step."""
MOST_ROUNDS = 20
"""Most rounds of Newton's method, bounded by bisection, on a piecewise linear function: two to four in all recordings
so far."""
ALIKE = 0.1
"""Fraction of the median: steps that differ from it by more are ignored."""
HOST, DEVICE, BOTH = "host", "device", "both"


@dataclass(frozen=True, slots=True)
class Calibration:
    """A replay of steps, scaled so that it takes as long as a known step. step: time of the known step, ns. replayed:
    result of the replay, ns per step. scale: factor on the profiled CPU work. work: all device work by kind, ns per
    step. paths: candidates for the longest chain, each with its ns by kind; the first is the step's own. profiled: True
    if no unprofiled step is known; the CPU's work may then be anything down to `UNPROFILED` of its value."""

    step: float
    replayed: float
    scale: float
    work: Parts
    paths: tuple[Parts, ...]
    profiled: bool = False

    @property
    def error(self) -> float:
        """Relative error of the replay, |replayed / step - 1|."""
        return abs(self.replayed / self.step - 1) if self.step else 1.0

    @property
    def known(self) -> bool:
        """True if the error is small enough for a claim."""
        return bool(self.paths) and self.error <= LARGEST_ERROR

    def on(self, step: float) -> Calibration:
        """The calibration scaled to another time per step, ns: a trace's mean covers all steps, and only some of them
        are replayed."""
        ratio = step / self.step if self.step else 1.0
        work, *paths = (tuple((kind, ns * ratio) for kind, ns in parts) for parts in (self.work, *self.paths))
        return replace(self, step=step, replayed=self.replayed * ratio, work=work, paths=tuple(paths))

    def saved(self, factors: Mapping[str, float]) -> float:
        """Upper bound of the savings if work of some kinds takes `factors` times as long, ns per step; never
        negative."""
        return max(self._saved(factors, host) for host in self._hosts)

    @property
    def _hosts(self) -> tuple[float, ...]:
        return (1.0, UNPROFILED) if self.profiled else (1.0,)

    def _saved(self, factors: Mapping[str, float], host: float) -> float:
        """Savings with the CPU's work multiplied by `host` before and after the change."""

        def longest(changed: Mapping[str, float]) -> float:
            of_kind = {kind: host * changed.get(kind, 1.0) for kind in HOST_WORK} | {
                kind: factor for kind, factor in changed.items() if kind not in HOST_WORK
            }
            return max((sum(ns * of_kind.get(kind, 1.0) for kind, ns in path) for path in self.paths), default=0.0)

        return min(self.step, max(0.0, longest({}) - longest(factors)))

    def saved_by_kernels(self, less: float, factors: Mapping[str, float] | None = None) -> float:
        """Savings if kernels take `less` ns per step less, spread over all of them, ns per step. factors: changes of
        other work, as in `saved`."""
        whole = dict(self.work).get(PathKind.KERNEL.title, 0.0)
        kernels = max(0.0, 1 - less / whole) if whole > 0 else 1.0
        return self.saved({**(factors or {}), PathKind.KERNEL.title: kernels})

    @property
    def without_device(self) -> float:
        """Savings with an infinitely fast device, ns per step."""
        return self.saved(dict.fromkeys(DEVICE_WORK, 0.0))

    @property
    def without_host(self) -> float:
        """Savings with an infinitely fast CPU, ns per step."""
        return self.saved(dict.fromkeys(HOST_WORK, 0.0))

    @property
    def decides(self) -> str:
        """What decides the step's time: HOST if a faster device saves next to nothing, DEVICE if a faster CPU does,
        else BOTH; "" if unknown."""
        found = {self._decides(host) for host in self._hosts} if self.known else set()
        return found.pop() if len(found) == 1 else ""

    def _decides(self, host: float) -> str:
        little = LITTLE * self.step
        by_device = self._saved(dict.fromkeys(DEVICE_WORK, 0.0), host) < little
        by_host = self._saved(dict.fromkeys(HOST_WORK, 0.0), host) < little
        if by_device == by_host:
            return BOTH
        return HOST if by_device else DEVICE


def usual_of(found: GraphRun) -> Int64:
    """Indices of the usual steps in a run of the graph. The first of several steps fills the device's queue, and the
    profiler spoils one now and then."""
    later = np.arange(int(len(found.duration) > 2), len(found.duration))
    middle = np.median(found.duration[later])
    return later[np.abs(found.duration[later] - middle) <= ALIKE * middle]


def per_step(found: GraphRun) -> float:
    """Mean of a run's usual steps, ns."""
    usual = usual_of(found)
    return float(found.duration[usual].mean()) if len(usual) else float(np.median(found.duration))


def scaled_host(graph: Graph, factor: float) -> Graph:
    """The graph with the CPU's own work multiplied by a factor."""
    edges = graph.edges
    factors = np.where(_of_host(graph), factor, 1.0)
    columns = {name: np.floor(getattr(edges, name) * factors).astype(np.int64)
               for name in ("weight", "input", "dispatch", "allocation")}  # fmt: skip
    return replace(graph, edges=replace(edges, **columns), host=graph.host * factor)


def _of_host(graph: Graph) -> Bool:
    return np.isin(graph.edges.kind, (EdgeKind.PROGRAM, EdgeKind.HAND_OVER))


def calibrated(graph: Graph, step: float, shortest: float = 0.0) -> Graph:
    """The graph with the CPU's work scaled so that the replay takes `step` ns per step, as near as possible. shortest:
    shortest steady step on the CPU, ns, which a CPU that runs ahead of the device takes until the driver's queue is
    full. If the device alone takes the whole step, the CPU's work is scaled to this, since any smaller amount would
    give the same step. Profiled work is never made longer, since the trace lacks what a steady step would have in
    addition."""
    most = (1 - LITTLE) * step
    if 0 < shortest < most:
        free = np.where(graph.nodes.kind == NodeKind.HOST, graph.nodes.duration, 0)
        ahead = scaled_host(graph, _scale_to(graph, shortest, free))
        if per_step(run(ahead)) >= most:
            return ahead
    return scaled_host(graph, _scale_to(graph, step))


def _scale_to(graph: Graph, target: float, duration: Int64 | None = None) -> float:
    """Factor on the CPU's work, at most 1, with which a step takes `target` ns. Newton's method: the slope is the CPU's
    work on the longest path. duration: of the nodes, if not their own."""
    scale, low, high = 1.0, 0.0, 1.0
    for _ in range(MOST_ROUNDS):
        changed = scaled_host(graph, scale)
        found = run(changed, duration=duration)
        beyond = per_step(found) - target
        if abs(beyond) <= CLOSE * target or (beyond < 0 and scale == 1.0):
            break
        low, high = (low, scale) if beyond > 0 else (scale, high)
        slope = sum(ns for kind, ns in _parts(changed, found) if kind in HOST_WORK) / scale
        tangent = scale - beyond / slope if slope > 0 else 0.0
        scale = tangent if low < tangent < high else (low + high) / 2
    return scale


def calibration_of(
    graph: Graph, found: GraphRun, others: Iterable[GraphRun], step: float, *, profiled: bool
) -> Calibration:
    """Calibration of a graph to a step. found: its run; others: runs with cheaper work. profiled: as in
    `Calibration`."""
    nodes, replayed = graph.nodes, per_step(found)
    spent = [(kind.title, float(nodes.duration[(nodes.kind == node) & (nodes.step >= 0)].sum()) / len(graph.start))
             for node, kind in KIND_OF_NODE.items()]  # fmt: skip
    paths = dict.fromkeys(_at_most(_parts(graph, each), replayed) for each in (found, *others))
    work = tuple(each for each in spent if each[1])
    return Calibration(step, replayed, graph.host, work, tuple(paths), profiled)


CHEAPER = {
    "kernels": (NodeKind.KERNEL,),
    "communication": (NodeKind.COMMUNICATION,),
    "copies": (NodeKind.COPY,),
    "device": (NodeKind.KERNEL, NodeKind.COMMUNICATION, NodeKind.COPY),
    "host": (),
}
FACTORS = {"free": 0.0, "halved": 0.5}


def cheaper_runs(graph: Graph) -> dict[str, GraphRun]:
    """Runs of the graph in which work of one kind costs nothing or half, by name: "kernels free", "host halved", …."""
    runs = {}
    host = _of_host(graph)
    for what, kinds in CHEAPER.items():
        chosen = np.isin(graph.nodes.kind, kinds) & (graph.nodes.duration > 0)
        for how, factor in FACTORS.items():
            if what == "host":
                weight = np.where(host, np.rint(graph.edges.weight * factor), graph.edges.weight).astype(np.int64)
                runs[f"{what} {how}"] = run(graph, weight=weight)
            elif chosen.any():
                duration = np.where(chosen, np.rint(graph.nodes.duration * factor), graph.nodes.duration)
                runs[f"{what} {how}"] = run(graph, duration=duration.astype(np.int64))
    return runs


def _at_most(path: Parts, step: float) -> Parts:
    """The path, scaled down if it is longer than the step: it may be from other steps than the usual ones."""
    taken = sum(ns for _, ns in path)
    return tuple((kind, ns * step / taken) for kind, ns in path) if taken > step else path


def _parts(graph: Graph, found: GraphRun) -> Parts:
    """Contents of the longest paths of a run's usual steps, each from its end back to its start, by the graph's own
    weights, ns per step."""
    source, walked = graph.edges.source, list[int]()
    finish, through, steps = found.finish.tolist(), found.through.tolist(), usual_of(found).tolist()
    for step in steps or range(len(found.end)):
        node, since = int(found.last[step]), int(found.start[step])
        while node != NONE and finish[node] > since:
            walked.append(node)
            node = int(source[through[node]]) if through[node] != NONE else NONE
    nodes = np.array(walked, np.int64)
    edges = found.through[nodes]
    edges = edges[edges != NONE]
    spent = np.zeros(len(PathKind), np.int64)
    for node_kind, kind in KIND_OF_NODE.items():
        spent[kind] += graph.nodes.duration[nodes[graph.nodes.kind[nodes] == node_kind]].sum()
    columns = graph.edges
    for name, kind in (("input", PathKind.INPUT), ("dispatch", PathKind.DISPATCH), ("allocation", PathKind.ALLOCATION),
                       ("unexplained", PathKind.UNEXPLAINED)):  # fmt: skip
        spent[kind] += getattr(columns, name)[edges].sum()
    named = columns.input + columns.dispatch + columns.allocation + columns.unexplained
    np.add.at(spent, edge_kinds(graph)[edges], (columns.weight - named)[edges])
    count = len(steps) or len(found.end)
    return tuple((kind.title, float(spent[kind]) / count) for kind in PathKind if spent[kind])

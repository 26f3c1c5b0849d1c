"""Who decides how long a step is, the host or the device: the replay on the scale of a step that nobody profiled.

The profiler slows the host and leaves the device as it is. So the host's own work in the graph is scaled until the
replay takes as long as a steady step does. A step is as long as the longest chain of things that wait for each other.
The chains that become the longest when host or device costs nothing, or half, are kept with what they are made of: what
any other change saves is read off them. Each of them is a lower bound on the step after a change, so what is read off
is an upper bound on the savings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis.what_if.critical_path import PathKind, edge_kinds
from steptime.analysis.what_if.graph import NONE, EdgeKind, Graph, GraphRun, NodeKind, run
from steptime.arrays import Bool, Int64

Parts = tuple[tuple[str, float], ...]
"""(kind of `PathKind` by its title, ns per step)."""

DEVICE_WORK = frozenset(kind.title for kind in (PathKind.KERNEL, PathKind.COMMUNICATION, PathKind.COPY))
HOST_WORK = frozenset(
    kind.title for kind in (PathKind.INPUT, PathKind.SYNC, PathKind.DISPATCH, PathKind.ALLOCATION, PathKind.HOST)
)
LITTLE = 0.05
"""Fraction of the step: what saves less when it costs nothing does not decide the step. Runs of one job differ by as
much."""
LARGEST_ERROR = 0.1
"""Fraction of the step: a replay that misses it by more says nothing about it. Kernels of a profiled step last up to 6
% longer than in a steady one (a job of 2.8 ms in DistributedDataParallel on an H100)."""
UNPROFILED = 0.3
"""Fraction of the host's work as torch's profiler sees it: what it takes without, 0.29 to 0.66 in ten recordings of
jobs on an H100 and an H200 (torch 2.11), each calibrated to its steady or its shortest step."""
CLOSE = 1e-3
"""Fraction of the step: as near as the host is scaled to it."""
MOST_ROUNDS = 20
"""Rounds of Newton's method, kept between bounds, on a function of straight pieces: two to four in all recordings at
hand."""
ALIKE = 0.1
"""Fraction of the median: steps that differ by no more count."""
HOST, DEVICE, BOTH = "host", "device", "both"


@dataclass(frozen=True, slots=True)
class Calibration:
    """step: ns that it is calibrated to. replayed: ns per step as it comes out. scale: what the profiled host's work
    was multiplied by. work: ns per step of all that the device did, by kind. paths: chains that may be the longest,
    each by kind; the first is the step's own. profiled: no step without the profiler was seen, so that the host's work
    may be anything down to `UNPROFILED` of what it is."""

    step: float
    replayed: float
    scale: float
    work: Parts
    paths: tuple[Parts, ...]
    profiled: bool = False

    @property
    def error(self) -> float:
        """|replayed / step - 1|."""
        return abs(self.replayed / self.step - 1) if self.step else 1.0

    @property
    def known(self) -> bool:
        """True if it comes near enough for a claim."""
        return bool(self.paths) and self.error <= LARGEST_ERROR

    def on(self, step: float) -> Calibration:
        """The same on the scale of another step (ns): of a trace all steps count, and some of them are replayed."""
        ratio = step / self.step if self.step else 1.0
        work, *paths = (tuple((kind, ns * ratio) for kind, ns in parts) for parts in (self.work, *self.paths))
        return replace(self, step=step, replayed=self.replayed * ratio, work=work, paths=tuple(paths))

    def saved(self, factors: Mapping[str, float]) -> float:
        """ns per step, at most, where work of some kinds takes so many times as long; never negative."""
        return max(self._saved(factors, host) for host in self._hosts)

    @property
    def _hosts(self) -> tuple[float, ...]:
        return (1.0, UNPROFILED) if self.profiled else (1.0,)

    def _saved(self, factors: Mapping[str, float], host: float) -> float:
        """host: by what the host's work is multiplied, before and after."""

        def longest(changed: Mapping[str, float]) -> float:
            of_kind = {kind: host * changed.get(kind, 1.0) for kind in HOST_WORK} | {
                kind: factor for kind, factor in changed.items() if kind not in HOST_WORK
            }
            return max(sum(ns * of_kind.get(kind, 1.0) for kind, ns in path) for path in self.paths)

        return min(self.step, max(0.0, longest({}) - longest(factors)))

    def saved_by_kernels(self, less: float, factors: Mapping[str, float] | None = None) -> float:
        """ns per step that kernels save which take so many ns less, spread over all of them. factors: of other work
        that changes besides."""
        whole = dict(self.work).get(PathKind.KERNEL.title, 0.0)
        kernels = max(0.0, 1 - less / whole) if whole > 0 else 1.0
        return self.saved({**(factors or {}), PathKind.KERNEL.title: kernels})

    @property
    def without_device(self) -> float:
        """ns per step that a device saves which does everything at once."""
        return self.saved(dict.fromkeys(DEVICE_WORK, 0.0))

    @property
    def without_host(self) -> float:
        """ns per step that a host saves which does everything at once."""
        return self.saved(dict.fromkeys(HOST_WORK, 0.0))

    @property
    def decides(self) -> str:
        """HOST where a faster device saves next to nothing, DEVICE where a faster host does, else BOTH; "" where that
        is not known."""
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
    """Steps of a run that are like most of them. The first of several fills the device's queue, and now and then the
    profiler spoils one."""
    later = np.arange(int(len(found.duration) > 2), len(found.duration))
    middle = np.median(found.duration[later])
    return later[np.abs(found.duration[later] - middle) <= ALIKE * middle]


def per_step(found: GraphRun) -> float:
    """Mean ns of the usual ones of its steps."""
    usual = usual_of(found)
    return float(found.duration[usual].mean()) if len(usual) else float(np.median(found.duration))


def scaled_host(graph: Graph, factor: float) -> Graph:
    """The graph with the host's own work so many times as long."""
    edges = graph.edges
    factors = np.where(_of_host(graph), factor, 1.0)
    columns = {name: np.floor(getattr(edges, name) * factors).astype(np.int64)
               for name in ("weight", "input", "dispatch", "allocation")}  # fmt: skip
    return replace(graph, edges=replace(edges, **columns), host=graph.host * factor)


def _of_host(graph: Graph) -> Bool:
    return np.isin(graph.edges.kind, (EdgeKind.PROGRAM, EdgeKind.HAND_OVER))


def calibrated(graph: Graph, step: float, shortest: float = 0.0) -> Graph:
    """The graph whose replay takes `step` ns per step, as near as the host's work can bring it there.

    shortest: ns of the shortest steady step on the host. A host that runs ahead of the device takes that long for a
    step until the driver's queue is full. Where the device alone takes the whole step, the host's work is as long as
    that: any that is no longer would give the same step. Profiled work is never made longer: what a steady step has
    beyond it, the trace does not hold.
    """
    most = (1 - LITTLE) * step
    if 0 < shortest < most:
        free = np.where(graph.nodes.kind == NodeKind.HOST, graph.nodes.duration, 0)
        ahead = scaled_host(graph, _scale_to(graph, shortest, free))
        if per_step(run(ahead)) >= most:
            return ahead
    return scaled_host(graph, _scale_to(graph, step))


def _scale_to(graph: Graph, target: float, duration: Int64 | None = None) -> float:
    """By what the host's work is multiplied so that a step takes the target (ns): 1 at most. Newton's method: the
    host's work on the longest path is the slope. duration: of the nodes, where it is not their own."""
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
    """Calibration of a graph. found: its run; others: its runs with cheaper work. profiled: as of
    `Calibration`."""
    nodes, replayed = graph.nodes, per_step(found)
    spent = [(kind.title, float(nodes.duration[(nodes.kind == node) & (nodes.step >= 0)].sum()) / len(graph.start))
             for node, kind in _WORK.items()]  # fmt: skip
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
    """The steps with work of one kind that takes nothing, or half: by "kernels free", "host halved" and so on."""
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
    """A path of other steps than the usual ones, or cut elsewhere: no chain takes longer than the step."""
    taken = sum(ns for _, ns in path)
    return tuple((kind, ns * step / taken) for kind, ns in path) if taken > step else path


_WORK = {
    NodeKind.KERNEL: PathKind.KERNEL,
    NodeKind.COMMUNICATION: PathKind.COMMUNICATION,
    NodeKind.COPY: PathKind.COPY,
}


def _parts(graph: Graph, found: GraphRun) -> Parts:
    """ns per step of the longest paths of a run's usual steps, each from its end back to its start, by the graph's own
    weights."""
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
    for node_kind, kind in _WORK.items():
        spent[kind] += graph.nodes.duration[nodes[graph.nodes.kind[nodes] == node_kind]].sum()
    columns = graph.edges
    for name, kind in (("input", PathKind.INPUT), ("dispatch", PathKind.DISPATCH), ("allocation", PathKind.ALLOCATION),
                       ("unexplained", PathKind.UNEXPLAINED)):  # fmt: skip
        spent[kind] += getattr(columns, name)[edges].sum()
    named = columns.input + columns.dispatch + columns.allocation + columns.unexplained
    np.add.at(spent, edge_kinds(graph)[edges], (columns.weight - named)[edges])
    count = len(steps) or len(found.end)
    return tuple((kind.title, float(spent[kind]) / count) for kind in PathKind if spent[kind])

"""Use of computed values, in a few steps: gradients that no optimizer takes or nobody reads, and results of modules
that nobody reads.

Before each backward pass its graph is walked, down to the parameters. A parameter's gradient is used once an optimizer
steps with it; it is dropped if it is set to None, or to zeros, before that. A node of the graph is for nothing if all
gradients that it leads to are dropped. Of torch.autograd.grad, the code of its caller shows which it reads. Nodes are
recorded by their sequence numbers, counted back from the newest of the pass. A profile of other steps, which make the
same graph, finds their time by these numbers.

No node is held while the pass runs, and no gradient: they are known by identity and version, and with weak references.
"""

from __future__ import annotations

import sys
import time
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import get_ident
from types import MappingProxyType
from typing import Any

import torch

from steptime.probe import backwards, calls, rows, sites, unread
from steptime.probe.allowance import graph_nodes
from steptime.probe.backwards import BackwardObserver
from steptime.probe.calls import CallObserver
from steptime.probe.main_memory import NATIVE, bytes_at, readable
from steptime.probe.objects import being_traced, unasked, updated_by
from steptime.probe.ours import pass_on, suppressed

MOST_NODES, MOST_CALLS = 60_000, 20_000
"""Of all graphs, and of modules, in the steps that are looked at: a walk takes ten microseconds for each node."""
MOST_ZEROED = 1 << 24
"""Bytes of a gradient that was changed in place and is looked at, whether it is all zeros."""
MOST_SHAPES = 8
"""Of dropped gradients, the largest."""
FIRST_BYTES, TWICE = 4096, 2
STEPS, MOST_STEPS = 3, 12
"""Steps that are looked at: what became of the last one's gradients shows in none of them; and most of them, where an
optimizer steps in a few only."""
LEAST_PICKED = 0.5
"""Of the rows of a result, those at most that go on where the others are reported."""
MOSTLY = 0.9
"""Of a call's nodes in a graph, those that are for nothing where the call is named."""
TENSOR = torch._C.TensorBase
GRADIENT, VERSION, NODE, HOOKS = TENSOR.grad, TENSOR._version, TENSOR.grad_fn, TENSOR._backward_hooks
GOES_ON, IS_DROPPED = 1, 2
"""Gradients that a node leads to: some that are used, some that are not."""
NONE: Mapping[int, int] = MappingProxyType({})
USED, ZEROED, UNOWNED = "", "zeroed", "unowned"
"""What became of a gradient: used, or not known; set to nothing before any optimizer took it; of a parameter that no
optimizer has."""

now = time.perf_counter_ns
Runs = list[list[int]]


def runs(numbers: Iterable[int]) -> Runs:
    """Returns ascending numbers as [first, last] of each run without a gap."""
    found: Runs = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def is_zero(gradient: Any) -> bool:
    """True if all elements of a tensor in main memory are zero; False if that cannot be seen."""
    if not readable(gradient):
        return False
    size = int(gradient.numel() * gradient.element_size())
    if not gradient.is_contiguous() or not 0 < size <= MOST_ZEROED:
        return False
    parts = min(size, FIRST_BYTES), size  # most others show at their start
    return all(bytes_at(gradient.data_ptr(), part).count(0) == part for part in parts)


def seen(leaf: Any) -> tuple[int, int]:
    """(identity, version) of a leaf's gradient; (0, 0) if it has none."""
    gradient = GRADIENT.__get__(leaf)
    return (0, 0) if gradient is None else (id(gradient), VERSION.__get__(gradient))


class WalkedPass:
    """Autograd graph of one backward pass. numbers: sequence number of each node, -1 for nodes without one. children:
    indices of each node's children, in the same order. leaves: key of the parameter, by the node that accumulates its
    gradient. site: line that calls backward. dropped: fate of gradients that nobody used. kept: fraction of its rows
    that a node picks; row_wise: nodes that compute each row by itself. For torch.autograd.grad, asked: numbers of
    elements of the gradients that it returns; read: positions of those that are read; taken: GOES_ON or IS_DROPPED, or
    both, by the node before which gradients are taken."""

    __slots__ = (
        "_before", "asked", "children", "dropped", "kept", "leaves", "numbers", "read", "row_wise", "site", "taken",
    )  # fmt: skip

    def __init__(self, site: Any) -> None:
        self.site = site
        self.numbers: list[int] = []
        self.children: list[list[int]] = []
        self.leaves: dict[int, int] = {}
        self._before: dict[int, tuple[weakref.ref[Any], tuple[int, int]]] = {}
        self.dropped: dict[int, str] = {}
        self.kept: dict[int, float] = {}
        self.row_wise: set[int] = set()
        self.asked: list[int] = []
        self.read: frozenset[int] = frozenset()
        self.taken: dict[int, int] = {}

    def walk_to(self, inputs: list[Any], read: frozenset[int], tensors: Iterable[Any], most: int) -> None:
        """Fills in the graph of a pass that returns gradients of the tensors `inputs`. read: positions of the gradients
        that are read. Raises OverflowError as `walk` does."""
        self.asked, self.read = [TENSOR.numel(each) for each in inputs], read
        ends = [NODE.__get__(each) for each in inputs]  # held, so that their identities are their own
        fates = Counter[int]()
        for place, (tensor, node) in enumerate(zip(inputs, ends, strict=True)):
            fates[id(tensor if node is None else node)] |= GOES_ON if place in read else IS_DROPPED
        for _ in self.walk(tensors, most, fates):
            pass
        self.taken |= {at: fates[key] for at, key in self.leaves.items() if key in fates}

    def walk(self, tensors: Iterable[Any], most: int, fates: Mapping[int, int] = NONE) -> Iterator[tuple[int, Any]]:
        """Fills in the graph; yields (key, parameter) of its leaves. fates: as `taken`, by a node's identity. Raises
        OverflowError for more than `most` nodes."""
        nodes: list[Any] = []
        known: dict[int, int] = {}

        def number_of(node: Any) -> int:
            if id(node) not in known:
                known[id(node)] = len(nodes)
                nodes.append(node)  # held until the walk ends, so that its identity is its own
            return known[id(node)]

        for tensor in tensors:
            node = NODE.__get__(tensor)
            if node is not None:
                number_of(node)
        at = 0
        while at < len(nodes):
            node = nodes[at]
            self.children.append([number_of(child) for child, _ in node.next_functions if child is not None])
            if id(node) in fates:
                self.taken[at] = fates[id(node)]
            if type(node).__name__ == "AccumulateGrad":
                self.leaves[at] = id(leaf := node.variable)
                self.numbers.append(-1)
                yield id(leaf), leaf
            else:
                self.numbers.append(int(node._sequence_nr()))
                self._look_at_rows(at, node)
            at += 1
            if at > most:
                raise OverflowError("the graph has too many nodes to be walked")

    def _look_at_rows(self, at: int, node: Any) -> None:
        with suppressed(AttributeError, IndexError):  # older than torch 2.13, or a node of the job's own
            if (fraction := rows.kept(node)) < 1:
                self.kept[at] = fraction
            if rows.is_row_wise(node):
                self.row_wise.add(at)

    def picked(self) -> Iterator[tuple[list[int], float]]:
        """Yields (nodes, fraction of their rows that the loss uses) for nodes whose results have no other use."""
        parents = Counter(child for children in self.children for child in children)
        behind = {self._below(node) for node in self.kept if node in self.row_wise}  # others pick rows of theirs
        for node in (node for node in self.kept if parents[node] != 1 or node not in behind):
            chain, fraction = [], self.kept[node]
            below = self._below(node)
            while below is not None and below in self.row_wise and parents[below] == 1:
                fraction *= self.kept.get(below, 1.0)
                chain.append(below)
                below = self._below(below)
            if chain and fraction <= LEAST_PICKED:
                yield chain, fraction

    def _below(self, node: int) -> int | None:
        """The node that computes what this one takes, besides parameters; None where there are several, or none."""
        found = [
            child for child in self.children[node]
            if child not in self.leaves and not self.is_parameter(child)
        ]  # fmt: skip
        return found[0] if len(found) == 1 else None

    def is_parameter(self, node: int) -> bool:
        """True if a node is only a view of a parameter, such as a transposed weight."""
        return len(self.children[node]) == 1 and self.children[node][0] in self.leaves and node not in self.row_wise

    def note(self, key: int, leaf: Any) -> None:
        """Records the gradient that a leaf has before the pass."""
        self._before[key] = weakref.ref(leaf), seen(leaf)

    def changed(self) -> Iterator[tuple[int, Any, Any]]:
        """Yields (key, leaf, gradient) of each gradient that the pass has changed, once."""
        before, self._before = self._before, {}
        for key, (reference, earlier) in before.items():
            leaf = reference()
            gradient = None if leaf is None else GRADIENT.__get__(leaf)
            if gradient is not None and type(gradient) in NATIVE and seen(leaf) != earlier:
                yield key, leaf, gradient

    def drop(self, key: int, fate: str) -> None:
        """Records that nobody has used a gradient."""
        if fate:
            self.dropped[key] = fate

    def for_nothing(self) -> tuple[list[int], list[int], list[int]]:
        """Returns (nodes that lead to dropped gradients only, nodes that lead to others, too, by another child, all
        nodes that the pass runs)."""
        below, state = [0] * len(self.children), [0] * len(self.children)
        for node in _children_first(self.children):
            for child in self.children[node]:
                below[node] |= state[child]
            state[node] = below[node] | self._fate(node)
        partly = [
            node for node, found in enumerate(below)
            if found == GOES_ON | IS_DROPPED and any(state[child] == IS_DROPPED for child in self.children[node])
        ]  # fmt: skip
        nothing = [node for node, found in enumerate(below) if found == IS_DROPPED]
        return nothing, partly, [node for node, found in enumerate(below) if found or not self.asked]

    def _fate(self, node: int) -> int:
        """Fate of the gradient that is taken before a node; 0 without one."""
        if self.asked:
            return self.taken.get(node, 0)
        key = self.leaves.get(node)
        return 0 if key is None else IS_DROPPED if key in self.dropped else GOES_ON


def _children_first(children: list[list[int]]) -> Iterator[int]:
    """Yields all nodes, each after its children."""
    seen = [False] * len(children)
    for root in range(len(children)):
        waiting = [(root, iter(children[root]))] if not seen[root] else []
        seen[root] = True
        while waiting:
            node, left = waiting[-1]
            child = next((each for each in left if not seen[each]), None)
            if child is None:
                yield node
                waiting.pop()
            else:
                seen[child] = True
                waiting.append((child, iter(children[child])))


class _Filled:
    """A gradient that nobody has used yet: its parameter and itself, weakly, its version, and the passes in it."""

    __slots__ = ("gradient", "identity", "parameter", "passes", "version")

    def __init__(self, parameter: Any) -> None:
        self.parameter: weakref.ref[Any] = weakref.ref(parameter)
        self.passes: list[WalkedPass] = []
        self.identity = self.version = 0
        self.gradient: Callable[[], Any] = lambda: None

    def see(self, gradient: Any) -> None:
        self.identity, self.version = id(gradient), VERSION.__get__(gradient)
        self.gradient = weakref.ref(gradient)


class GradientObserver(BackwardObserver):
    """Observer of passes and updates. stop: function called when it has to end, anywhere in the user's program."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.graphs: list[WalkedPass] = []
        self.on, self.ours, self._left, self._left_asked = False, 0, MOST_NODES, MOST_NODES
        self._thread, self._stop = get_ident(), stop
        self._waiting: dict[int, _Filled] = {}
        self.updates = Counter[int]()
        self._taken: set[int] = set()

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, WalkedPass | None]:
        graph = None
        if self.on and get_ident() == self._thread and not being_traced():
            graph = self._guarded(self._asked if partial else self._walked, tensors)
        return tensors, graph

    def ends(self, graph: WalkedPass) -> None:
        if self.on:
            self._guarded(self._filled, graph)

    def update(self, optimizer: Any) -> None:
        """Called before an optimizer's step, which takes the gradients of its parameters."""
        if self.on and get_ident() == self._thread:
            self._guarded(self._updated, optimizer)

    def look(self) -> None:
        """Determines the fate of gradients that were not used yet."""
        self._guarded(self._look)

    def end(self, optimizers: Iterable[Any], owned: dict[int, Any]) -> None:
        """Judges the gradients of parameters that no optimizer has. owned: the modules' parameters, by identity. It
        proves nothing if mostly other parameters are updated (flat ones, copies), or if a parameter's optimizer was
        never seen to step, as compiled ones are."""
        updated = {id(each): each for optimizer in optimizers for each in updated_by(optimizer)}
        trained = sum(TENSOR.numel(each) for key, each in updated.items() if key in owned)
        others = sum(TENSOR.numel(each) for key, each in updated.items() if key not in owned)
        unowned = {key for key in owned if key not in updated} if trained > others else set()
        for graph in self.graphs:
            for key in [key for key in graph.dropped if key not in self._taken]:
                graph.dropped.pop(key)
                graph.drop(key, UNOWNED if key in unowned else USED)
        for key, filled in self._waiting.items():
            for graph in filled.passes:
                graph.drop(key, UNOWNED if key in unowned else USED)

    def waits_for(self, graph: WalkedPass) -> bool:
        """True if the fate of a gradient of the pass is not known yet."""
        return any(graph in filled.passes for filled in self._waiting.values())

    def _guarded(self, method: Callable[..., Any], *arguments: Any) -> Any:
        start = now()
        try:
            with unasked():
                return method(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: what was seen so far is kept, the job goes on
            self._stop()
            pass_on(error)
            return None
        finally:
            self.ours += now() - start

    def _walked(self, tensors: Any) -> WalkedPass | None:
        self._look()
        graph = WalkedPass(sites.user_frame(sys._getframe(3)) or sites.user_frame(sys._getframe(3), sites.LIBRARY))
        for key, leaf in graph.walk(tensors, self._left):
            if type(leaf) in NATIVE:
                graph.note(key, leaf)
        self._left -= len(graph.numbers)
        self.graphs.append(graph)
        return graph

    def _asked(self, tensors: Any) -> None:
        """Looks at a pass of torch.autograd.grad, if its caller is known to read some gradients only. That many of them
        have large graphs ends these looks alone."""
        found = unread.asked_by(sys._getframe(1)) if self._left_asked else None
        if found is None or any(HOOKS.__get__(each) for each in found[0]):
            return
        graph = WalkedPass(sites.user_frame(sys._getframe(3)) or sites.user_frame(sys._getframe(3), sites.LIBRARY))
        try:
            graph.walk_to(*found, tensors, self._left_asked)
        except OverflowError:
            self._left_asked = 0
            return
        self._left_asked -= len(graph.numbers)
        self.graphs.append(graph)

    def _filled(self, graph: WalkedPass) -> None:
        for key, leaf, gradient in graph.changed():
            waiting = self._waiting.get(key)
            if waiting is None or waiting.parameter() is not leaf:
                waiting = self._waiting[key] = _Filled(leaf)
            waiting.passes.append(graph)
            waiting.see(gradient)

    def _updated(self, optimizer: Any) -> None:
        self._look()
        self.updates[id(optimizer)] += 1
        for each in updated_by(optimizer):
            self._taken.add(id(each))
            self._waiting.pop(id(each), None)

    def _look(self) -> None:
        for key, filled in list(self._waiting.items()):
            leaf = filled.parameter()
            gradient = None if leaf is None else GRADIENT.__get__(leaf)
            if gradient is not None and id(gradient) == filled.identity:
                if VERSION.__get__(gradient) == filled.version:
                    continue
                if not is_zero(gradient):  # clipped or scaled
                    filled.see(gradient)
                    continue
                fate = ZEROED
            else:  # one that somebody holds, or has put another in place of, is used
                fate = ZEROED if leaf is not None and gradient is None and filled.gradient() is None else USED
            del self._waiting[key]
            for graph in filled.passes:
                graph.drop(key, fate)


class ResultObserver(CallObserver):
    """Observer of module calls: which graph nodes each module has made, and which of its results the caller drops.
    paths: path of each module, by its identity."""

    def __init__(self, paths: dict[int, str], stop: Callable[[], None]) -> None:
        self.calls: list[list[Any]] = []
        self.on, self.ours = False, 0
        self.unread: Counter[tuple[str, str, Any, tuple[int, ...]]] = Counter()
        self._paths, self._stop, self._depth, self._thread = paths, stop, 0, get_ident()

    def starts(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        if not self.on or get_ident() != self._thread or being_traced():
            return None
        start = now()
        try:
            return self._started(module, args, kwargs)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: what was seen so far is kept, the job goes on
            self._stop()
            pass_on(error)
            return None
        finally:
            self.ours += now() - start

    def ends(self, call: list[Any]) -> None:
        self._depth = call[2]
        call[1] = graph_nodes()

    def _started(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        path = self._paths.get(id(module))
        if path is None:
            return None
        if len(self.calls) >= MOST_CALLS:
            self._stop()
            return None
        caller = unread.caller_of(sys._getframe(2))
        site = sites.user_frame(caller)
        left = unread.dropped_by(caller, module, args, kwargs) if caller is not None else []
        if left and caller is not None:
            at = sites.user_frame(caller, sites.LIBRARY)
            self.unread[path, _kind(module), at, tuple(left)] += 1
        call = [graph_nodes(), 0, self._depth, path, site]
        self._depth += 1
        self.calls.append(call)
        return call


class UseObserver:
    """Pair of a GradientObserver and a ResultObserver, from `start` to `stop`, for at most `budget` ns of our time."""

    def __init__(self, named: Iterable[tuple[str, torch.nn.Module]], budget: int) -> None:
        named = list(named)
        self._owned = {
            id(each): weakref.ref(each)
            for _, module in named
            if not isinstance(module, torch.jit.ScriptModule)
            for each in module.__dict__.get("_parameters", {}).values()
            if each is not None
        }
        self.gradients = GradientObserver(self.give_up)
        self.modules = ResultObserver({id(module): path for path, module in named}, self.give_up)
        self._outer: list[int] = []
        self._budget, self.steps = budget, 0

    @property
    def ours(self) -> int:
        """Time within steps that the observation has taken, ns."""
        return self.gradients.ours + self.modules.ours

    def start(self) -> None:
        """Starts the observation at a boundary. The caller must call `gradients.update` before each update."""
        calls.observe_all(self.modules)
        backwards.observe(self.gradients)
        self.gradients.on = self.modules.on = True

    def steps_of(self, optimizers: int) -> Iterator[None]:
        """Yields in each of STEPS steps: in more steps if not all of the `optimizers` optimizers have stepped twice, in
        fewer if the budget is used up or something has failed."""
        while self.steps < MOST_STEPS:
            yield
            self.gradients.look()
            self.steps += 1
            often = sum(count >= TWICE for count in self.gradients.updates.values())
            if not self.gradients.on or self.ours >= self._budget:
                return
            if self.steps >= STEPS and often >= optimizers:
                return

    def give_up(self) -> None:
        """Ends the observation anywhere in the user's program."""
        self.gradients.on = self.modules.on = False

    def stop(self, optimizers: Iterable[Any]) -> dict[str, Any]:
        """Ends the observation at a boundary; returns the passes and the results that nobody reads, for `UseFacts`."""
        self.give_up()
        backwards.unobserve(self.gradients)
        calls.unobserve_all(self.modules)
        self._outer = _outer(self.modules.calls)
        owned = {key: found for key, reference in self._owned.items() if (found := reference()) is not None}
        left = [graph for graph in self.gradients.graphs if not self.gradients.waits_for(graph)]
        self.gradients.end(optimizers, owned)
        whole = [graph for graph in self.gradients.graphs if graph in left or self._is_judged(graph)]
        passes = self._passes(whole, owned)
        often = {key: count / max(1, self.steps) for key, count in self.modules.unread.items() if key[2] is not None}
        unread_results = [
            {"path": path, "type": kind, "site": sites.line_of(site), "results": list(results), "calls": calls}
            for (path, kind, site, results), calls in often.items()
        ]
        return {"steps": self.steps, "passes": passes, "unread": unread_results}

    def _is_judged(self, graph: WalkedPass) -> bool:
        return all(
            graph not in filled.passes or key in graph.dropped for key, filled in self.gradients._waiting.items()
        )

    def _passes(self, graphs: list[WalkedPass], owned: dict[int, Any]) -> list[dict[str, Any]]:
        """Passes that are alike, together; those without a dropped gradient, too, as they may look the same."""
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for graph in graphs:
            fact = self._fact(graph, owned)
            if fact is not None:
                alike = (str(fact[each]) for each in ("visited", "nothing", "partly"))
                key = (graph.site, *alike, len(fact.get("picked", ())))
                found.setdefault(key, fact)["count"] += 1
        return list(found.values())

    def _fact(self, graph: WalkedPass, owned: dict[int, Any]) -> dict[str, Any] | None:
        numbers = graph.numbers
        nothing, partly, ran = graph.for_nothing()
        newest = max((numbers[node] for node in ran), default=-1)
        if newest < 0:
            return None
        fact: dict[str, Any] = {
            "count": 0,
            "site": sites.line_of(graph.site),
            "visited": runs(newest - numbers[node] for node in ran if numbers[node] >= 0),
            "nothing": runs(newest - numbers[node] for node in nothing),
            "partly": runs(newest - numbers[node] for node in partly),
        }
        dropped = [owned[key] for key in graph.dropped if key in owned]
        if dropped:
            sizes = {tuple(each.shape): each.numel() for each in dropped}
            fact["elements"] = sum(each.numel() for each in dropped)
            fact["shapes"] = [list(each) for each in sorted(sizes, key=lambda each: -sizes[each])[:MOST_SHAPES]]
            fact["unowned"] = UNOWNED in graph.dropped.values()
            fact |= self._places(graph, nothing, partly)
        if graph.asked:
            fact["elements"] = sum(size for at, size in enumerate(graph.asked) if at not in graph.read)
            fact |= {"asked": len(graph.asked), "read": sorted(graph.read)}
            return fact
        fact["picked"] = [self._picked(graph, newest, *each) for each in graph.picked()]
        return fact

    def _picked(self, graph: WalkedPass, newest: int, nodes: list[int], kept: float) -> dict[str, Any]:
        found: dict[str, Any] = {"nodes": runs(newest - graph.numbers[node] for node in nodes), "kept": kept}
        looked_at = {child for node in nodes for child in graph.children[node] if graph.is_parameter(child)}
        if (best := self._main_call(graph, [*nodes, *looked_at])) is not None:
            found |= self._made(best)
        return found

    def _made(self, at: int) -> dict[str, Any]:
        return {"path": self.modules.calls[at][3], "made": sites.line_of(self.modules.calls[at][4])}

    def _places(self, graph: WalkedPass, nothing: list[int], partly: list[int]) -> dict[str, Any]:
        """The module whose part of the graph is for nothing, the line that calls it, and the line that passes on what
        it gives."""
        best = self._main_call(graph, nothing or partly)
        if best is None:
            return {}
        taken, calls = set(nothing), self.modules.calls
        around = [self._around(graph.numbers[node]) for node in partly if taken.intersection(graph.children[node])]
        outside = [at for each in around if best not in each for at in each]
        behind = [at for at in outside if not calls[at][0] <= calls[best][0] < calls[at][1]]
        passed = min(behind, key=lambda at: calls[at][2], default=None)
        return self._made(best) | ({} if passed is None else {"passed": sites.line_of(calls[passed][4])})

    def _main_call(self, graph: WalkedPass, nodes: list[int]) -> int | None:
        """The call that made most of these nodes and few others, by place; the outermost of several."""
        visited = Counter(at for number in graph.numbers for at in self._around(number))
        chosen = Counter(at for node in nodes for at in self._around(graph.numbers[node]))
        found = [at for at, count in chosen.items() if count >= MOSTLY * visited[at]] or list(chosen)
        return max(found, key=lambda at: (chosen[at], -self.modules.calls[at][2]), default=None)

    def _around(self, number: int) -> list[int]:
        """Calls that made the node of this number, by place, the innermost first."""
        calls = self.modules.calls
        at = bisect_right(calls, number, key=lambda call: call[0]) - 1 if number >= 0 else -1
        found = []
        while at >= 0:  # whatever was running when the last one started is around it
            if calls[at][0] <= number < calls[at][1]:
                found.append(at)
            at = self._outer[at]
        return found


def _outer(calls: list[list[Any]]) -> list[int]:
    """Place of the call around each, -1 without one. calls: by start, with their depth."""
    running: list[int] = []
    found = []
    for at, call in enumerate(calls):
        del running[call[2] :]
        found.append(running[-1] if running else -1)
        running.append(at)
    return found


def _kind(module: torch.nn.Module) -> str:
    """Name of the module's class, of torch's for a class of the job's that is an attention."""
    attention = torch.nn.MultiheadAttention
    return (attention if isinstance(module, attention) else type(module)).__name__

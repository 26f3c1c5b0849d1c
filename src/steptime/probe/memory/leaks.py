"""Search for leaks: three looks at the living objects, a few steps apart, at step boundaries.

An object made between the first two looks and alive at the third has outlived several steps; the garbage collector
knows its holder. A running sum of losses keeps no Python tensors alive, but a growing graph. It must reach back to
nodes from before the first look, because the graph of one episode or sentence may just be longer than the last one's.

Objects of a few steps are in the collector's young generations, so only those are searched. If some objects are
promoted meanwhile, the search starts again with all generations.

The holder (a list, a dictionary, a hook, a closure, a variable) is reported by name and line. Only types are examined,
because `isinstance` asks the object for its class, which makes a lazy object do its work.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, cycle, islice, pairwise
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from steptime.probe import backwards, sites
from steptime.probe.allowance import graph_nodes
from steptime.probe.memory.living import (
    TENSOR,
    Graphs,
    gradient_function,
    promotions,
    reaches_back,
    size_of,
    storage_of,
    tensors,
)
from steptime.probe.objects import attributes

MOST_LEVELS = 5
"""Levels from a tensor up to a named object: tensor, tuple, list, dictionary, instance."""
GROWING = frozenset({"append", "extend", "add", "insert", "appendleft", "setdefault", "update"})
CONTAINERS = (list, dict, set, deque, tuple)
CACHE, CYCLE = type(lru_cache(len)), cycle
"""Types of what functools.lru_cache and itertools.cycle make: they keep results, and items, that no variable names."""


class Holder(NamedTuple):
    """Object that keeps others alive. kind: "list", "dict", …, "cache", "cycle", "hook", "closure", "variable",
    "attribute". name: name of the holder; site: its line; carries: True if that line also reads the name, as one does
    that makes the new value of the old one."""

    kind: str
    name: str
    site: dict[str, Any] | None
    carries: bool = False


def holder_of(objects: list[Any], frame: FrameType | None) -> Holder | None:
    """Returns the holder of most objects, climbing until one has a name, or None. frame: where user code runs."""
    path = [objects[0]]
    current, ours = objects, {id(objects), id(path)}
    for _ in range(MOST_LEVELS):
        named = _named(current, path, frame)
        if named is not None:
            return named
        # Frames of ours and iterators over our own lists keep nothing.
        referrers = [
            each
            for each in gc.get_referrers(*current)
            if id(each) not in ours and type(each) is not FrameType and not type(each).__name__.endswith("iterator")
        ]
        current = _common(current, referrers)
        if not current:
            return None
        ours |= {id(current), id(referrers)}
        referrers.clear()
        path.append(current[0])
    return _named(current, path, frame)


def _common(objects: list[Any], referrers: list[Any]) -> list[Any]:
    """Returns the referrer that holds most of the objects; if each has its own, all referrers of the commonest type."""
    if not referrers:
        return []
    wanted = {id(each) for each in objects}
    held = [sum(id(each) in wanted for each in gc.get_referents(referrer)) for referrer in referrers]
    best = max(range(len(referrers)), key=held.__getitem__)
    if held[best] > 1 or len(objects) == 1:
        return [referrers[best]]
    kinds = Counter(type(referrer) for referrer in referrers)
    kind, _ = kinds.most_common(1)[0]
    return [referrer for referrer in referrers if type(referrer) is kind]


def _named(current: list[Any], path: list[Any], frame: FrameType | None) -> Holder | None:
    if len(current) > 1 and type(current[0]) is FunctionType:
        return _function(current[0], path)
    if len(current) != 1:
        return None
    (one,) = current
    if type(one) is FunctionType:
        return _function(one, path)
    if type(one) is ModuleType or (type(one) is dict and _is_module(one)):
        return _variable(path, one if type(one) is dict else vars(one), frame)
    attribute = _attribute(one, path, frame)
    local = _local(one, frame) if attribute is None else None
    if local is not None:
        name, code = local
        return _found(_kind(one), name, name, [code])
    return attribute


def _found(kind: str, displayed: str, name: str, codes: list[CodeType]) -> Holder:
    """Returns a holder with the line where it grows; a hook if that line is in a hook function."""
    line = _line(name, codes)
    if line is None:
        return Holder(kind, displayed, None)
    site, code, carries = line
    hooked = any(type(each) is FunctionType and _is_hook(each) for each in gc.get_referrers(code))
    return Holder("hook" if hooked else kind, displayed, site, carries)


def _kind(value: Any) -> str:
    if type(value) is CACHE or type(value) is CYCLE:
        return "cache" if type(value) is CACHE else "cycle"
    return type(value).__name__ if issubclass(type(value), CONTAINERS) else "variable"


def _is_module(entries: dict[Any, Any]) -> bool:
    name = entries.get("__name__")
    return isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is entries


def _variable(path: list[Any], entries: dict[Any, Any], frame: FrameType | None) -> Holder | None:
    below = path[-2] if len(path) > 1 else None
    for name, value in list(entries.items()):
        if value is below and isinstance(name, str) and below is not None:
            return _found(_kind(below), name, name, list(_codes(entries, frame)))
    return None


def _codes(entries: dict[Any, Any], frame: FrameType | None) -> Iterator[CodeType]:
    """Yields code that may name a module's variable: running code, and the module's own functions and methods."""
    for each in sites.frames_of(frame):
        yield each.f_code
    for value in list(entries.values()):
        if type(value) is FunctionType and value.__globals__ is entries:
            yield value.__code__
        elif issubclass(type(value), type) and value.__dict__.get("__module__") == entries.get("__name__"):
            yield from (each.__code__ for each in value.__dict__.values() if type(each) is FunctionType)


def _local(value: Any, frame: FrameType | None) -> tuple[str, CodeType] | None:
    for each in sites.frames_of(frame):
        if each.f_code.co_flags & 0x02:  # CO_NEWLOCALS: a function
            found = next((name for name, known in sites.variables(each).items() if known is value), None)
            if found is not None:
                return found, each.f_code
    return None


def _function(function: FunctionType, path: list[Any]) -> Holder:
    """Returns the holder for a closure's or a hook's function, with the variable's or the function's name."""
    cell = next((each for each in path if type(each) is CellType), None)
    names = function.__code__.co_freevars
    closure = function.__closure__ or ()
    name = next((name for name, each in zip(names, closure, strict=False) if each is cell), function.__name__)
    found = _found("hook" if _is_hook(function) else "closure", name, name, [function.__code__])
    if found.site is not None:
        return found
    return Holder(found.kind, name, first_line(function.__code__))


def first_line(code: CodeType) -> dict[str, Any]:
    """Returns the line on which a function starts, or its first decorator's line if it has any."""
    return sites.line_at((code.co_filename, code.co_firstlineno, code.co_name))


def _is_hook(function: FunctionType) -> bool:
    """True if a table from integers to functions holds it, as a module's or a tensor's hooks do."""
    for referrer in gc.get_referrers(function):
        if issubclass(type(referrer), dict) and referrer and all(type(key) is int for key in list(referrer)[:4]):
            return True
    return False


def _attribute(one: Any, path: list[Any], frame: FrameType | None) -> Holder | None:
    """Returns the holder for an attribute of an object: a user's, whose class shows the file, or a library's, which a
    line of the user's makes."""
    below = path[-2] if len(path) > 1 else None
    if below is None or issubclass(type(one), CONTAINERS) or type(one) is CellType:
        return None
    try:
        entries = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None
    below = path[-3] if below is entries and len(path) > 2 else below
    name = next((name for name, value in list(entries.items()) if value is below), None)
    if not isinstance(name, str):
        return None
    methods = [
        each.__code__ for kind in type(one).__mro__ for each in kind.__dict__.values() if type(each) is FunctionType
    ]
    kind = type(one).__name__
    found = _found("attribute", f"{kind}.{name}", name, methods)
    users = found.site is not None and sites.whose(found.site["file"]) == sites.USER
    if type(below) is tuple and not users:
        return None  # it cannot grow: what keeps more and more of such objects is further up
    return found if found.site is not None else found._replace(site=_adding(name, frame) or _making(kind, frame))


def _adding(name: str, frame: FrameType | None) -> dict[str, Any] | None:
    """The line of a running function of the user's that binds an attribute of this name again from itself."""
    for code in (each.f_code for each in sites.frames_of(frame)):
        for line, (stores, loads) in sites.names_by_line(code).items():
            if f".{name}" in stores & loads:
                return sites.line_at((code.co_filename, line, code.co_name))
    return None


def _making(kind: str, frame: FrameType | None) -> dict[str, Any] | None:
    """The line of the user's that calls a class by its name, in the module that runs; None unless it is the only
    one."""
    found = []
    user = next(sites.frames_of(frame), None)
    for code in sites.codes_in(*_codes(user.f_globals, user)) if user is not None else ():
        for line, (_, loads) in sites.names_by_line(code).items():
            site = sites.line_at((code.co_filename, line, code.co_name))
            if kind in loads and f"{kind}(" in site["text"] and site not in found:
                found.append(site)
    return found[0] if len(found) == 1 else None


def _line(name: str, codes: list[CodeType]) -> tuple[dict[str, Any], CodeType, bool] | None:
    """The line that makes a variable grow, its code, and whether it extends the old value: first a line that calls
    append and the like on it, else one that binds it from itself, else one that binds it at all."""
    best: tuple[int, dict[str, Any], CodeType] | None = None
    for code in sites.codes_in(*codes):
        for line, (stores, loads) in sites.names_by_line(code).items():
            known = loads | {each.lstrip(".") for each in loads}
            grows, anew = name in known and bool(known & GROWING), {name, f".{name}"} & stores & loads
            rank = 3 if grows else 2 if anew else int(name in stores)
            if rank and (best is None or rank > best[0]):
                best = rank, sites.line_at((code.co_filename, line, code.co_name)), code
    return (*best[1:], best[0] > 1) if best is not None else None


def growing_line(name: str, codes: list[CodeType]) -> dict[str, Any] | None:
    """Returns the line that makes a variable grow; None if no line binds it, or calls append or the like on it."""
    found = _line(name, codes)
    return found[0] if found is not None else None


APART = 4
"""Least number of steps between two looks: objects that a job keeps for a step or two (the last batch or loss) are gone
by then."""
LOOKS = 3
MOST_SAMPLES = 24
"""Most surviving objects whose holder is searched."""
LEAST_NODES = 2
"""Nodes of the graph a step: a sum makes one, and its operand's own."""
MOST_DEEP = 8
"""Tensors with a deep graph whose holder is looked for."""
PASSING = "Queue.queue"
"""Name of a holder that is no leak: a queue.Queue's items leave it again, such as batches that a DataLoader pins."""
YOUNG_KEPT = sys.version_info < (3, 14)
"""True before Python 3.14: later collectors are incremental, and make objects old at the first collection."""


def held(frame: FrameType | None) -> Iterator[Any]:
    """Yields the tensors in variables of the user's running functions, and in attributes of objects there: a sum that
    is added to in place is as old as the job."""
    for running in sites.frames_of(frame):
        for value in list(sites.variables(running).values()):
            for each in (value, *(below for _, below in attributes(value))):
                if TENSOR in type(each).__mro__:
                    yield each


class LeakSearch:
    """Search for leaks. Call `look` at boundaries until it is `done`; then `leaks` has the result."""

    def __init__(self, *, young: bool = YOUNG_KEPT, least: int | None = None) -> None:
        """young: until the first collection, only young generations are searched. least: bytes of objects, or two
        graphs, that are a leak even if not every step leaves one; None if every step must."""
        self._young, self._promotions, self._least = young, promotions(), least
        self._known: dict[int, weakref.ref[Any]] = {}
        self._made: list[weakref.ref[Any]] = []
        self._graphs: list[tuple[int, int]] = []
        self._held: list[tuple[int, int]] = []
        self._first_node, self._full, self.done = 0, False, False
        self.leaks: list[dict[str, Any]] = []
        self.samples: list[weakref.ref[Any]] = []
        """Objects of the leak that was found, the largest."""

    def look(self, step: int, frame: FrameType | None) -> None:
        """Takes one look; the third one finds the leaks. frame: where the user's loop is running."""
        with torch._C.DisableTorchFunction():  # what tensors of the job's own classes would be asked by
            graphs = Graphs()
            self._look_at_held(step, frame, graphs)
            if self._young and promotions() != self._promotions:
                self._young, self._graphs = False, []
            if not self.done and (self._young or not self._is_growing()):
                self._look(step, frame, graphs)

    def _look_at_held(self, step: int, frame: FrameType | None, graphs: Graphs) -> None:
        """Looks at the graphs that running functions hold. Three looks are enough, whatever the collector does
        meanwhile."""
        deepest = max(held(frame), key=graphs.behind, default=None)
        self._first_node = self._first_node if self._held else graph_nodes()
        self._held.append((step, graphs.behind(deepest) if deepest is not None else 0))
        self._full = graphs.full
        if len(self._held) == LOOKS and (nodes := self._growth(self._held, deepest)):
            self._notify([deepest], self._carrier(deepest, frame), self._held[1][0] - self._held[0][0], nodes, frame)
            self.done = True

    def _is_growing(self) -> bool:
        """True if the next look at held graphs may say enough: to look at all that lives takes a tenth of a second."""
        return len(self._held) < LOOKS and all(nodes for _, nodes in self._held)

    def _look(self, step: int, frame: FrameType | None, graphs: Graphs) -> None:
        living = list(tensors(young=self._young))
        deepest = max(living, key=graphs.behind, default=None)
        self._graphs.append((step, graphs.behind(deepest) if deepest is not None else 0))
        self._full = graphs.full
        if len(self._graphs) == 1:
            self._known = {id(each): weakref.ref(each) for each in living}
        elif len(self._graphs) == 2:
            # A number may be given to a new object when the old one is gone.
            old = self._known
            self._made = [weakref.ref(each) for each in living if id(each) not in old or old[id(each)]() is not each]
            self._known = {}
        else:
            living.clear()
            self._find(deepest, frame)
            self.done = True

    def _growth(self, looks: list[tuple[int, int]], deepest: Any) -> float:
        """Nodes per step by which a graph grows that reaches back to before the first look; 0 for others."""
        growth = min((later - nodes) / (at - step) for (step, nodes), (at, later) in pairwise(looks))
        if self._full:  # all that were made since the first look
            growth = (graph_nodes() - self._first_node) / (looks[-1][0] - self._held[0][0])
        return growth if growth >= LEAST_NODES and reaches_back(deepest, self._first_node) else 0.0

    def _find(self, deepest: Any, frame: FrameType | None) -> None:
        survivors = [each for each in (reference() for reference in self._made) if each is not None]
        self._made = []
        steps = self._graphs[1][0] - self._graphs[0][0]
        nodes = self._growth(self._graphs, deepest)
        if nodes and deepest is not None:
            deepest = self._carrier(deepest, frame)
        if len(survivors) >= steps or (self._least is not None and self._are_much(survivors, self._least)):
            self._notify(survivors, deepest, steps, nodes, frame)
        elif nodes and deepest is not None:
            self._notify([deepest], deepest, steps, nodes, frame)

    def _are_much(self, survivors: list[Any], least: int) -> bool:
        storages = {storage_of(each): size_of(each) for each in survivors}
        return sum(storages.values()) >= least or sum(gradient_function(each) is not None for each in survivors) > 1

    def _carrier(self, deepest: Any, frame: FrameType | None) -> Any:
        """Tensor by which the graph of one step reaches the next: of those with nearly as deep a graph as the deepest,
        which may be a loss, the one that is computed from its old value."""
        graphs = Graphs()
        least = graphs.behind(deepest) / 2
        living = chain(held(frame), tensors(young=self._young))
        deep = list(islice((each for each in living if graphs.behind(each) >= least), MOST_DEEP))
        for each in deep:
            found = holder_of([each], frame)
            if found is not None and found.carries:
                return each
        return deepest

    def _notify(self, kept: list[Any], deepest: Any, steps: int, nodes: float, frame: FrameType | None) -> None:
        with_graph = sum(gradient_function(each) is not None for each in kept)
        storages = {storage_of(each): size_of(each) for each in kept}
        sample = sorted(kept, key=size_of, reverse=True)[:MOST_SAMPLES]
        self.samples = [weakref.ref(each) for each in sample]
        count = len(kept)
        kept.clear()
        holder = holder_of(sample, frame)
        if holder is None and nodes:  # the graph keeps them, and somebody keeps the graph
            holder = holder_of([deepest], frame)
            if holder is not None and holder.kind == "variable" and not holder.carries:
                holder = None  # bound again in each step: it reaches the graph of earlier ones, and does not keep it
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


def of_cycle(leak: dict[str, Any]) -> dict[str, Any]:
    """Returns a leak; if nothing was seen to hold its graphs, with the line whose gradients hold them."""
    site = next(iter(backwards.cycles), None)
    if site is None or leak["name"] or not leak["graphs"]:
        return leak
    return {**leak, "kind": "gradient of", "name": "backward(create_graph=True)", "site": sites.line_at(site)}

"""Lines of a training loop whose results the loss is made of, by the names that they bind and read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from steptime.analysis.lines import CARRIERS, LineRole, identity_of
from steptime.recording.recording import CodeFacts, CodeLine


def on_loss_path(code: CodeFacts, roles: Mapping[int, LineRole]) -> frozenset[int]:
    """Identities of the lines of a loop whose results reach its backward(). If a line of the loop calls a model, only
    lines that read its outputs count: inputs of the model need no gradients. roles: roles of the timed lines, by
    identity."""
    lines = {identity_of(code, line): line for line in code.lines}

    def of_role(role: LineRole) -> list[CodeLine]:
        return [line for each, line in lines.items() if roles.get(each) is role]

    reaching = _reached(lines, {name for line in of_role(LineRole.BACKWARD) for name in line.loads}, upwards=True)
    made = {name for line in of_role(LineRole.FORWARD) for name in line.stores}
    return reaching & _reached(lines, made, upwards=False) if made else reaching


def _reached(lines: Mapping[int, CodeLine], names: Iterable[str], *, upwards: bool) -> frozenset[int]:
    """Lines that make these names, and what those read, and so on; downwards: that read them, and what those make."""
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for each, line in lines.items():
        for name in line.stores if upwards else line.loads:
            by_name[name].append(each)
    reached, waiting = set[int](), [*names]
    while waiting:
        name = waiting.pop()
        for each in by_name.pop(name, ()) if name not in CARRIERS else ():
            if each not in reached:
                reached.add(each)
                waiting += lines[each].loads if upwards else lines[each].stores
    return frozenset(reached)

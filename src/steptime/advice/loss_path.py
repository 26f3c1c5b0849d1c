"""Lines of a training loop whose results the loss is made of, by the names that they bind and read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from steptime.analysis.lines import CARRIERS, LineRole, identity_of
from steptime.recording.recording import CodeFacts, CodeLine


def on_loss_path(code: CodeFacts, roles: Mapping[int, LineRole]) -> frozenset[int]:
    """Identities of a loop's lines whose results reach its backward(), and that read what the model makes, where a line
    calls one: what only the model reads is data, which needs no gradients. roles: of the timed lines, by identity."""
    lines = {identity_of(code, line): line for line in code.lines}

    def of_role(role: LineRole) -> list[CodeLine]:
        return [line for each, line in lines.items() if roles.get(each) is role]

    reaching = _reached(lines, {name for line in of_role(LineRole.BACKWARD) for name in line.loads}, upwards=True)
    made = {name for line in of_role(LineRole.FORWARD) for name in line.stores}
    return reaching & _reached(lines, made, upwards=False) if made else reaching


def _reached(lines: Mapping[int, CodeLine], names: Collection[str], *, upwards: bool) -> frozenset[int]:
    """Lines that make these names, and what those read, and so on; downwards: that read them, and what those make."""
    left, known = dict(lines), set(names) - CARRIERS
    while True:
        taken = [each for each, line in left.items() if known & set(line.stores if upwards else line.loads)]
        if not taken:
            return frozenset(lines.keys() - left.keys())
        for each in taken:
            line = left.pop(each)
            known |= {*(line.loads if upwards else line.stores)} - CARRIERS

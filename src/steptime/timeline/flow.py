"""Names that flow through a loop: which lines make what the model is then called with.

One law: a line prepares the batch when a name that it binds reaches, through other lines, a line that holds a forward;
lines that read the forward's results are none of these, however they go on (a loss, a metric).
"""

from __future__ import annotations

from steptime.recording.recording import CodeFacts, CodeLine

CARRIERS = frozenset({"self", "cls"})
"""Names through which everything flows to everything; they would make every line a part of the batch."""


def identity_of(code: CodeFacts, line: CodeLine) -> int:
    """The identity that the LINE records of a line carry."""
    return code.base + line.line - code.first_line


def find_preparing(codes: tuple[CodeFacts, ...], forwards: set[int], evaluating: set[int], known: set[int]) -> set[int]:
    """Identities of the lines that make the batch, by the names that flow to the lines that hold a forward.

    forwards, evaluating: lines that the clock saw in a training forward or an evaluation; known: all lines
    whose role the clock has told; none of these is returned.
    """
    return _Flow(codes, forwards, evaluating, known).prepares


class _Flow:
    """Names flowing through the lines of each function; `prepares`: identities of lines that make the batch."""

    def __init__(self, codes: tuple[CodeFacts, ...], forwards: set[int], evaluating: set[int], known: set[int]) -> None:
        self._codes, self._forwards, self._evaluating, self._known = codes, forwards, evaluating, known
        self.prepares: set[int] = set()
        training = {code.function.rpartition(".")[2] for code in codes if self._targets(code, frozenset())}
        for code in codes:
            targets = self._targets(code, frozenset(training))
            if targets:
                self.prepares |= self._ancestors(code, targets)
        self._enter_called_functions()

    def _targets(self, code: CodeFacts, training: frozenset[str]) -> list[CodeLine]:
        """Lines that hold a forward, or else call a function that does."""
        own = [line for line in code.lines if identity_of(code, line) in self._forwards]
        others = training - {code.function.rpartition(".")[2]}
        return own or [line for line in code.lines if others.intersection(line.loads)]

    def _ancestors(self, code: CodeFacts, targets: list[CodeLine]) -> set[int]:
        """Lines whose names reach a target; what comes after a target and reads its results does not count (a loss)."""
        free = [line for line in code.lines if identity_of(code, line) not in self._known and line not in targets]
        results = self._results(code, targets)
        first = min(line.line for line in targets)
        free = [line for line in free if line.line < first or not results.intersection(line.loads)]
        wanted = {name for line in targets for name in line.loads} - CARRIERS
        found: set[int] = set()
        while True:
            new = [line for line in free if wanted.intersection(line.stores) and identity_of(code, line) not in found]
            if not new:
                return found
            found |= {identity_of(code, line) for line in new}
            wanted |= {name for line in new for name in line.loads} - CARRIERS

    @staticmethod
    def _results(code: CodeFacts, targets: list[CodeLine]) -> set[str]:
        """Names that hold something computed from what the targets returned."""
        results = {name for line in targets for name in line.stores} - CARRIERS
        last = max(line.line for line in targets)
        for line in sorted(code.lines, key=lambda line: line.line):
            if line.line > last and results.intersection(line.loads):
                results |= set(line.stores) - CARRIERS
        return results

    def _enter_called_functions(self) -> None:
        """A traced function that only preparing lines call prepares with all its lines (get_batch)."""
        for _ in self._codes:
            before = len(self.prepares)
            for code in self._codes:
                if self._is_called_to_prepare(code):
                    own = {identity_of(code, line) for line in code.lines}
                    self.prepares |= {each for each in own if each not in self._known}
            if len(self.prepares) == before:
                return

    def _is_called_to_prepare(self, code: CodeFacts) -> bool:
        name = code.function.rpartition(".")[2]
        callers = [
            identity_of(other, line)
            for other in self._codes
            if other is not code
            for line in other.lines
            if name in line.loads and identity_of(other, line) not in self._evaluating
        ]
        return bool(callers) and all(each in self.prepares for each in callers)

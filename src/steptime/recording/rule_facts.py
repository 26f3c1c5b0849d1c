"""Facts that rules and fixes take as the probe wrote them: a dataclass for each, and its field of `RuleFacts`."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import SourceLine
from steptime.recording.fact_fields import fact


@dataclass(frozen=True, slots=True)
class PaddingFacts:
    """Padding of token batches. share: mean fraction of padding in `batches` batches; tokens: mean number per batch, 0
    if unknown. beyond: mean fraction of the length after the end of the longest row. site: line that fills rows up,
    None if unknown.

    Raises ValueError for a share outside of 0 to 1."""

    share: float
    batches: int
    tokens: float = 0.0
    site: SourceLine | None = None
    beyond: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"a share is between 0 and 1, not at {self.share}")


@dataclass(frozen=True, slots=True)
class FunctionText:
    """Text, as in its file, of a user's function that takes a good part of the time or trains: 1,000 lines at most."""

    file: str
    function: str
    first_line: int
    text: str


@dataclass(frozen=True, slots=True)
class CalledFacts:
    """Functions that a user's line called in the discovery steps, C functions too: "builtins.print"."""

    file: str
    line: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TracerFacts:
    """Tool that Python calls while the training thread runs, seen at the start of an early step. kind: "trace"
    (sys.settrace: a debugger, coverage), "profile" (sys.setprofile: cProfile), "memory" (tracemalloc). tool: top module
    of its function, "?" if unknown. site: user's line whose text switches it on."""

    kind: str
    tool: str
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """Facts that rules and fixes take as the probe wrote them: fields of a process, and fields of its case with the
    same names."""

    padding: PaddingFacts | None = fact(None, "padding", reason="no batch of tokens was seen")
    texts: tuple[FunctionText, ...] = fact(
        (), "function", "file", "first_line",
        reason="no function's text was recorded",
        in_trace="a trace does not hold the text of functions (steptime run records it)",
    )  # fmt: skip
    called: tuple[CalledFacts, ...] = fact((), "called", "file", "line", reason="no line was seen to call anything")
    tracers: tuple[TracerFacts, ...] = fact(
        (), "tracer", "kind",
        reason="no debugger, coverage tool or profiler of Python was on",
        in_trace="a trace does not show tracers of Python (steptime run looks for them)",
    )  # fmt: skip

    @property
    def callees(self) -> dict[tuple[str, int], tuple[str, ...]]:
        """Names of the functions that a line, (file, number), was seen to call."""
        return {(fact.file, fact.line): fact.names for fact in self.called}

"""Results that each step makes and few steps read, such as a text of a message for every hundredth step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from steptime.advice.evidence import Case, LineUse, PathUse, SeldomUse
from steptime.advice.line_ways import last_name, parsed
from steptime.advice.written_ways import is_in, making_results
from steptime.analysis.lines import source_at
from steptime.quantities import SourceLine, format_source
from steptime.recording.recording import CodeFacts, UnreadFacts
from steptime.recording.rule_facts import FunctionText

EACH, SELDOM = 0.9, 0.5
"""Executions per step of a line that makes something, at least, and of those that read it, below."""
MOSTLY = 0.9
"""Fraction of a line's time below the one that makes something."""
MODULES = frozenset({"torch", "nn", "np", "numpy", "json", "copy", "math", "statistics", "pprint"})
"""Names of modules whose functions only give a result."""
GIVES = frozenset(
    {
        "item", "tolist", "numpy", "cpu", "detach", "clone", "copy", "float", "int", "mean", "std", "var", "sum", "min",
        "max", "norm", "abs", "argmax", "count", "softmax", "log", "exp", "sqrt", "round", "size", "format", "join",
        "items", "keys", "values", "state_dict", "named_parameters", "parameters",
    }
)  # fmt: skip
"""Methods that only give a result; others may change their object."""
EFFECTS = re.compile(r"_\(|\brandom\b|\b(?:step|update|backward|next|pop|append|save|load|seed|rand\w*|normal)\(")
"""A call that does more, by its name."""
WRITES = re.compile(r"\b(?:print|write\w*|add_\w+|info|debug)\(")
"""A call that others see."""
MADE, ADDING = re.compile(r"(?m)^[ \t]*(\w+)[ \t]*=(?!=)"), re.compile(r"(?<![\w.])(\w+)\.(?:append|pop)\(")
"""Names that a function binds, and what is added to a list by its name."""
CHANGES = re.compile(r"\s*(?:global\b|nonlocal\b|\w+(?:\.\w+)+(?:\[.*\])?\s*(?:[-+*/|&@%]|//|\*\*)?=(?!=))")
"""A line of a function that changes what is not its own."""


def seldom_uses(codes: tuple[CodeFacts, ...], lines: Iterable[LineUse]) -> tuple[SeldomUse, ...]:
    """Lines of the training loop that in each step compute a result which most steps do not read. lines: timed in a few
    steps."""
    timed = {use.source.place: use for use in lines}
    return tuple(use for code in codes if code.loop for use in _of_loop(code, codes, timed))


def _of_loop(
    code: CodeFacts, codes: tuple[CodeFacts, ...], timed: dict[tuple[str, int], LineUse]
) -> Iterator[SeldomUse]:
    elsewhere = {name for other in codes if other is not code and other.file == code.file for name in _unbound(other)}
    for line in code.lines:
        use = timed.get((code.file, line.line))
        own = set(line.stores)
        if use is None or use.role != "python" or use.hits < EACH or not own or own & {*line.loads, *elsewhere}:
            continue
        if not _only_gives(line.text, codes):
            continue
        reading = [each for each in code.lines if each is not line and own & set(each.loads)]
        often = [timed[code.file, each.line].hits if (code.file, each.line) in timed else 0.0 for each in reading]
        if reading and max(often) < SELDOM:
            yield SeldomUse(use.source, line.stores[0], source_at(code, reading[0]))


def _only_gives(text: str, codes: tuple[CodeFacts, ...]) -> bool:
    """True for an assignment whose calls change nothing, as far as their names and the lines of the job's own functions
    say."""
    tree = parsed(text)
    if tree is None or EFFECTS.search(text) or not all(isinstance(each, ast.Assign) for each in tree.body):
        return False
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    of_objects = (each for each in functions if isinstance(each, ast.Attribute))
    called = {last_name(each) for each in functions if isinstance(each, ast.Name)}
    changing = {code.function for code in codes if any(CHANGES.match(line.text) for line in code.lines)}
    return not called & changing and all(
        each.attr in GIVES or ast.unparse(each).partition(".")[0] in MODULES for each in of_objects
    )


def _unbound(code: CodeFacts) -> set[str]:
    """Names that a function reads and does not bind: they may be the loop's."""
    return {name for line in code.lines for name in line.loads} - {name for line in code.lines for name in line.stores}


def made_in_vain(place: SourceLine, case: Case) -> str:
    """Sentence on a line that computes what few steps read, or that runs below such a line; "" for other lines."""
    through = [path for path in case.paths if any(line.place == place.place for line in path.lines)]
    spent = sum(path.duration for path in through)
    for use in case.seldom:
        below = [path for path in case.paths if any(line.place == use.source.place for line in path.lines)]
        inside = sum(path.duration for path in below if path in through)
        is_made = place.place == use.source.place or (through and inside >= MOSTLY * spent)
        if is_made and not any(path.part for path in below):
            return (
                f"Only {format_source(use.reader)} reads {use.name}, and in few steps: move "
                f"{format_source(use.source)} there, unless it does more than make {use.name}."
            )
    return ""


def lines_of_unread(facts: UnreadFacts, case: Case) -> list[tuple[SourceLine, float]]:
    """(line, ns per step including callees) of a module's forward that makes nothing but results that nobody reads, the
    longest first. Lines that call a function which may change something else are left out: a metric may count its
    calls."""
    found = []
    for text in case.texts:
        if not f".{text.function}".endswith(f".{facts.type}.forward"):
            continue
        for number in making_results(text, facts.results):
            through = [path for path in case.paths if any(each.place == (text.file, number) for each in path.lines)]
            at = next((each for path in through for each in path.lines if each.place == (text.file, number)), None)
            if at is not None and not EFFECTS.search(at.text) and _changes_nothing(at, through, case):
                found.append((at, _spent(at, through, case)))
    return sorted(found, key=lambda each: -each[1])


def _spent(line: SourceLine, through: Sequence[PathUse], case: Case) -> float:
    """ns per step of a line and what it calls: from timed lines, each with the functions below it that were not timed;
    else from samples."""
    timed = {use.source.place: use.duration.value for use in case.lines if use.role != "evaluation"}
    below = [[each.place for each in path.lines[: path.lines.index(line) + 1]] for path in through]
    places = {next((each for each in lines if each in timed), None) for lines in below}
    return sum(timed[each] for each in places if each is not None) or sum(path.duration for path in through)


def _changes_nothing(line: SourceLine, through: Sequence[PathUse], case: Case) -> bool:
    """True if a line is free of side effects, by its text. The text of every user function below it is known and
    changes only its own variables; in a line that calls none, the names of its calls are of functions that only return
    a result."""
    below = {part for path in through for part in path.lines[: path.lines.index(line)]}
    texts = [text for text in case.texts if any(is_in(part, text) for part in below) and not is_in(line, text)]
    if not below:
        return _only_gives(line.text, ())
    known = all(any(is_in(part, text) for text in texts) for part in below)
    return known and not any(map(_changes_more, texts))


def _changes_more(function: FunctionText) -> bool:
    """True for a function that changes objects of others, or writes, as far as its text shows. A list that it makes is
    its own."""
    own = {*MADE.findall(function.text)}
    text = ADDING.sub(lambda found: "(" if found[1] in own else found[0], function.text)
    rows = (row for row in text.splitlines() if not row.lstrip().startswith(("def ", "@")))
    return any(CHANGES.match(row) or EFFECTS.search(row) or WRITES.search(row) for row in rows)

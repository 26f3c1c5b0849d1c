"""Better ways to write a line that takes long: what it does in vain or again, by its syntax and what runs there.

A line's text shows how it was written, and the measurement shows that this costs the time. A way counts only if nothing
else takes most of the line; a search of a list only if the line was seen to read the whole list."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from steptime.advice.evidence import Case
from steptime.advice.syntax import tree_of
from steptime.quantities import SourceLine

CONTAINER = re.compile(r"the (?P<kind>list|tuple|deque) (?P<name>.+) \([\d,]+ entries\)")
"""What a line goes through, as evidence has it."""
BRACKETS = {"(": ")", "[": "]", "{": "}"}
MOST_LINES = 8
"""Lines of a statement that are looked for."""
TEXTS = frozenset({"str", "repr", "format", "join", "dumps"})
"""Functions that give a text."""
JOINS = frozenset({"append", "concatenate", "concat", "cat", "vstack", "hstack", "row_stack", "column_stack"})
"""Functions that make a new array of all that they are given."""
DUMPS = frozenset({"dump", "dumps", "save", "savetxt", "write", "writelines", "writerows", "to_csv", "to_json"})
SORTS = frozenset({"sorted", "argsort"})
LEVELS = frozenset({"debug", "info", "log"})
DRAWS = frozenset({"sample", "choice", "choices"})
CHEAP = re.compile(r"builtins\.(?!sorted|dict|list|set|tuple|str)\w+")
"""Functions that take no time worth a word."""
UNLOGGED = "unlogged"
"""Kind of a line with a logger's call that writes nothing."""
VOCABULARY = r"vocab|stoi|word_?(?:to|2)_?(?:id|index|ix)"
TOKENIZERS = re.compile(
    rf"(?i).*\btokeni[sz]e\w*|.*(?:token|bpe|{VOCABULARY})\w*\.(?:encode\w*|get|__call__)|(?:.*\.)?(?:\w+_)?tokenizer"
)
"""Functions that turn text into numbers."""
ISO_8601 = re.compile(r"%Y-%m-%d(?:.%H:%M(?::%S)?)?")
"""Formats that datetime.fromisoformat reads (Python 3.10 and newer)."""
FEW = r"\[\s*(?::\s*\w+|-\s*\w+\s*:|0|-\s*1)\s*\]"
"""A few of the first or the last are taken, or one of them."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line as it is written. called: functions that it was seen to call; hits: number of executions per step; read:
    kinds of the containers that it goes through, by name; around: hits of the other timed lines of its function; kinds:
    kinds of work that it does in vain; loads: True for a line of the loader's."""

    tree: ast.Module
    text: str
    called: tuple[str, ...]
    hits: float
    read: dict[str, str]
    around: dict[str, float]
    kinds: frozenset[str]
    loads: bool

    def kind(self, name: ast.AST) -> str:
        """Kind of a container that the line goes through; "" if it does not."""
        return self.read.get(ast.unparse(name), "")

    def read_in(self, nodes: Iterable[ast.AST]) -> str:
        """The first container that the line goes through and that these nodes name; "" without one."""
        parts = (part for node in nodes for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute)))
        return next((ast.unparse(part) for part in parts if self.kind(part)), "")

    def calls(self, *names: str) -> Iterator[tuple[ast.Call, ast.expr | None, str]]:
        """Calls of functions with these last names: (call, what the function belongs to, name)."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (name := last_name(node.func)) in names:
                yield node, node.func.value if isinstance(node.func, ast.Attribute) else None, name


def way_of_line(place: SourceLine, case: Case, mostly: Collection[str]) -> str:
    """Sentence on how to rewrite a line so that it takes less time; "" if none is known. mostly: last names of the
    functions that take most of the line's time, () if unknown."""
    inside = [use for use in case.lines if body_of(use.source) == body_of(place)]
    text, numbers = _statement(place, {use.source.line: use.source.text for use in inside})
    tree = parsed(text)
    if tree is None:
        return ""
    here = [use for use in case.lines if use.source.file == place.file and use.source.line in numbers]
    works = [use for use in case.works if use.source.file == place.file and use.source.line in numbers]
    found = (CONTAINER.fullmatch(use.what) for use in works if use.kind == "container")
    line = _Line(
        tree,
        text,
        tuple(name for use in here for name in use.calls),
        max((use.hits for use in here), default=1.0),
        {each["name"]: each["kind"] for each in found if each is not None},
        {use.source.text: use.hits for use in inside if use.source.line not in numbers},
        frozenset(use.kind for use in works),
        any(use.role == "input" for use in here)
        or any(path.part == "input" and place in path.lines for path in case.paths),
    )
    seen = {name.rpartition(".")[2] for name in line.called if not CHEAP.fullmatch(name)}
    known = frozenset(mostly or seen)
    return next((text for way, names in WAYS if not known or not names or names & known for text in way(line)), "")


def body_of(place: SourceLine) -> tuple[str, str]:
    """(file, function) that contains a line. A comprehension and a lambda are functions of their own to Python."""
    return place.file, re.sub(r"\.<locals>\.<\w+>$", "", place.function)


def joins_itself(text: str) -> bool:
    """True for a line that assigns to a name an array made of its old value and something new."""
    tree = parsed(text)
    return tree is not None and _grown(tree) is not None


def _statement(place: SourceLine, lines: Mapping[int, str]) -> tuple[str, range]:
    """Text of the statement that a line is part of, and its lines. lines: the texts of its function, by number."""
    first = place.line
    for start in range(place.line - 1, place.line - MOST_LINES, -1):
        if start not in lines:
            break
        if all(_open("\n".join(lines[each] for each in range(start, end))) for end in range(start + 1, place.line + 1)):
            first = start
    text, last = lines.get(first, place.text), first
    while _open(text) and last - first < MOST_LINES and last + 1 in lines:
        last += 1
        text += "\n" + lines[last]
    return text, range(first, last + 1)


def parsed(text: str) -> ast.Module | None:
    """Syntax tree of a line, which may be the head of a block or incomplete; None if it has none."""
    text = text.strip().removeprefix("el") if text.strip().startswith("elif ") else text.strip()
    ends = ("", " pass", _open(text))
    return next((tree for end in ends if (tree := tree_of(text + end)) is not None), None)


def _open(text: str) -> str:
    """Brackets that close what a text has opened."""
    left = []
    for sign in re.sub(r"""(["']).*?\1""", "", text):
        if sign in BRACKETS:
            left.append(BRACKETS[sign])
        elif left and sign == left[-1]:
            left.pop()
    return "".join(reversed(left))


def last_name(function: ast.expr) -> str:
    """Last name of a function: "append" of numpy.append."""
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _name(node: ast.expr) -> str:
    """Names of an expression alone: a report without source lines has them, too."""
    return re.sub(r"\(.+\)", "(…)", re.sub(r"\[.*\]", "[…]", ast.unparse(node)))


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value and type(node.value) is type(value)


def _first(line: _Line) -> Iterator[str]:
    for call, owner, name in line.calls("insert", "pop"):
        given = 2 if name == "insert" else 1
        if owner is not None and len(call.args) == given and _is(call.args[0], 0):
            new = "appendleft" if name == "insert" else "popleft"
            whole = _name(owner)
            yield (
                f"{name}(0) moves every entry of {whole}: make it a collections.deque and use {new} "
                "(maxlen=… drops what is too old by itself)."
            )


def _searched(line: _Line) -> Iterator[str]:
    for node in ast.walk(line.tree):
        asked = (
            node.comparators if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)) else []
        )
        if whole := line.read_in(asked):
            yield f"Keep a set of what is in {whole}, add to it what is added to {whole}, and ask the set."


def _place_searched(line: _Line) -> Iterator[str]:
    for _, owner, _ in line.calls("index"):
        if owner is not None and any(name.endswith((".list.index", ".tuple.index")) for name in line.called):
            whole = _name(owner)
            yield f"index() searches {whole}: keep a dictionary of entry and number, made once, and look it up there."


def _built(line: _Line) -> Iterator[str]:
    for node in ast.walk(line.tree):
        kind, made = "", list[ast.expr]()
        if isinstance(node, (ast.DictComp, ast.SetComp)):
            kind, made = type(node).__name__, [each.iter for each in node.generators]
        elif isinstance(node, ast.Call) and last_name(node.func) in ("dict", "set", "frozenset"):
            kind, made = last_name(node.func), node.args
        if whole := line.read_in(made):
            named = "dictionary" if kind.lower().startswith("dict") else "set"
            yield (
                f"It makes a {named} of all of {whole} each time: make it once, in __init__ or before the loop, and "
                "add to it only what is new."
            )


def _drawn(line: _Line) -> Iterator[str]:
    for call, _, name in line.calls(*DRAWS):
        if not call.args:
            continue
        population, made = call.args[0], None
        if isinstance(population, ast.Call) and last_name(population.func) in ("list", "tuple") and population.args:
            made = population.args[0]
        whole = _name(made or population)
        if line.kind(made or population) == "deque":
            yield (
                f"A deque is slow to index, and to convert: keep {whole} as a list that is written in a ring "
                f"(rows[count % size] = new, once it is full), and give {name}() that list."
            )
        if isinstance(made, ast.Call) and last_name(made.func) in ("keys", "values", "items"):
            yield f"It copies all of {whole} for one draw: keep a list next to the dictionary, and draw from that."


def _rewritten(line: _Line) -> Iterator[str]:
    for call, _, name in line.calls(*DUMPS):
        if whole := line.read_in(call.args):
            yield (
                f"{name}() writes all of {whole} each time: append the new entry only to a file that is kept open "
                '(open(path, "a"), one JSON object or row per line), or write all of it every n-th step.'
            )


def _added_text(line: _Line) -> Iterator[str]:
    for node in line.tree.body:
        if not isinstance(node, ast.AugAssign) or isinstance(node.target, ast.Name):  # CPython extends a local
            continue
        if isinstance(node.op, ast.Add) and _is_text(node.value):
            yield (
                f'Each += copies all of the text {_name(node.target)}: append the pieces to a list and "".join() '
                "them where it is read, or write them to a file or io.StringIO."
            )


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    written = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    return written or (isinstance(node, ast.Call) and last_name(node.func) in TEXTS)


def _grown(tree: ast.Module) -> tuple[str, str, bool] | None:
    """(what, function, True if it drops as much) of an assignment that makes an array of what it binds and something
    new; None for others."""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.Call):
            continue
        whole, call = ast.unparse(node.targets[0]), node.value
        name, given = last_name(call.func), list[ast.expr]()
        for each in call.args:
            given += each.elts if isinstance(each, (ast.List, ast.Tuple)) else [each]
        ways = (*call.args[1:], *(each.value for each in call.keywords if each.arg in ("dim", "axis")))
        if name in JOINS and not (name == "cat" and any(not _is(each, 0) for each in ways)):
            for part in given:
                if re.fullmatch(r"[\w.]+", whole) and (ast.unparse(part) == whole or _is_part(part, whole)):
                    return whole, name, _is_part(part, whole)
    return None


def _is_part(node: ast.expr, whole: str) -> bool:
    sliced = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    return isinstance(node, ast.Subscript) and sliced and ast.unparse(node.value) == whole


def _longer(line: _Line) -> Iterator[str]:
    if found := _grown(line.tree):
        whole, name, drops = found
        own = rf"(?<![.\w]){re.escape(whole)}(?!\w)"
        binds = re.compile(rf"(?:for\b|.*,)?\s*{own}[^=]*?(?:=(?!=)|\bin\b)(?P<value>.*)")
        bound = [(match, hits) for text, hits in line.around.items() if (match := binds.match(text))]
        again = [hits for match, hits in bound if not re.search(own, match["value"])]
        if line.hits < 2 * max(again, default=0.0):
            return  # it is joined once to what each step or round has made again
        if drops or any(re.match(rf"\s*{own}\[.*:.*\]\s*$", match["value"]) for match, _ in bound):
            yield (
                f"{name}() copies all of {whole} to put a little in: keep one array, and write the new rows over the "
                f"oldest ({whole}[at : at + count] = new)."
            )
        yield (
            f"{name}() copies all of {whole} to add a little: append the new rows to a list and join them once, "
            "where they are read; or write them into an array that is made large enough (numpy.empty, torch.empty)."
        )


def _best(line: _Line) -> Iterator[str]:
    for node in line.tree.body:
        value = node.value if isinstance(node, (ast.Assign, ast.Return, ast.Expr)) else None
        taken = isinstance(value, ast.Subscript) and re.fullmatch(rf".*{FEW}", ast.unparse(value)) is not None
        call = value.value if isinstance(value, ast.Subscript) and taken else value
        if not isinstance(call, ast.Call) or last_name(call.func) not in SORTS:
            continue
        if isinstance(node, ast.Assign) and not taken:
            name = rf"(?<![.\w]){re.escape(ast.unparse(node.targets[0]))}\b"
            reading = "\n".join(line.around)
            taken = 0 < len(re.findall(name, reading)) == len(re.findall(name + FEW, reading))
        if taken:
            of_tensors = any(name.startswith("torch.") and name.endswith(".argsort") for name in line.called)
            fewer = "torch.topk" if of_tensors else "numpy.argpartition"
            if last_name(call.func) == "sorted":
                fewer = "heapq.nlargest (nsmallest), or numpy.argpartition of one array,"
            yield f"It sorts everything for a few entries: {fewer} takes a fraction of the time."


def _permuted(line: _Line) -> Iterator[str]:
    for call, owner, _ in line.calls("choice"):
        given = {each.arg: each.value for each in call.keywords}
        if owner is None or ast.unparse(owner) not in ("np.random", "numpy.random"):
            continue
        if "p" in given:
            yield (
                "choice() checks and sums p of the whole population in each draw: make sums = numpy.cumsum(p) when the "
                "weights have changed, and draw with numpy.searchsorted(sums, generator.random(count) * sums[-1]) "
                "(it may draw one twice); where few weights change per step, keep them in a sum tree."
            )
        if _is(given.get("replace"), False):
            yield (
                "np.random.choice orders the whole population for each draw: make generator = np.random.default_rng() "
                "once, and use generator.choice(…, replace=False), which draws only what is taken."
            )
    for node in ast.walk(line.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and isinstance(node.value, ast.Call):
            name = last_name(node.value.func)
            if name in ("randperm", "permutation"):
                yield (
                    f"{name}() permutes everything for a few draws: draw only those, with generator.choice(n, count, "
                    "replace=False) of generator = np.random.default_rng(), or torch.randint where one may come twice."
                )


def _copied(line: _Line) -> Iterator[str]:
    for call, _, _ in line.calls("deepcopy"):
        whole = ast.unparse(call.args[0]) if call.args else ""
        if "state_dict()" in whole:
            yield (
                "Copy the state only when it is kept (a new best, every n-th step), and into the same tensors: "
                "kept[name].copy_(value) for each, under torch.no_grad()."
            )


def _unlogged(line: _Line) -> Iterator[str]:
    for call, owner, name in line.calls(*LEVELS):
        if owner is not None and UNLOGGED in line.kinds:
            logger = "logging.getLogger()" if ast.unparse(owner) == "logging" else _name(owner)
            level = _name(call.args[0]) if name == "log" and call.args else f"logging.{name.upper()}"
            yield (
                "The logger drops the message, but its arguments are computed: put "
                f"`if {logger}.isEnabledFor({level}):` in front of it."
            )


def _dates(line: _Line) -> Iterator[str]:
    for call, owner, _ in line.calls("strptime"):
        text = call.args[1].value if len(call.args) == 2 and isinstance(call.args[1], ast.Constant) else ""
        iso = isinstance(text, str) and ISO_8601.fullmatch(text) and owner and ast.unparse(owner).endswith("datetime")
        faster = "; datetime.fromisoformat reads this format some forty times as fast" if iso else ""
        yield f"Parse each text once, before training, and keep the numbers{faster}."


def _rows(line: _Line) -> Iterator[str]:
    if line.loads and any(line.calls("loads")):
        yield "Parse each row once, before training, and keep what is used of it in arrays, or store it in that form."


def _decoded(line: _Line) -> Iterator[str]:
    whole = "\n".join((line.text, *line.around))
    if line.loads and re.search(r"Image\.open\(", whole) and re.search(r"\.(?:resize|thumbnail)\(|Resize\(", whole):
        yield (
            "It decodes the whole image and keeps a small one. Store the images once in the size that training needs. "
            'Or call image.draft("RGB", (width, height)) right after Image.open: a JPEG is then decoded at a half, a '
            "quarter or an eighth of its size, and no smaller than that."
        )


def _tokens(line: _Line) -> Iterator[str]:
    for node in ast.walk(line.tree):
        turns = isinstance(node, ast.Call) and TOKENIZERS.fullmatch(ast.unparse(node.func))
        looks_up = isinstance(node, ast.Subscript) and re.search(VOCABULARY, ast.unparse(node.value), re.IGNORECASE)
        if line.loads and (turns or looks_up):
            yield (
                "Where the text of an item is always the same, turn it into numbers once, before training, keep those "
                "(one array), and let an item slice them."
            )


def _frame_rows(line: _Line) -> Iterator[str]:
    if not any(name.startswith("pandas.") for name in line.called):
        return
    one_row = any(name.startswith("pandas.core.series.") for name in line.called)  # as another line has taken it
    near = [tree for text in line.around if one_row and (tree := parsed(text)) is not None]
    for node in (node for tree in (line.tree, *near) for node in ast.walk(tree)):
        indexed = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value
        walked = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func
        if (indexed and indexed.attr in ("iloc", "loc")) or (walked and walked.attr in ("iterrows", "itertuples")):
            owner = indexed or walked
            whole = _name(owner.value) if owner else "frame"
            yield (
                "Each row of a data frame is made as an object of its own: take the columns as arrays once "
                f"({whole}[columns].to_numpy()), in __init__ or before the loop, and index those."
            )


def _viewed(line: _Line) -> Iterator[str]:
    trees = [tree for text in line.around if (tree := parsed(text)) is not None]
    bound = {
        ast.unparse(node.targets[0]): node.value for tree in trees for node in tree.body if isinstance(node, ast.Assign)
    }
    for call, owner, _ in line.calls("save"):
        if owner is None or ast.unparse(owner) != "torch" or not call.args:
            continue
        saved = call.args[0]
        parts = saved.values if isinstance(saved, ast.Dict) else saved.elts if isinstance(saved, ast.List) else [saved]
        for part in parts:
            value = bound.get(ast.unparse(part), part)
            if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
                whole, name = _name(value.value), _name(part)
                yield f"{name} is a view, and torch.save writes all of its tensor {whole}: save {name}.clone()."


WAYS: tuple[tuple[Callable[[_Line], Iterator[str]], frozenset[str]], ...] = (
    (_unlogged, frozenset()),
    (_first, frozenset({"insert", "pop"})),
    (_searched, frozenset()),
    (_place_searched, frozenset({"index"})),
    (_built, frozenset()),
    (_drawn, frozenset()),
    (_rewritten, frozenset()),
    (_added_text, TEXTS),
    (_longer, JOINS),
    (_best, SORTS),
    (_permuted, frozenset({"choice", "cumsum", "prod", "permutation", "randperm"})),  # choice is C, and calls two
    (_copied, frozenset({"deepcopy"})),
    (_dates, frozenset({"strptime", "_strptime_datetime", "_strptime"})),
    (_decoded, frozenset({"resize", "convert", "open", "load", "thumbnail", "decode"})),
    (_rows, frozenset({"loads"})),
    (_frame_rows, frozenset()),
    (_viewed, frozenset({"save"})),
    (_tokens, frozenset()),
)
"""Ways, of which the first sentence counts, and the last names of the functions that must take most of a line for each;
none where other evidence says that it is the cost."""

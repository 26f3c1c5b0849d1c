"""One name for one thing: no word that was given up returns, and no word is compared with a closed set it is not in."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args

from parsed import nodes_of, tree_of

from steptime.analysis.categories import Category, CategoryName
from steptime.analysis.lines import LineRole, LineRoleName
from steptime.analysis.op_cost.op_cost import Bound
from steptime.analysis.timeline import Phase, PhaseName

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = SOURCES + [
    path for folder in ("tests", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))
]
TEXTS = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
]
SUFFIXES = {".html", ".js", ".svg", ".md", ".css", ".txt"}
PAGES = [path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in SUFFIXES]

IN_NAMES = {
    word: new
    for words, new in (
        ("begin begins", "start"), ("stretch stretches", "interval"), ("told tell tells telling", "reported, notify"),
        ("said", "message, reported"), ("beside", "companion, alongside"), ("stand stands", "workspace"),
        ("lane lanes", "track, thread, worker"), ("keeper keepers", "holder, watchdog"), ("doubt doubts", "caveat"),
        ("wishes", "options"), ("lateness", "straggler, delay"), ("excerpt", "step view"), ("remedy remedies", "fix"),
        ("stake stakes", "savings"), ("regime regimes", "bottleneck"), ("ledger", "breakdown"), ("pace", "step timer"),
        ("watch watches", "observer, instrumentation"), ("optimiser optimisers", "optimizer"),
        ("disturbance disturbing disturbed", "background load, noisy"), ("account", "breakdown"), ("hunt", "search"),
        ("nest", "call tree, group"), ("floor", "lower bound"), ("shown", "reported"),
    )
    for word in words.split()
}  # fmt: skip
"""Parts of identifiers that were given up, and what is said instead."""
PAIRS_IN_NAMES = {
    ("matrix", "unit"): "tensor cores", ("matrix", "units"): "tensor cores", ("matrix", "product"): "matmul",
    ("number", "format"): "dtype", ("autocast", "format"): "dtype", ("product", "format"): "dtype",
    ("host", "time"): "python, cpu time", ("late", "rank"): "straggler", ("late", "ranks"): "straggler",
}  # fmt: skip
"""Parts that were given up only side by side: each alone has another meaning, too."""
IN_KEYS = IN_NAMES | {"lateness": "stragglers", "arm": "variant", "matrix": "tensor cores"}
"""The same for names in quotes: of rules, keys of documents, files, classes of pages."""
OTHERS_NAMES = {"on_train_begin", "noise_floor", "shown"}
"""Names of the field: callbacks of trainers, the level of noise; and a field of a published schema."""
OUR_FILES = {"watch"}
"""Modules of verbs: `steptime watch`."""
OTHERS_KEYS = OTHERS_NAMES | {
    "tell",
    "watch",
    "nothing-to-watch",
    "lane",
    "floor",
    "floor_divide",
    "matrix",
    "matrix_exp",
}
"""The same in quotes: file's `tell`, our verb `watch`, lanes of a PCI Express link, the matrix of a machine's peak."""
IN_PROSE = (
    (r"[Oo]ptimiser", "optimizer"),
    (r"\b[Bb]egins?\b(?! ?=)", "start"),
    (r"\b[Bb]eside\b(?= \w)", "next to"),
    (r"\b[Ll]ate ranks?\b", "straggler"),
    (r"\bidle stretch", "idle interval"),
    (r"\b(?:ms|µs|ns|[KMG]iB) a step\b(?! of\b)", "ms/step, per step"),
    (r"(?:\}|\b(?:ms|µs)) (?:an item|a batch)\b|\} idle a step\b|\btimes a (?:batch|forward)\b", "per item, per step"),
    (r"\b[Rr]emed(?:y|ies)\b", "fix"),
    (r"\b[Rr]egimes?\b", "bottleneck"),
    (r"\b[Ll]edger\b", "breakdown"),
    (r"\bat stake\b", "savings"),
    (r"\b[Mm]atrix (?:unit|product)s?\b", "Tensor Cores, matmul"),
    (r"\b(?:[Nn]umber|16-bit) formats?\b", "dtype"),
    (r"(?:\b(?:b?float(?:16|32|64)|TF32|16-bit|batched)|\bname\}) products?\b", "matmul"),
    (r"\b[Mm]atrix rates?\b", "matmul rates"),
    (r"\bhost time\b", "Python (category), CPU time"),
    (r"\b[Ll]aunch-bound\b", "overhead-bound"),
    (r"\b[Dd]oubts?\b", "caveat, uncertain"),
    (r"\b(?:is|are|was|were|be|been)(?: not)? (?:told|said)\b", "reported, distinguished"),
    (r"\b(?:as|steps?) disturbed\b|\bset aside\b", "noisy, excluded"),
    (r"\b[Tt]he host (?:launches|dispatches|idles|waits)\b", "the CPU"),
    (r"\bhunt", "search"),
    (r"\b[Cc]eilings?\b", "peak"),
    (r"\bto be to be\b|\bThe savings is\b", "English"),
)
"""Words of docstrings, comments, messages, pages and docs that were given up, and what is said instead."""
CLOSED_SETS = {"role": (LineRoleName,), "phase": (PhaseName,), "bound": (Bound,), "category": (CategoryName, PhaseName)}
"""By the name of the field that holds one of them: the sets; "" is in each, for none."""


def words_of(name: str) -> list[str]:
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that a file gives, and their lines."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def test_no_name_that_was_given_up_returns() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}: say {IN_NAMES[word]}"
        for path in SOURCES
        for name, line in (*names_in(tree_of(path)), *((each, 0) for each in {path.stem, path.parent.name} - OUR_FILES))
        if name not in OTHERS_NAMES
        for word in words_of(name)
        if word in IN_NAMES
    ]
    found += [
        f"{path.relative_to(ROOT)}:{line} {name}: say {PAIRS_IN_NAMES[pair]}"
        for path in SOURCES
        for name, line in names_in(tree_of(path))
        for pair in pairwise(words_of(name))
        if pair in PAIRS_IN_NAMES
    ]
    assert found == []


def prose_in(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, and strings of more than one word, each as one line: docstrings and messages. Their first lines."""
    text = path.read_text(encoding="utf-8")
    if not any(re.search(pattern, " ".join(text.split())) for pattern, _ in IN_PROSE):
        return  # nothing to take apart
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT or (token.type != tokenize.NAME and " " in token.string.strip()):
                yield token.start[0], " ".join(token.string.split())


def given_up(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for number, line in lines:
        for pattern, new in IN_PROSE:
            if match := re.search(pattern, line):
                yield f"{path.relative_to(ROOT)}:{number} {match[0]!r}: say {new}"


NAME_IN_QUOTES = re.compile(r"""(["'])([a-z][a-z0-9]*(?:[-_.][a-z0-9]+)*)[-_.]?\1""")


def test_no_name_in_quotes_that_was_given_up_returns() -> None:
    """Rules, keys of documents, files of a recording, classes and identities of pages."""
    found = [
        f"{path.relative_to(ROOT)} {name!r}: say {IN_KEYS[word]}"
        for path in (*SOURCES, *PAGES)
        if path.suffix != ".md"
        for _, name in NAME_IN_QUOTES.findall(path.read_text(encoding="utf-8"))
        if name not in OTHERS_KEYS
        for word in re.split(r"[-_.]", name)
        if word in IN_KEYS
    ]
    assert found == []


def test_no_word_that_was_given_up_returns_to_the_source() -> None:
    assert [each for path in SOURCES for each in given_up(path, prose_in(path))] == []


def test_no_word_that_was_given_up_returns_to_pages_and_docs() -> None:
    found = list[str]()
    for path in (*TEXTS, *PAGES):
        lines = path.read_text(encoding="utf-8").split("\n")
        found += given_up(path, enumerate(lines, 1))
    assert found == []


def test_closed_sets_are_those_of_the_enums() -> None:
    assert (
        get_args(CategoryName)
        == tuple(each.title for each in Category)
        == tuple(each.name.lower() for each in Category)
    )
    assert get_args(PhaseName) == tuple(each.title for each in Phase) == tuple(each.name.lower() for each in Phase)
    assert get_args(LineRoleName) == tuple(each.title for each in LineRole)


def strings_of(node: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Strings in a literal, a tuple or a set of them, and in constants of the file that are named in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.Set | ast.List):
        for each in node.elts:
            yield from strings_of(each, constants)
    elif isinstance(node, ast.Starred):
        yield from strings_of(node.value, constants)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from strings_of(constants[node.id], {name: each for name, each in constants.items() if name != node.id})


def called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


COMPARED = re.compile(rf"\.(?:{'|'.join(CLOSED_SETS)})\b|(?:Use|inding)\(")
"""A file without has nothing to look at."""


def compared(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, field and word: what a file compares a field of a closed set with, and what it makes one of."""
    constants = {
        target.id: node.value
        for node in tree.body if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    for node in nodes_of(tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr in CLOSED_SETS:
            for other in node.comparators:
                yield from ((node.lineno, node.left.attr, word) for word in strings_of(other, constants))
        elif isinstance(node, ast.Call) and called(node).endswith(("Use", "finding", "Finding")):
            for keyword in node.keywords:
                if keyword.arg in CLOSED_SETS:
                    words = strings_of(keyword.value, constants)
                    yield from ((node.lineno, keyword.arg, word) for word in words)


def test_what_is_compared_with_a_closed_set_is_in_it() -> None:
    """mypy sees `==`; `in` and plug-ins' examples it does not."""
    paths = [path for path in CODE if "nan" not in path.parts and "numerics" not in path.parts]
    texts = {path: tree_of(path) for path in paths if COMPARED.search(path.read_text(encoding="utf-8"))}
    plugins = ROOT / "docs" / "plugins.md"
    blocks = re.findall(r"^```python\n(.*?)^```", plugins.read_text(encoding="utf-8"), re.M | re.S)
    texts |= {plugins / str(number): ast.parse(block) for number, block in enumerate(blocks)}
    seen, found = 0, []
    for path, tree in texts.items():
        for line, field, word in compared(tree):
            seen += 1
            if word and not any(word in get_args(each) for each in CLOSED_SETS[field]):
                found.append(f"{path.relative_to(ROOT)}:{line} {field} is never {word!r}")
    assert found == []
    assert seen > 100

"""Composes a training job from independent parts: model, loop, fault, place, dose and length, all drawn from a seed."""

from __future__ import annotations

import ast
import importlib.util
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clinic.parts.faults import FAULTS, HOST_WORK, INPUT, LOADED, STRUCTURE, Fault
from benchmarks.clinic.parts.loops import BY_BATCH, BY_SAMPLE, HF_TRAINER, LOOPS, RANKS, ROLLOUTS, Loop
from benchmarks.clinic.parts.models import MODELS, Model

MARK = "  #!"
EMPTY = "# nothing here"
STEPS = ((900, 3000), (150, 500), (20, 60))
"""Of jobs with steps of about 2, 15 and 80 ms: thousands of short ones, or a few long ones."""
NO_FAULT, TWO_FAULTS = 0.1, 0.15
IN_A_FUNCTION = 0.4
"""Of host work: it is in a function of a module of its own, which the place calls."""
STRUCTURE_FROM, STRUCTURE_OFTEN = 10_000, 6
"""Seed from which on faults of structure are drawn, too, so that an older seed stays the job that it was; and times as
often as host work: about every third fault."""
BETWEEN_RANKS_OFTEN = 12
"""Times as often as host work: only one loop in thirteen has ranks."""
PARTS = {
    **dict.fromkeys((*LOADED, "loader"), "input"), "hook": "model", "optimizer": "optimizer", "setting": "model",
}  # fmt: skip
"""Of the step; other places are next to input, model and optimizer, in the loop."""
HEADER = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler
"""
HEALTHY_OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)"


@dataclass(frozen=True)
class Planted:
    """A fault at a place. wanted: share of the step that it shall take."""

    fault: Fault
    place: str
    wanted: float
    in_a_function: bool

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of findings that say it."""
        return (*self.fault.rules, *(INPUT if self.place in LOADED else ()))

    @property
    def part(self) -> str:
        """Of the step that it is in, as a tool says it that names no line."""
        return PARTS.get(self.place, "loop")


@dataclass(frozen=True)
class Design:
    """What a seed has drawn."""

    seed: int
    loop: Loop
    model: Model
    size: int
    steps: int
    one_file: bool
    planted: tuple[Planted, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """What it needs and this environment lacks."""
        return tuple(name for name in self.loop.needs if importlib.util.find_spec(name) is None)


@dataclass(frozen=True)
class Written:
    """A job as files. culprits: for each planted fault that is in it, its (file, line)s."""

    files: dict[str, str]
    culprits: tuple[frozenset[tuple[str, int]], ...]

    def write(self, folder: Path) -> Path:
        """Writes the files; the path of the one to run."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return folder / "train.py"


def design(seed: int) -> Design:
    """Draws a job. The same seed is the same job, wherever it is drawn."""
    draw = random.Random(seed)
    loop, model, size = draw.choice(LOOPS), draw.choice(MODELS), draw.randrange(3)
    steps = draw.randint(*STEPS[size]) if loop is not ROLLOUTS else draw.randint(60, 400)
    count = draw.choices((0, 1, 2), (NO_FAULT, 1 - NO_FAULT - TWO_FAULTS, TWO_FAULTS))[0]
    planted: list[Planted] = []
    for _ in range(count):
        fault, place = draw.choice(list(fitting(loop, planted, structure=seed >= STRUCTURE_FROM)))
        wanted = draw.uniform(0.1, 0.9) / count
        planted.append(Planted(fault, place, wanted, fault in HOST_WORK and draw.random() < IN_A_FUNCTION))
    return Design(seed, loop, model, size, steps, draw.random() < 0.5, tuple(planted))


def fitting(loop: Loop, planted: Sequence[Planted] = (), *, structure: bool = False) -> Iterator[tuple[Fault, str]]:
    """The faults that can be in a loop next to those that do, each as often as it has places there; host work at
    half of the chance. None is there twice: both would use one table."""
    taken, there = {each.place for each in planted}, {each.fault for each in planted}
    for fault in (*FAULTS, *(STRUCTURE if structure else ())):
        if fault in there:
            continue
        if (fault.ranks == RANKS.ranks and loop is not RANKS) or (fault.batch and loop is ROLLOUTS):
            continue
        for place in fault.places:
            if place in loop.places and place not in taken:
                often = 1 if fault in HOST_WORK else BETWEEN_RANKS_OFTEN if fault.ranks > 1 else 2
                often = STRUCTURE_OFTEN if fault in STRUCTURE else often
                yield from ((fault, place) for _ in range(often))


def written(job: Design, amounts: Sequence[int]) -> Written:
    """The job with the planted faults at these amounts; the twin of a fault where its amount is 0."""
    at: dict[str, list[str]] = {"optimizer": [HEALTHY_OPTIMIZER], "setting": ["torch.manual_seed(0)"]}
    library: list[str] = []
    for number, (planted, amount) in enumerate(zip(job.planted, amounts, strict=True)):
        lines, tables = _lines(planted, amount, f"!{number}")
        library.append(tables)
        if planted.in_a_function:
            body = "\n".join(f"    {line}" for line in lines)
            library.append(f"\n\ndef {_function(planted)}(key):\n{body}\n")
            lines = [f"{_function(planted)}(key)" + (f"{MARK}{number}" if amount else "")]
        at[planted.place] = lines if planted.place != "setting" else at["setting"] + lines
    sections = [("features.py", "\n".join(library)), *job.loop.sections]
    filled = [(name, _fill(job, text, at)) for name, text in sections if text.strip()]
    return _as_files(filled, job.one_file, len(job.planted))


def _function(planted: Planted) -> str:
    return "use_" + planted.fault.name.replace(" ", "_")


def _lines(planted: Planted, amount: int, mark: str) -> tuple[list[str], str]:
    """Lines of the fault or its twin, and what both have at the top of a module. The tables of a twin are as large."""
    fault = planted.fault
    if planted.place == "loader":
        return [f"{fault.faulty})  #{mark}" if amount else ")"], ""
    text = fault.faulty if amount else (HEALTHY_OPTIMIZER if planted.place == "optimizer" else fault.twin)
    size = str(max(amount, 1))
    marked = text.strip("\n").replace("#!", f"#{mark}").replace("AMOUNT", size)
    setup = fault.setup.replace("AMOUNT", size)
    return marked.split("\n"), (setup if amount else setup.replace("#!", "")).replace("#!", f"#{mark}")


def _fill(job: Design, text: str, at: dict[str, list[str]]) -> str:
    """A section with its places filled; a place without anything vanishes."""
    hidden, batch = job.model.sizes[job.size]
    if "hook" not in at:
        text = re.sub(r"\ndef watch\(module.*?register_forward_hook\(watch\)\n", "\n", text, flags=re.DOTALL)
    data = BY_SAMPLE if any(each.place == "item" for each in job.planted) else BY_BATCH
    if job.loop is HF_TRAINER:
        data = data.replace("return x, y\n", 'return {"x": x, "labels": y}\n')
    words = {
        "<DATASET>": data, "<MODEL>": job.model.code, "<LOSS>": job.model.loss, "<INPUTS>": job.model.inputs,
        "<TARGETS>": job.model.targets, "<HOOKED>": job.model.hooked, "<BATCH>": str(batch), "<HIDDEN>": str(hidden),
        "<COUNT>": str(24 * batch), "<STEPS>": str(job.steps), "<SEED>": str(job.seed % 1000),
        "<PROBE>": "Samples(2).x.float()", "<WORKERS>": "".join(at.get("loader", ")")),
    }  # fmt: skip
    for name, value in words.items():
        text = text.replace(name, value)
    text = text.replace("HIDDEN", str(hidden))
    keyed = any("key" in line for filling in at.values() for line in filling)
    lines: list[str] = []
    for line in text.split("\n"):
        place = line.strip()
        if not place.startswith("@"):
            lines.append(line)
            continue
        indent = " " * _indent(line)
        filling = [indent + each if each.strip() else "" for each in at.get(place[1:], []) if each.strip() != "pass"]
        if not filling and not keyed and lines and lines[-1].lstrip().startswith("key = "):
            lines.pop()
        lines += filling or [f"{indent}pass  {EMPTY}"]
    return "\n".join(_needed(lines))


def _needed(lines: Sequence[str]) -> Iterator[str]:
    """The lines without the fillers of places that a body does not need."""
    for number, line in enumerate(lines):
        if line.endswith(EMPTY):
            before = next(each for each in reversed(lines[:number]) if each.strip())
            after = next((each for each in lines[number + 1 :] if each.strip()), "")
            if not before.endswith(":") or _indent(after) >= _indent(line):
                continue
            line = line.removesuffix(f"  {EMPTY}")
        yield line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _as_files(sections: list[tuple[str, str]], one_file: bool, count: int) -> Written:
    """One script, or a module for each section that imports what it uses of the earlier ones."""
    if one_file:
        sections = [("train.py", "\n\n".join(text for _, text in sections))]
    texts: dict[str, str] = {}
    defined: dict[str, set[str]] = {}
    imported: dict[str, str] = {}
    for name, text in sections:
        own, text = _hoisted(text)
        tree = ast.parse(text)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imported |= {each: line for line in own for each in _bound(line)}
        own = sorted({*own, *(line for each, line in imported.items() if each in used)})
        header = "".join(f"{line}\n" for line in own) + _used_imports(used)
        for earlier, names in defined.items():
            if wanted := sorted(used & names):
                header += f"from {earlier.removesuffix('.py')} import {', '.join(wanted)}\n"
        defined[name] = _top_names(tree)
        texts[name] = _tidy(header + "\n" + text)
    culprits = tuple(
        frozenset(
            (name, number)
            for name, text in texts.items()
            for number, line in enumerate(text.split("\n"), 1)
            if line.endswith(f"{MARK}{fault}")
        )
        for fault in range(count)
    )
    return Written({name: re.sub(r"  #!\d+$", "", text, flags=re.MULTILINE) for name, text in texts.items()}, culprits)


def _hoisted(text: str) -> tuple[list[str], str]:
    """The imports at the top level of a text, each once, and the text without them."""
    lines = text.split("\n")
    imports = [node.lineno - 1 for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept = [line for number, line in enumerate(lines) if number not in imports]
    return sorted({lines[number] for number in imports}), "\n".join(kept)


def _bound(line: str) -> Iterator[str]:
    """The names that an import binds."""
    for node in ast.walk(ast.parse(line)):
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _used_imports(used: set[str]) -> str:
    kept = []
    for node in ast.parse(HEADER).body:
        assert isinstance(node, ast.Import | ast.ImportFrom)
        names = [each for each in node.names if (each.asname or each.name).split(".")[0] in used]
        if names:
            node.names = names
            kept.append(ast.unparse(node))
    return "\n".join(kept) + "\n"


def _top_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names


def _tidy(text: str) -> str:
    """No more than two blank lines in a row."""
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


__all__ = ["Design", "Planted", "Written", "design", "written"]

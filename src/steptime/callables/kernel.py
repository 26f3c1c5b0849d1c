"""The hottest chain of pointwise operators and reductions of a job, as one function, and what Inductor makes of it.

A chain is found in a recorded trace, which has shapes, dtypes and lines of operators, but not which tensor goes where.
Each operator works on the result of the one before it. Another operand of that shape is the chain's own first input (in
backward: a tensor of its own). A scalar whose value is not recorded is 0.5. Both change no time.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from steptime.advice.evidence import Case
from steptime.advice.kernels import POINTWISE, plain_name
from steptime.advice.line_evidence import sampled_lines
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.op_cost.call import ELEMENT_BYTES, SCALAR_TYPES, Call, Tensor, parse
from steptime.analysis.operators import operations_on, operator_calls
from steptime.analysis.recorded_breakdown import breakdown_of_process
from steptime.analysis.step_context import StepContext
from steptime.analysis.timeline import Phase
from steptime.answer.printable import one_line
from steptime.arrays import Float64, Int32, Int64
from steptime.callables.bench import Bench, BenchOptions, Contender, bench
from steptime.callables.triton_skeleton import DTYPES, NoSkeletonError, Statement, skeleton
from steptime.errors import NothingMeasuredError
from steptime.intervals import contains, union
from steptime.launcher.launch import WRITTEN_BY_COMPILER
from steptime.machine.machine import Machine
from steptime.quantities import SourceLine, format_bytes
from steptime.recording.load import load
from steptime.trace.call_tree import ROOT, nearest_ancestor
from steptime.trace.compile_logs import CompiledKernel, read_compile_logs
from steptime.trace.table import ABSENT
from steptime.trace.vendors import of_symbols

REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "_softmax", "_log_softmax", "_softmax_backward_data",
                        "_log_softmax_backward_data"})  # fmt: skip
KEEP_SHAPE = frozenset(name for name in REDUCTIONS if "softmax" in name)
CASTS = frozenset({"to", "_to_copy"})
LEFT_OUT = frozenset({"_fused_dropout", "bernoulli", "dropout", "native_dropout", "fill", "zero"})
"""Random numbers, which no second kernel repeats, and fills, which read nothing."""
LINKS = (POINTWISE - LEFT_OUT) | REDUCTIONS | CASTS
KEYWORDS = {("add", 2): "alpha", ("sub", 2): "alpha", ("rsub", 2): "alpha", ("div", 2): "rounding_mode",
            ("gelu", 1): "approximate", ("gelu_backward", 2): "approximate"}  # fmt: skip
"""Arguments of ATen's operators that have to be named, by position."""
DTYPE_ARGUMENTS = {("sum", 3), ("mean", 3), ("_softmax_backward_data", 3), ("_log_softmax_backward_data", 3)}
"""Arguments that are dtypes, which a trace has as numbers."""
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "logical_and"})
CAST_CALLS = ("to", "type", "float", "half", "bfloat16", "double")
SYMBOLS = {"mul": "*", "add": "+", "sub": "-", "rsub": "-", "neg": "-", "div": "/", "pow": "**", "eq": "==", "ne": "!=",
           "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip
LITERAL = re.compile(r"-?\d{1,20}(\.\d{1,20})?(e[-+]?\d{1,3})?|True|False|\[(-?\d{1,10}(, -?\d{1,10})*)?\]")
WORDS = re.compile(r"\w{1,20}")
INFINITE = re.compile(r"(-?)inf")
IMPORTS = """import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # without a GPU: chain runs, fused does not
    triton = None
"""
SHORTEST = 2
FIRST_LINE = 7
"""Line of a chain's source with its first operator."""
COPIES_HELD = 12
"""Times the inputs of a chain that timing holds at once: copies for each mode, of float64 for the parity."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """Operator of a chain. name: plain ATen name. call: its tensors and printed arguments. place: the user's line."""

    name: str
    call: Call
    place: SourceLine | None = None

    @property
    def kept(self) -> bool:
        """True if reduced dimensions stay, with one element."""
        return self.name in KEEP_SHAPE or (len(self.call.texts) > 2 and self.call.texts[2] == "True")

    @property
    def over(self) -> tuple[int, ...]:
        """Dimensions that the operator reduces over: those in its printed arguments, else all."""
        if self.name not in REDUCTIONS:
            return ()
        sides, at = len(self.call.all_tensors[0].shape), 2 if self.name.endswith("backward_data") else 1
        dims = [int(each) for each in re.findall(r"-?\d+", self.call.texts[at])] if len(self.call.texts) > at else []
        return tuple(sorted({each % sides for each in dims})) if sides and dims else tuple(range(sides))

    @property
    def result(self) -> Tensor:
        """Shape and dtype of the result. Raises ValueError if they do not follow from the arguments."""
        tensors = self.call.all_tensors
        kind = max(tensors, key=lambda each: (bool(each.shape), each.item)).type
        kind = "bool" if self.name in COMPARISONS else kind
        if self.name in CASTS:
            kind = SCALAR_TYPES.get(int(self.call.texts[1] or -1), "") if len(self.call.texts) > 1 else ""
        if kind not in DTYPES:
            raise ValueError("no dtype of a chain")
        shape = np.broadcast_shapes(*(each.shape for each in tensors))
        if self.name in REDUCTIONS - KEEP_SHAPE:
            kept, over = self.kept, self.over
            shape = tuple(1 if at in over else side for at, side in enumerate(shape) if kept or at not in over)
        return Tensor(tuple(map(int, shape)), kind, ELEMENT_BYTES[kind])


@dataclass(frozen=True, slots=True)
class OperatorChain:
    """Chain of operators, each of which works on the result of the one before. backward: True if it runs in the
    backward pass. calls: number of such chains per step; duration: time of all of them, ns per step."""

    links: tuple[ChainLink, ...]
    backward: bool
    calls: float = 0.0
    duration: float = 0.0

    @property
    def moved(self) -> int:
        """Bytes that the operators read and write one after the other."""
        return sum(each.call.read + each.result.bytes for each in self.links)

    @property
    def coarsest(self) -> str:
        """Floating dtype with the fewest digits among the chain's tensors."""
        used = {DTYPES[each.type] for link in self.links for each in (*link.call.all_tensors, link.result)}
        return next((each for each in ("bfloat16", "float16", "float32") if each in used), "float64")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that the chain takes from outside, in the order of its parameters."""
        return _written(self)[1]

    @property
    def source(self) -> str:
        """Text of a Python file with the chain as a function, and its inputs as another one."""
        statements, inputs = _written(self)
        body = (f"v{number} = {_called(each)}{each.remark}" for number, each in enumerate(statements, 1))
        names = ", ".join(f"x{number}" for number in range(len(inputs)))
        made = ", ".join(_random(each) for each in inputs)
        return "\n".join((
            "import torch", "", "aten = torch.ops.aten", "", "", f"def chain({names}):",
            *(f"    {text}" for text in body), f"    return v{len(self.links)}", "", "",
            "def inputs():", f"    return ({made},)", "",
        ))  # fmt: skip

    def with_skeleton(self) -> str:
        """Text of `source` with a kernel in `triton.language` for the whole chain. Raises NoSkeletonError."""
        return self.source.replace("import torch\n", IMPORTS, 1) + skeleton(*_written(self))

    def goes_on_with(self, link: ChainLink) -> bool:
        """True if an operator can take the result of the chain's last one."""
        return not self.links or any(_alike(each, self.links[-1].result) for each in link.call.all_tensors)

    def places_of(self, lines: Sequence[SourceLine]) -> tuple[SourceLine, ...]:
        """User's lines that correspond to lines of `source`."""
        known = (self.links[each.line - FIRST_LINE].place for each in lines
                 if 0 <= each.line - FIRST_LINE < len(self.links))  # fmt: skip
        return tuple(dict.fromkeys(filter(None, known)))


def _random(tensor: Tensor) -> str:
    shape, name = list(tensor.shape), DTYPES[tensor.type]
    return f"torch.rand({shape}) > 0.5" if name == "bool" else f"(torch.rand({shape}) + 0.5).to(torch.{name})"


def _written(chain: OperatorChain) -> tuple[list[Statement], tuple[Tensor, ...]]:
    """(a statement for each operator, tensors from outside). Raises ValueError for an argument that is no literal."""
    inputs, statements, last = list[Tensor](), list[Statement](), None
    for number, link in enumerate(chain.links, 1):
        words = list[str]()
        for own, text in zip(link.call.tensors, link.call.texts, strict=True):
            previous = f"v{number - 1}"
            if not own or not own[0].shape:
                words.append("0.5" if own else _literal(link.name, len(words), text))
            elif last is not None and previous not in words and _alike(own[0], last):
                words.append(previous)
            elif inputs and not chain.backward and _alike(own[0], inputs[0]):
                words.append("x0")
            else:
                words.append(f"x{len(inputs)}")
                inputs.append(own[0])
        last = link.result
        while words[-1] == "None":
            words.pop()
        at = "" if link.place is None else f"  # {Path(link.place.file).name}:{link.place.line}  {link.place.text[:80]}"
        statements.append(
            Statement(link.name, tuple(words), last, link.over, link.kept, remark=one_line(at) and "  " + one_line(at))
        )
    return statements, tuple(inputs)


def _called(statement: Statement) -> str:
    if statement.name in CASTS:
        return f"{statement.words[0]}.to(torch.{DTYPES[statement.result.type]})"
    return f"aten.{statement.name}({', '.join(statement.words)})"


def _literal(name: str, at: int, text: str) -> str:
    """Python of a printed argument. Raises ValueError for any other text."""
    if not text:
        return "None"
    keyword = f"{KEYWORDS[name, at]}=" if (name, at) in KEYWORDS else ""
    if (name, at) in DTYPE_ARGUMENTS:
        return f"torch.{DTYPES[SCALAR_TYPES[int(text)]]}"
    if infinite := INFINITE.fullmatch(text):
        return f'{keyword}float("{infinite[1]}inf")'
    if LITERAL.fullmatch(text):
        return f"{keyword}{text}"
    if keyword and WORDS.fullmatch(text.strip('"')):
        return f'{keyword}"{text.strip(chr(34))}"'
    raise ValueError("no literal")


def _alike(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.type == two.type


def chains(steps: StepContext) -> tuple[OperatorChain, ...]:
    """Chains of operators in a window's steps, the hottest first, without places."""
    found: dict[OperatorChain, list[float]] = defaultdict(list)
    for chain, spent in _runs(steps):
        found[chain].append(spent)
    several = (
        replace(each, calls=len(spent) / len(steps), duration=sum(spent) / len(steps))
        for each, spent in found.items()
        if len(each.links) >= SHORTEST and _complete(each)
    )
    return tuple(sorted(several, key=lambda each: -each.duration))


def _complete(chain: OperatorChain) -> bool:
    try:
        return bool(chain.source)
    except (ValueError, LookupError):
        return False


def _runs(steps: StepContext) -> Iterator[tuple[OperatorChain, float]]:
    """Yields (chain, ns) of operators in a row on one thread, each of which takes what the one before may have made."""
    trace = steps.trace
    events, inside = trace.events, union(steps.boundaries[:, 0], steps.boundaries[:, 1])
    linking = of_symbols(trace, lambda symbol: symbol.startswith("aten::") and plain_name(symbol) in LINKS)
    for track in steps.tracks:
        operations = operations_on(trace, track)
        rows, own = operations.rows, linking[events.name[operations.rows]]
        marked = own | operations.computing
        outermost = marked & (np.append(nearest_ancestor(operations.parent, marked), ROOT)[operations.parent] == ROOT)
        at = np.flatnonzero(outermost & contains(inside, events.start[rows]))
        phases = [_during(steps, each, events.start[rows[at]]) for each in (Phase.OPTIMIZER, Phase.BACKWARD)]
        spent = _spent(steps, rows, nearest_ancestor(operations.parent, outermost))
        run, total = OperatorChain((), False), 0.0
        for place, updating, backward in zip(at.tolist(), *phases, strict=True):
            link = _link(steps, int(rows[place])) if own[place] and not updating else None
            if link is not None and link.name in CASTS and _alike(link.result, link.call.all_tensors[0]):
                continue
            if link is None or backward != run.backward or not run.goes_on_with(link):
                yield run, total
                run, total = OperatorChain((), backward), 0.0
            if link is not None:
                run, total = replace(run, links=(*run.links, link)), total + float(spent[place])
        yield run, total


def _during(steps: StepContext, phase: Phase, times: Int64) -> list[bool]:
    ranges = steps.phases.get(phase)
    return contains(ranges, times).tolist() if ranges is not None else [False] * len(times)


def _spent(steps: StepContext, rows: Int32, owner: Int32) -> Float64:
    """ns of each operator with those inside it: of its kernels where a device ran them."""
    if not steps.on_device:
        return steps.trace.events.duration[rows].astype(np.float64)
    calls, found = operator_calls(steps), np.zeros(len(rows))
    at = {row: place for place, row in enumerate(rows.tolist())}
    for row, duration in zip(calls.rows.tolist(), calls.duration.tolist(), strict=True):
        if row in at and owner[at[row]] != ROOT:
            found[owner[at[row]]] += duration
    return found


def _link(steps: StepContext, row: int) -> ChainLink | None:
    """Operator of a row as a link; None if its arguments were not recorded, or are none of a chain."""
    trace, events = steps.trace, steps.trace.events
    shapes, dtypes, inputs = (
        "" if (at := int(column[row])) == ABSENT else texts[at]
        for column, texts in ((events.shapes, trace.shapes), (events.dtypes, trace.dtypes),
                              (events.inputs, trace.inputs))
    )  # fmt: skip
    name = plain_name(trace.symbols[events.name[row]])
    try:
        call = parse(shapes, dtypes, inputs)
        call = replace(call, texts=call.texts or ("",) * len(call.tensors))
        link = ChainLink(name, call)
        usable = any(each.elements > 1 for each in call.all_tensors) and link.result.elements >= 1
        usable &= len(call.texts) == len(call.tensors) and all(each.type in DTYPES for each in call.all_tensors)
        return link if usable else None
    except (ValueError, TypeError, LookupError):
        return None


def hottest(recording: str, case: Case) -> OperatorChain:
    """Hottest chain of a recording, with the user's lines. Raises NothingMeasuredError if it has none."""
    processes = load(Path(recording)).processes
    windows = (breakdown_of_process(process, lay_out_whole(process)).profiled for process in processes)
    found = [chain for window in windows if window is not None for chain in chains(window)[:1]]
    if not found:
        raise NothingMeasuredError(
            "no-chain",
            f"{recording} has no two pointwise operators or reductions in a row with known shapes. Compiled code shows "
            "none: steptime run --explain-compile has its kernels. Else profile the job: steptime run -- COMMAND",
        )
    return placed(max(found, key=lambda each: each.duration), case)


def placed(chain: OperatorChain, case: Case) -> OperatorChain:
    """Chain with the user's lines. A trace knows an operator's function; its line is one that spells the operator.
    Among several, lines of one function are taken that are in the order of the operators, and closest together."""
    use_of = {(plain_name(use.name), use.phase == "backward"): use for use in case.operators}
    uses = [use_of.get((link.name, chain.backward)) for link in chain.links]
    functions = [use.source if use is not None else None for use in uses]
    names = [link.name for link in chain.links][:: -1 if chain.backward else 1]
    best: list[SourceLine | None] = [None] * len(names)
    for function in dict.fromkeys(filter(None, functions)):
        lines = sorted(sampled_lines(case.paths, function), key=lambda line: line.line)
        spelled = [[line for line in lines if _spells(line.text, name)] for name in names]
        starts = sorted({line.line for each in spelled for line in each})
        best = max((best, *(_in_order(spelled, start) for start in starts)), key=_quality)
    places = functions if not any(best) else best[::-1] if chain.backward else best
    return replace(
        chain, links=tuple(replace(link, place=line) for link, line in zip(chain.links, places, strict=True))
    )


def _spells(text: str, name: str) -> bool:
    plain = name.removesuffix("_data").removesuffix("_backward").lstrip("_")
    called = "|".join(CAST_CALLS if name in CASTS else (plain,))
    return bool(re.search(rf"\b({called})_?\(", text)) or SYMBOLS.get(plain, "\0") in text


def _in_order(spelled: Sequence[Sequence[SourceLine]], start: int) -> list[SourceLine | None]:
    """First line for each operator that is not before the last one's."""
    found = list[SourceLine | None]()
    for lines in spelled:
        line = next((each for each in lines if each.line >= start), None)
        start = line.line if line is not None else start
        found.append(line)
    return found


def _quality(lines: Sequence[SourceLine | None]) -> tuple[int, int]:
    known = [each.line for each in lines if each is not None]
    return len(known), min(known, default=0) - max(known, default=0)


@dataclass(frozen=True, slots=True)
class KernelStudy:
    """Chain or function, eager and as Inductor compiles it. of: recording or place. chain: None for a function of the
    user's. kernels: kernels that Inductor generated; assembly: name and text of the PTX of each, on a device. machine:
    machine whose copy rate is the bound; None if never measured."""

    of: str
    chain: OperatorChain | None
    bench: Bench
    kernels: tuple[CompiledKernel, ...]
    assembly: tuple[tuple[str, str], ...] = ()
    machine: Machine | None = None

    @property
    def file(self) -> tuple[str, str]:
        """(Python text of the chain, reason why it has no kernel in `triton.language`); ("", "") without a chain. The
        text has such a kernel, as `fused`, if Inductor breaks the chain."""
        if self.chain is None:
            return "", ""
        if len(self.kernels) < SHORTEST:
            return self.chain.source, "Inductor makes one kernel of it: a kernel by hand moves no fewer bytes."
        try:
            return self.chain.with_skeleton(), ""
        except NoSkeletonError as error:
            return self.chain.source, f"No kernel of one piece is written for it: {error}."

    @property
    def eager(self) -> Contender:
        return self.bench.contenders[0]

    @property
    def fused(self) -> Contender:
        return self.bench.contenders[1]

    @property
    def copy_rate(self) -> float | None:
        """Rate of a copy on this machine, B/s."""
        return self.machine.copy.value if self.machine is not None and self.machine.copy is not None else None

    @property
    def least(self) -> float | None:
        """Time of a copy of the bytes in the fused kernel's inputs and results, ns."""
        return self.fused.bytes / self.copy_rate * 1e9 if self.copy_rate and self.fused.bytes else None


def study(
    of: str, options: BenchOptions, chain: OperatorChain | None, executable: str, machines: Sequence[Machine],
    notify: Callable[[str], None],
) -> KernelStudy:  # fmt: skip
    """Times a function eager and compiled, and reads the generated code. Raises NothingMeasuredError."""
    with tempfile.TemporaryDirectory(prefix="steptime-kernel-") as folder:
        cache, logs = Path(folder) / "cache", Path(folder) / "logs"
        if chain is not None:
            _check_room(chain)
            file = Path(folder) / "chain.py"
            file.write_text(chain.source, encoding="utf-8")
            options = replace(options, callables=(f"{file}:chain",), inputs=f"{file}:inputs",
                              coarsest=chain.coarsest)  # fmt: skip
        options = replace(options, modes=("eager", "compile"))
        own = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCH_TRACE": str(logs), **WRITTEN_BY_COMPILER}
        found = bench(options, executable, machines, notify, own)
        if any(each.time is None for each in found.contenders) or len(found.contenders) < 2:
            failed = [each.sentence for each in found.contenders] + [each.failed for each in found.settings]
            raise NothingMeasuredError(
                "bench-failed", f"{of} cannot be timed: {next(filter(None, failed), 'no input')}."
            )
        kernels = tuple({each.code: each for each in read_compile_logs(logs).kernels}.values())
        texts = [(each.stem, each.read_text(encoding="utf-8", errors="replace")) for each in cache.rglob("*.ptx")]
        if chain is not None:
            kernels = tuple(replace(each, lines=chain.places_of(each.lines)) for each in kernels)
            found = replace(found, options=replace(found.options, callables=("chain",), inputs=""))
    own_machine = next((each for each in machines if each.device == found.device), None)  # even one under load
    return KernelStudy(of, chain, found, kernels, tuple(texts), found.machine or own_machine)


def _check_room(chain: OperatorChain) -> None:
    need = COPIES_HELD * (sum(each.bytes for each in chain.inputs) + chain.links[-1].result.bytes)
    free = psutil.virtual_memory().available
    if need > free:
        raise NothingMeasuredError(
            "bench-failed",
            f"The chain's tensors take {format_bytes(need)} with all copies; {format_bytes(free)} are free here. Run "
            "it on the machine of the recording.",
        )

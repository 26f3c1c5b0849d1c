"""Logs that torch.compile wrote next to a trace: kernels with the user's lines they compute, graph breaks, guards.

There are two sources. `TORCH_TRACE` names a folder of structured log lines, as tlparse reads them: one JSON object per
line, its payload on the following lines, indented by a tab. `torch_compile_debug/` (TORCH_COMPILE_DEBUG=1) has kernels
only. Format: torch/_logging/_internal.py (trace_structured), torch 2.3 to 2.13.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steptime.quantities import SourceLine
from steptime.trace.links import is_user_file

LOGS = "dedicated_log_torch_trace_*.log"
DEBUG = "torch_compile_debug"
LARGEST_RECORD = 32 << 20
"""Most characters of a payload; generated code of the largest models has a few million."""
MOST_READ = 2 << 30
"""Most characters of all files together."""
LONGEST_CODE = 20_000
LONGEST_REPORTED = 300
"""Most characters of a reason, of a hint and of a line of source."""
Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel that Inductor generated. file: name of its own file, "" if it has none (C++). lines: user's lines that
    the kernel computes. operators: ATen operators fused into it. code: Triton or C++ source, cut to LONGEST_CODE."""

    name: str
    file: str
    lines: tuple[SourceLine, ...]
    operators: tuple[str, ...]
    code: str


@dataclass(frozen=True, slots=True)
class CompilerEvent:
    """A graph break, recompilation or limit, with its count. source: line that broke the graph, or else the function's
    first line. reason: the compiler's words, or the guard that failed. hint: the compiler's advice."""

    source: SourceLine
    reason: str
    count: int = 1
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CompileLogs:
    """Parsed torch.compile logs of one folder. limits: functions that hit the recompile limit and run uncompiled."""

    kernels: tuple[CompiledKernel, ...] = ()
    breaks: tuple[CompilerEvent, ...] = ()
    recompilations: tuple[CompilerEvent, ...] = ()
    limits: tuple[CompilerEvent, ...] = ()


@dataclass(slots=True)
class _Graph:
    """Facts so far about one compilation. nodes: source line by graph node; traced: lines by kernel, according to the
    compiler; of_kernel: nodes by kernel."""

    nodes: dict[str, SourceLine] = field(default_factory=dict)
    traced: defaultdict[str, list[SourceLine]] = field(default_factory=lambda: defaultdict(list))
    of_kernel: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    kernels: dict[str, CompiledKernel] = field(default_factory=dict)

    def finished(self) -> Iterator[CompiledKernel]:
        for name, kernel in self.kernels.items():
            known = self.traced.get(name) or [self.nodes[node] for node in self.of_kernel[name] if node in self.nodes]
            lines = sorted(dict.fromkeys(known), key=lambda line: line.place)
            yield replace(kernel, lines=tuple(lines))


def find_logs(path: Path) -> Path | None:
    """Folder with torch.compile's logs at or next to a trace or a recording; None if there is none."""
    folder = path if path.is_dir() else path.parent
    if (folder / DEBUG).is_dir() or next(folder.glob(LOGS), None) is not None:
        return folder
    found = sorted(folder.glob(f"*/{LOGS}"))
    return found[0].parent if found else None


def read_compile_logs(folder: Path, rank: int | None = None) -> CompileLogs:
    """Logs of a folder, without damaged parts. rank: whose files are read, if their names contain ranks."""
    files = [file for file in sorted(folder.glob(LOGS)) if _readable(file)]
    own = [file for file in files if re.search(rf"_rank_{rank}[._]", file.name)]
    reader, left = _Reader(), MOST_READ
    for file in own or files:
        for record, payload in _records(file, left):
            reader.take(record, payload)
        left -= file.stat().st_size
    debug = folder if folder.name == DEBUG else folder / DEBUG
    for code in sorted(debug.glob("*/torchinductor/*/output_code.py")):
        left -= sum(file.stat().st_size for file in filter(_readable, code.parent.iterdir()))
        if left > 0:
            reader.take_folder(code.parent)
    return reader.found()


def _readable(path: Path) -> bool:
    """True for a readable file. A pipe is none, since it would never end."""
    return path.is_file() and os.access(path, os.R_OK)


class _Artifact(msgspec.Struct):
    name: str = ""


class _Metrics(msgspec.Struct):
    """Metrics of a compilation, successful or failed."""

    co_filename: str | None = None
    co_firstlineno: int | None = None
    co_name: str | None = None
    fail_type: str | None = None
    fail_reason: str | None = None


class _Record(msgspec.Struct):
    """Relevant parts of a structured log line. Its kind is a key or an artifact's name."""

    frame_id: int | None = None
    frame_compile_id: int | None = None
    artifact: _Artifact | None = None
    compilation_metrics: _Metrics | None = None
    inductor_output_code: dict[str, Any] | None = None
    inductor_post_grad_graph: dict[str, Any] | None = None
    after_post_grad_graph: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        if self.artifact is not None:
            return self.artifact.name
        return next((kind for kind in (CODE, *GRAPHS) if getattr(self, kind) is not None), "")


class _Mappings(msgspec.Struct):
    nodes: dict[str, list[str]] = msgspec.field(name="cppCodeToPost", default_factory=dict)


RECORD = msgspec.json.Decoder(_Record)
MAPPINGS = msgspec.json.Decoder(_Mappings)
STACKS = msgspec.json.Decoder(dict[str, list[str]])
GUARDS = msgspec.json.Decoder(list[str])
CODE = "inductor_output_code"
GRAPHS = ("inductor_post_grad_graph", "after_post_grad_graph")


def _records(file: Path, most: int) -> Iterator[tuple[_Record, str]]:
    """Yields records with their payloads. most: characters to read."""
    record, payload, length, read = None, list[str](), 0, 0
    with file.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        while read < most and (line := stream.readline(LARGEST_RECORD)):
            read += len(line)
            if line.startswith("\t"):
                length += len(line)
                if length <= LARGEST_RECORD:
                    payload.append(line[1:])
                continue
            if record is not None:
                yield record, "".join(payload)
            record, payload, length = _decoded(RECORD, line[line.find("] {") + 2 :]), [], 0
    if record is not None:
        yield record, "".join(payload)


def _decoded(decoder: msgspec.json.Decoder[Decoded], text: str) -> Decoded | None:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


KERNEL = re.compile(r"^(?P<name>\w+) = async_compile\.(?:triton|cpp\w*|cuda\w*|cutedsl|pallas)\(")
PROFILED = re.compile(r'\("(graph_\d+_\w+)", nullptr\)')
"""Name of a C++ kernel in a trace (config.cpp.enable_kernel_profile)."""
PATH = re.compile(r"# kernel path: (.*)")
NODE = re.compile(r"^#\s+%(\w+) :")
ATEN = re.compile(r"Original ATen: \[([^\[\]]*)\]")
FILE = "# File: "
ASSIGNED = re.compile(r"^\s*(\w+)\s*(?::[^=]*)?= ")
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<function>\S+)(?:\n\s*(?P<text>[^\n]*))?')
REASON = re.compile(r"^(?:Graph Break )?Reason: (.*)$", re.MULTILINE)
WRAPPED = re.compile(r"^(?:Encountered graph break|Failed to handle graph break|Data-dependent jump$).*")
LIMIT = re.compile(r"(?:recompile|cache)(?:_size)?[ _]limit", re.IGNORECASE)
GUARD = re.compile(r"^\d+/\d+: ")


class _Reader:
    def __init__(self) -> None:
        self._graphs: defaultdict[object, _Graph] = defaultdict(_Graph)
        self._functions: dict[object, SourceLine] = {}
        self._breaks = Counter[tuple[SourceLine, str, str]]()
        self._guards = list[tuple[object, str]]()
        self._limits = list[tuple[object, str]]()

    def take(self, record: _Record, payload: str) -> None:
        frame, kind = record.frame_id, record.kind
        graph = self._graphs[frame, record.frame_compile_id] if frame is not None else _Graph()
        if kind in GRAPHS:
            graph.nodes |= _lines_of_nodes(payload)
        elif kind == CODE:
            _add_kernels(graph, payload)
        elif kind == "inductor_provenance_tracking_kernel_stack_traces":
            for name, stacks in (_decoded(STACKS, payload) or {}).items():
                graph.traced[name.partition(":")[0]] += filter(None, map(_innermost, stacks))
        elif kind == "inductor_provenance_tracking_node_mappings":
            _add_nodes(graph, payload)
        elif kind == "dynamo_graph_break_reason":
            self._break(payload)
        elif kind == "recompile_reasons":
            self._guards.append((frame, _failed_guard(payload)))
        elif record.compilation_metrics is not None:
            self._compiled(frame, record.compilation_metrics)

    def take_folder(self, folder: Path) -> None:
        """Adds a graph of torch_compile_debug."""
        graph = self._graphs[str(folder)]
        for name in ("fx_graph_readable.py", "fx_graph_transformed.py"):
            graph.nodes |= _lines_of_nodes(_text_of(folder / name))
        _add_kernels(graph, _text_of(folder / "output_code.py"))
        _add_nodes(graph, _text_of(folder / "inductor_provenance_tracking_node_mappings.json"))

    def _break(self, payload: str) -> None:
        message = (
            line.rpartition("user code at ")[2] for line in payload.splitlines() if line.startswith("Graph break ")
        )
        source = next(filter(None, map(_place, message)), None) or _innermost(payload)
        found = REASON.search(payload)
        reason, hint = reason_and_hint(payload[found.start(1) if found else 0 :])
        if source is not None and reason:
            self._breaks[source, reason, hint] += 1

    def _compiled(self, frame: object, metrics: _Metrics) -> None:
        if metrics.co_filename is not None and metrics.co_firstlineno is not None:
            where = SourceLine(metrics.co_filename, metrics.co_firstlineno, metrics.co_name or "")
            self._functions.setdefault(frame, where)
        failed = metrics.fail_reason or ""
        if is_limit(failed) or is_limit(metrics.fail_type or ""):
            self._limits.append((frame, _short(failed.partition("\n")[0])))

    def found(self) -> CompileLogs:
        breaks = (CompilerEvent(source, reason, count, hint) for (source, reason, hint), count in self._breaks.items())
        kernels = (kernel for graph in self._graphs.values() for kernel in graph.finished())
        return CompileLogs(
            tuple(kernels), tuple(breaks), tuple(self._counted(self._guards)), tuple(self._counted(self._limits))
        )

    def _counted(self, message: Iterable[tuple[object, str]]) -> Iterator[CompilerEvent]:
        counts = Counter((self._functions[frame], reason) for frame, reason in message if frame in self._functions)
        return (CompilerEvent(source, reason, count) for (source, reason), count in counts.most_common())


def is_limit(failed: str) -> bool:
    """True if a log's failure says that a function hit the recompile limit."""
    return LIMIT.search(failed) is not None


def reason_and_hint(message: str) -> tuple[str, str]:
    """(reason of a graph break, the compiler's hint), each in one line; "" if missing."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next((line for line in lines if not WRAPPED.match(line)), "")
    hint = next((line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: ")), "")
    return _short(reason), _short(hint)


def _text_of(file: Path) -> str:
    if not _readable(file):
        return ""
    with file.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(LARGEST_RECORD)


def _failed_guard(payload: str) -> str:
    """Guard that failed: of several the first, which belongs to the newest compiled code, which was tried first."""
    first = (_decoded(GUARDS, payload) or [payload])[0].strip().partition("\n")[0]
    return _short(GUARD.sub("", first).partition("  # ")[0].strip())


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_REPORTED else f"{text[: LONGEST_REPORTED - 1]}…"


def _place(text: str) -> SourceLine | None:
    """Source line from "FILE:LINE", None for other text."""
    file, _, number = text.strip().rpartition(":")
    return SourceLine(file, int(number)) if re.fullmatch("[0-9]{1,9}", number) else None


def _innermost(stack: str) -> SourceLine | None:
    """User's innermost line of a stack in text form, None if there is none."""
    frames = [frame for frame in FRAME.finditer(stack) if is_user_file(frame["file"])]
    if not frames:
        return None
    last = frames[-1]
    return SourceLine(last["file"], int(last["line"]), last["function"], _short((last["text"] or "").strip()))


def _lines_of_nodes(graph: str) -> dict[str, SourceLine]:
    """Source line of each node in a graph printed as Python, from the comment above the node."""
    nodes, place = {}, None
    for line in graph.splitlines():
        if line.lstrip().startswith(FILE):
            before, _, text = line.partition(", code: ")
            at, _, function = before.partition(FILE)[2].rpartition(" in ")
            found = _place(at)
            place = found and replace(found, function=function.strip(), text=_short(text.strip()))
        elif place is not None and (assigned := ASSIGNED.match(line)):
            nodes[assigned[1]] = place
    return nodes


def _add_nodes(graph: _Graph, mappings: str) -> None:
    """Adds the nodes of each kernel, according to the compiler."""
    for name, mine in (_decoded(MAPPINGS, mappings) or _Mappings()).nodes.items():
        graph.of_kernel[name.partition(":")[0]] += mine


def _add_kernels(graph: _Graph, code: str) -> None:
    """Adds the kernels of generated code: each definition with the comment above it."""
    comment, body, name = list[str](), list[str](), ""
    for line in code.splitlines():
        if name:
            body.append(line)
            if line.startswith("'''"):
                _add_kernel(graph, name, comment, body[:-1])
                comment, body, name = [], [], ""
        elif found := KERNEL.match(line):
            name = found["name"]
        elif line.startswith("#"):
            comment.append(line)
        elif line.strip():
            comment = []


def _add_kernel(graph: _Graph, name: str, comment: list[str], body: list[str]) -> None:
    text, message = "\n".join(body), "\n".join(comment)
    path, aten = PATH.search(message), ATEN.search(message)
    operators = tuple(filter(None, (each.strip() for each in aten[1].split(",")))) if aten else ()
    file = path[1].strip().rpartition("/")[2] if path else ""
    graph.of_kernel[name] += [found[1] for line in comment if (found := NODE.match(line))]
    profiled = PROFILED.search(text)
    graph.kernels[name] = CompiledKernel(profiled[1] if profiled else name, file, (), operators, text[:LONGEST_CODE])

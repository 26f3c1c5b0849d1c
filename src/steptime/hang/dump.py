"""Reader of a flight recorder's dump: the last collectives that one rank has called.

torch keeps the calls in a ring of TORCH_FR_BUFFER_SIZE entries (in older releases TORCH_NCCL_TRACE_BUFFER_SIZE). It
writes them when a collective times out, as a pickle, or as JSON through its debug server. The fields are those of
torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptime.errors import TraceError, no_such_file
from steptime.plain_pickle import BASE_MEMORY, NotPlainError, converted
from steptime.quantities import SourceLine

COMPLETED = "completed"
"""State of a call that has ended; before, it is "scheduled" (by the CPU) or "started" (on the device)."""
POINT_TO_POINT = re.compile(r"i?(send|recv) (\d+)(->|<-)(\d+)")
CONVERTER = "steptime.plain_pickle:to_json"
MEMORY_PER_BYTE, BASE_SECONDS, BYTES_PER_SECOND = 40, 5, 1_000_000
"""Limits of the process that reads a pickle: bytes of memory per byte of the file, and CPU time in seconds
(BASE_SECONDS plus size / BYTES_PER_SECOND)."""
LARGEST = 256 << 20
"""Most bytes of one dump: a hundred thousand calls with their stacks."""
RANK_IN_NAME = re.compile(r"([0-9]+)(?:\.(?:json|pickle|pkl|bin))?$")
"""Rank in a file's name. torch writes <prefix><rank>: /tmp/nccl_trace_rank_3."""
MEMBERS = re.compile(r"(?<![0-9])[0-9]{1,9}(?![0-9])")
LARGEST_NUMBER, LARGEST_RANK = (1 << 63) - 1, 10**9
LONGEST_TEXT = 4096
NOT_THEIRS = re.compile(r"/(site-packages|dist-packages|steptime/(?:capture|probe))/|/lib/python3\.\d+/|^<")
"""Files whose frames are not the user's."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """Collective (or send, or receive) that one rank has called. operation: torch's name without the backend
    ("all_reduce", "send 0->1"). group: name of its process group, description: the user's name for it. sequence: number
    among the group's collectives (or among the sends and receives between two ranks). state: progress according to
    torch; done: True if it has ended (gloo leaves the state at "scheduled" and only marks the entry as retired). sizes
    and types: of input and output tensors. created: epoch ns. source: user's innermost line, None without a stack."""

    operation: str
    group: str
    description: str
    sequence: int
    record: int
    state: str
    done: bool
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_types: tuple[str, ...] = ()
    created: int = 0
    point_to_point: bool = False
    source: SourceLine | None = None

    @property
    def direction(self) -> tuple[str, int, int] | None:
        """("send" or "recv", source, destination) within the group; None for a collective."""
        found = POINT_TO_POINT.fullmatch(self.operation)
        if found is None:
            return None
        kind, first, arrow, second = found.groups()
        ends = (int(first), int(second)) if arrow == "->" else (int(second), int(first))
        return kind, *ends


@dataclass(frozen=True, slots=True)
class Dump:
    """Last calls of one rank, the oldest first. groups: members (the job's ranks) by name, if listed (not by gloo)."""

    path: str
    rank: int
    calls: tuple[CollectiveCall, ...]
    groups: dict[str, tuple[int, ...]]


def read_dumps(paths: Sequence[str]) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """(dumps in files, folders and patterns, by rank; a sentence for each skipped file). A file in a folder or under a
    pattern that is no dump is skipped. Raises TraceError: no-dumps, same-rank, dump-unreadable for a named file."""
    dumps: dict[int, Dump] = {}
    passed_over: list[str] = []
    for path, named in (meant for each in paths for meant in _meant(each)):
        try:
            dump = read_dump(path)
        except TraceError as error:
            if named:
                raise
            passed_over.append(error.sentence)
            continue
        if dump.rank in dumps:
            raise TraceError(
                "same-rank",
                f"{dumps[dump.rank].path} and {path} are both from rank {dump.rank}. Give one dump per rank.",
            )
        dumps[dump.rank] = dump
    if not dumps:
        seen = f"none of {len(passed_over)} files is one; {passed_over[0]}" if passed_over else "there is no file."
        raise TraceError("no-dumps", f"No dump of torch's flight recorder in {', '.join(paths)}: {seen}")
    return tuple(dumps[rank] for rank in sorted(dumps)), tuple(passed_over)


def _meant(path: str) -> list[tuple[Path, bool]]:
    """Files for a path, each with whether the path names it directly."""
    given = Path(path)
    if given.is_dir():
        return [(file, False) for file in sorted(given.iterdir()) if file.is_file()]
    if not given.exists() and glob.has_magic(path):
        return [(Path(file), False) for file in sorted(glob.glob(path))]  # noqa: PTH207 – Path.glob takes no absolute pattern
    return [(given, True)]


def read_dump(path: Path) -> Dump:
    """Reads one file. Raises TraceError (dump-unreadable)."""
    if path.is_fifo():
        raise _unreadable(path, "it is a pipe")  # it would block until somebody writes into it
    try:
        found = _content(path)
    except FileNotFoundError:
        raise no_such_file(path, "dumps of torch's flight recorder (TORCH_FR_DUMP_TEMP_FILE)", TraceError) from None
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except NotPlainError as error:
        raise _unreadable(path, f"it {error}") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from None
    if not isinstance(found, Mapping) or "pg_config" not in found:
        raise _unreadable(path, "it has no process groups")
    rank = _rank(path, found)
    members = {_text(name): _members(group) for name, group in _mapping(found["pg_config"]).items()}
    groups = {name: ranks for name, ranks in members.items() if ranks}
    calls = (_call(entry) for entry in _items(found.get("entries")) if isinstance(entry, Mapping))
    known = sorted((call for call in calls if call.operation), key=lambda call: call.record)
    return Dump(str(path), rank, tuple(known), groups)


def _content(path: Path) -> Any:
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        if size > LARGEST:
            raise _unreadable(path, f"it has more than {LARGEST >> 20} MiB")
        in_json = file.read(1) in (b"{", b"[", b" ", b"\n")
        file.seek(0)
        if in_json:
            return json.loads(file.read())
        limits = BASE_MEMORY + MEMORY_PER_BYTE * size, BASE_SECONDS + size // BYTES_PER_SECOND
        with converted(file, CONVERTER, *limits) as made:
            return json.load(made)


def _unreadable(path: Path, reason: str) -> TraceError:
    return TraceError(
        "dump-unreadable",
        f"{path} is not a dump of torch's flight recorder ({reason}). Expected the files of "
        "TORCH_FR_DUMP_TEMP_FILE, one per rank.",
    )


def _rank(path: Path, found: Mapping[Any, Any]) -> int:
    message = found.get("rank")
    if isinstance(message, int) and not isinstance(message, bool) and 0 <= message <= LARGEST_RANK:
        return message
    named = RANK_IN_NAME.search(path.name)
    if named is None or int(named[1]) > LARGEST_RANK:
        raise _unreadable(path, "neither its content nor its name has the rank; torch's file names end with it")
    return int(named[1])


def _members(group: Any) -> tuple[int, ...]:
    """Ranks of a group, which torch writes as text: "[0, 1, 2]"."""
    ranks = _mapping(group).get("ranks", ())
    if isinstance(ranks, str):
        return tuple(map(int, MEMBERS.findall(ranks)))
    return tuple(int(each) for each in _items(ranks) if isinstance(each, int) and 0 <= each <= LARGEST_RANK)


def _call(entry: Mapping[Any, Any]) -> CollectiveCall:
    """Call from an entry; its operation is "" if the entry is invalid."""
    operation = _text(entry.get("profiling_name"))
    name, description = (*_texts(entry.get("process_group")), "", "")[:2]
    between = bool(entry.get("is_p2p"))
    return CollectiveCall(
        operation=operation.partition(":")[2] or operation,
        group=name,
        description="" if description in ("undefined", "None") else description,
        sequence=_whole(entry.get("p2p_seq_id" if between else "collective_seq_id")),
        record=_whole(entry.get("record_id")),
        state=_text(entry.get("state")),
        done=entry.get("state") == COMPLETED or entry.get("retired") is True,
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        input_types=_texts(entry.get("input_dtypes")),
        created=_whole(entry.get("time_created_ns")),
        point_to_point=between,
        source=_source(entry.get("frames")),
    )


def _source(frames: Any) -> SourceLine | None:
    """Innermost frame outside of torch and Python, None for none."""
    for frame in map(_mapping, _items(frames)):
        file = _text(frame.get("filename"))
        if file and not NOT_THEIRS.search(file):
            return SourceLine(file, _whole(frame.get("line")), _text(frame.get("name")))
    return None


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_NUMBER else 0


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(_whole, row)) for row in _items(value) if isinstance(row, list | tuple))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _items(value)))


def _text(value: Any) -> str:
    """Text on one line, without lone surrogates, which JSON cannot hold; "" for anything else. Containers are not
    converted: two lists that contain each other twice, forty levels deep, are a hundred bytes and 10^12 characters."""
    if isinstance(value, int):
        return str(_whole(value))
    line = " ".join(value[:LONGEST_TEXT].split()) if isinstance(value, str) else ""
    return line.encode("utf-8", "backslashreplace").decode()

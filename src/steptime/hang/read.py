"""From files to dumps: pickles as torch writes them on a timeout, or JSON as its debug server gives it."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime.errors import TraceError
from steptime.hang.dump import COMPLETED, CollectiveCall, Dump
from steptime.plain_pickle import BASE_MEMORY, NotPlainError, converted
from steptime.quantities import SourceLine

CONVERTER = "steptime.plain_pickle:to_json"
MEMORY_PER_BYTE, BASE_SECONDS, BYTES_PER_SECOND = 40, 5, 1_000_000
"""What the process that reads a pickle may take: memory for each byte of the file, and processor time."""
LARGEST = 256 << 20
"""Bytes of one dump: a hundred thousand calls with their stacks."""
RANK_IN_NAME = re.compile(r"([0-9]+)(?:\.(?:json|pickle|pkl|bin))?$")
"""torch writes <prefix><rank>: /tmp/nccl_trace_rank_3."""
MEMBERS = re.compile(r"(?<![0-9])[0-9]{1,9}(?![0-9])")
LARGEST_NUMBER, LARGEST_RANK = (1 << 63) - 1, 10**9
LONGEST_TEXT = 4096
NOT_THEIRS = re.compile(r"/(site-packages|dist-packages|steptime/(?:capture|probe))/|/lib/python3\.\d+/|^<")
"""Frames that are not the user's."""


def read_dumps(paths: Sequence[str]) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """The dumps that are meant by files, folders and patterns, by rank, and a sentence for each file passed over.

    What is no dump in a folder or under a pattern is passed over. Raises TraceError: no-dumps, same-rank, and
    dump-unreadable for a file that was given by name.
    """
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
                "same-rank", f"{dumps[dump.rank].path} and {path} are both of rank {dump.rank}: give one dump of each."
            )
        dumps[dump.rank] = dump
    if not dumps:
        seen = f"{len(passed_over)} files were looked at; {passed_over[0]}" if passed_over else "no file is there."
        raise TraceError("no-dumps", f"No dump of torch's flight recorder in {', '.join(paths)}: {seen}")
    return tuple(dumps[rank] for rank in sorted(dumps)), tuple(passed_over)


def read_dump(path: Path) -> Dump:
    """One file. Raises TraceError (dump-unreadable)."""
    found = _content(path)
    rank = _rank(path, found)
    members = {_text(name): _members(group) for name, group in _mapping(found.get("pg_config")).items()}
    groups = {name: ranks for name, ranks in members.items() if ranks}
    calls = [call for call in map(_call, _entries(found)) if call is not None]
    calls.sort(key=lambda call: call.record)
    return Dump(str(path), rank, _text(found.get("version")), tuple(calls), groups)


def _meant(path: str) -> list[tuple[Path, bool]]:
    given = Path(path)
    if given.is_dir():
        return [(file, False) for file in sorted(given.iterdir()) if file.is_file()]
    if not given.exists() and glob.has_magic(path):
        return [(Path(file), False) for file in sorted(glob.glob(path))]  # noqa: PTH207 – Path.glob takes no absolute pattern
    return [(given, True)]


def _content(path: Path) -> Mapping[Any, Any]:
    if path.is_fifo():
        raise _unreadable(path, "it is a pipe")  # which would hold us until somebody writes into it
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size
            if size > LARGEST:
                raise _unreadable(path, f"it has more than {LARGEST >> 20} MiB")
            limits = BASE_MEMORY + MEMORY_PER_BYTE * size, BASE_SECONDS + size // BYTES_PER_SECOND
            text = file.read(1) in (b"{", b"[", b" ", b"\n")
            file.seek(0)
            if text:
                found = json.loads(file.read())
            else:
                with converted(file, CONVERTER, *limits) as made:
                    found = json.load(made)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except NotPlainError as error:
        raise _unreadable(path, f"it {error}") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from None
    if not isinstance(found, Mapping) or "pg_config" not in found:
        raise _unreadable(path, "it holds no process groups")
    return found


def _unreadable(path: Path, reason: str) -> TraceError:
    return TraceError(
        "dump-unreadable",
        f"{path} is no dump of torch's flight recorder ({reason}): expected what TORCH_FR_DUMP_TEMP_FILE names, "
        "a file per rank.",
    )


def _rank(path: Path, found: Mapping[Any, Any]) -> int:
    said = found.get("rank")
    if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= LARGEST_RANK:
        return said
    named = RANK_IN_NAME.search(path.name)
    if named is None or int(named[1]) > LARGEST_RANK:
        raise _unreadable(path, "neither it nor its name says the rank; torch's names end with it")
    return int(named[1])


def _entries(found: Mapping[Any, Any]) -> Iterable[Mapping[Any, Any]]:
    entries = found.get("entries") or ()
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list | tuple) else []


def _members(group: Any) -> tuple[int, ...]:
    """Ranks of a group, which torch spells as a text: "[0, 1, 2]"."""
    ranks = _mapping(group).get("ranks", ())
    if isinstance(ranks, str):
        return tuple(map(int, MEMBERS.findall(ranks)))
    members = ranks if isinstance(ranks, list | tuple) else ()
    return tuple(int(each) for each in members if isinstance(each, int) and 0 <= each <= LARGEST_RANK)


def _call(entry: Mapping[Any, Any]) -> CollectiveCall | None:
    """None for an entry that makes no sense."""
    operation = _text(entry.get("profiling_name"))
    if not operation:
        return None
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
        output_types=_texts(entry.get("output_dtypes")),
        created=_whole(entry.get("time_created_ns")),
        point_to_point=between,
        source=_source(entry.get("frames")),
    )


def _source(frames: Any) -> SourceLine | None:
    """The innermost frame that is neither torch's nor Python's."""
    for frame in frames if isinstance(frames, list | tuple) else ():
        place = _mapping(frame)
        file = _text(place.get("filename"))
        if file and not NOT_THEIRS.search(file):
            return SourceLine(file, _whole(place.get("line")), _text(place.get("name")))
    return None


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_NUMBER else 0


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    rows = value if isinstance(value, list | tuple) else ()
    return tuple(tuple(map(_whole, row)) for row in rows if isinstance(row, list | tuple))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, value)) if isinstance(value, list | tuple) else ()


def _text(value: Any) -> str:
    """A text on one line, without halves of surrogate pairs, which no JSON can hold; "" for anything else. Nothing else
    is spelt out: lists that hold one another twice, forty levels deep, are a hundred bytes of pickle and 10^12
    characters."""
    if isinstance(value, int):
        return str(_whole(value))
    line = " ".join(value[:LONGEST_TEXT].split()) if isinstance(value, str) else ""
    return line.encode("utf-8", "backslashreplace").decode()

"""Recordings and traces behind URLs (s3://, gs://, hdfs://, memory:// …), by fsspec, an optional dependency.

A job never waits for a network: it records on a local disk, and the recording is copied after its end, however it
ended. Reading copies to a temporary folder first."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steptime.errors import OutputError, RecordingError, UsageError

URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
"""Pattern of a URL. A scheme of one letter is a drive of Windows."""
NODE = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_NODE_RANK")
PROCESS = re.compile(r"process-\d+")


def is_url(path: str) -> bool:
    """True if a path is a URL, which fsspec opens."""
    return URL.match(path) is not None


def check(url: str) -> None:
    """Checks, before a job starts, that its recording can be copied to the URL. Raises UsageError and OutputError."""
    system, place = _open(url)
    try:
        taken = system.exists(f"{place}/manifest.json")
    except Exception as error:  # noqa: BLE001 - each kind of storage raises its own
        raise OutputError("remote-failed", f"{url} cannot be accessed ({_reported(error)}).") from None
    if taken and _node() == 0:
        raise OutputError("recording-exists", f"{url} already contains a recording. Give another folder.")


def upload(folder: Path, url: str) -> None:
    """Copies a recording to a URL. Nodes of one job that record separately copy into one recording: the first node's
    manifest stays, and the process folders of other nodes get the node's number. Raises OutputError."""
    system, place = _open(url)
    node = _node()
    try:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            parts = list(file.relative_to(folder).parts)
            if node and len(parts) == 1:
                continue
            if node and PROCESS.fullmatch(parts[0]):
                parts[0] += f"-{node}"
            target = "/".join((place, *parts))
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            system.put_file(str(file), target)
    except Exception as error:  # noqa: BLE001 - each kind of storage raises its own: the recording stays where it is
        raise OutputError(
            "remote-failed", f"The recording could not be copied to {url} ({_reported(error)}). It is in {folder}."
        ) from None


@contextmanager
def fetched(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Context manager with the paths, in which local copies replace URLs; the copies are removed at the block's end.
    Raises UsageError and RecordingError."""
    copies = Path(tempfile.mkdtemp(prefix="steptime-"))
    try:
        yield tuple(_fetch(path, copies / str(number)) if is_url(path) else path for number, path in enumerate(paths))
    finally:
        shutil.rmtree(copies, ignore_errors=True)


def _fetch(url: str, into: Path) -> str:
    system, place = _open(url)
    into.mkdir()
    try:
        if any(letter in place for letter in "*?["):
            files = [str(each) for each in system.glob(place)]
        elif system.isdir(place):
            files = [str(each) for each in system.find(place)]
        else:
            target = into / place.rpartition("/")[2]
            system.get_file(place, str(target))
            return str(target)
        root = place.split("*")[0].rpartition("/")[0] if "*" in place else place
        for file in files:
            inside = os.path.relpath(file.lstrip("/"), root.lstrip("/"))
            if inside.split("/")[0] == "..":  # a server's list may name anything
                raise ValueError(f"it lists {file}, which is outside")
            target = into / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(file, str(target))
    except Exception as error:  # noqa: BLE001 - each kind of storage raises its own
        raise RecordingError(
            "remote-unreadable", f"{url} cannot be read ({_reported(error)}). Check its spelling and your credentials."
        ) from None
    return str(into)


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise UsageError(
            "remote-missing",
            f"{url} is a URL, and reading it needs fsspec: pip install 'steptime[remote]', and the package of "
            "its scheme (s3fs, gcsfs …).",
        ) from None
    try:
        system, place = fsspec.core.url_to_fs(url)
    except Exception as error:  # noqa: BLE001 - each kind of storage has its own arguments, and raises its own
        raise UsageError("remote-missing", f"{url} cannot be opened by fsspec ({_reported(error)}).") from None
    return system, str(place).rstrip("/")


def _reported(error: Exception) -> str:
    """Message of an error, or its type if that is empty."""
    return str(error) or type(error).__name__


def _node() -> int:
    """Number of this node in the job; 0 if unknown."""
    return next((int(os.environ[name]) for name in NODE if os.environ.get(name, "").isdigit()), 0)

"""Stores samples of the user's in other formats and times reading them back. Imported by `loader_script` alone: no part
of steptime is imported here.

A sample is stored as the dataset gives it. Files are written to a temporary folder and removed again. Every format is
read at random, as a loader that shuffles reads, and in order, once with its files out of the page cache.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import shutil
import sys
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

ROW_GROUP = 32
"""Samples that Parquet keeps together: a batch, as who streams it would choose."""
PASSES = 3
"""At random from memory, of which the shortest counts."""
LMDB_ROOM = 16 << 20
"""Bytes of a data base next to four times what is stored: its file is as long as what is used of it."""


class StoredFormat(ABC):
    """Samples in files. Raises ImportError where its package is missing, TypeError for samples that it cannot hold."""

    name: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def write(self, samples: Sequence[Any]) -> None: ...

    @abstractmethod
    def open(self) -> Callable[[int], Any]:
        """A function that reads a sample by its number, with everything opened that a dataset would open once."""


class Files(StoredFormat):
    name = "a file each"

    def write(self, samples: Sequence[Any]) -> None:
        for number, sample in enumerate(samples):
            (self.folder / str(number)).write_bytes(packed(sample))

    def open(self) -> Callable[[int], Any]:
        return lambda number: pickle.loads((self.folder / str(number)).read_bytes())


class Tar(StoredFormat):
    name = "tar (as WebDataset)"

    def write(self, samples: Sequence[Any]) -> None:
        with tarfile.open(self.folder / "samples.tar", "w") as archive:
            for number, sample in enumerate(samples):
                data = packed(sample)
                member = tarfile.TarInfo(f"{number}.pickle")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))

    def open(self) -> Callable[[int], Any]:
        path = self.folder / "samples.tar"
        with tarfile.open(path) as archive:
            places = [(member.offset_data, member.size) for member in archive]
        file = path.open("rb")

        def read(number: int) -> Any:
            offset, size = places[number]
            file.seek(offset)
            return pickle.loads(file.read(size))

        return read


class Parquet(StoredFormat):
    name = "Parquet"

    def write(self, samples: Sequence[Any]) -> None:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        table = pyarrow.table({"sample": [packed(sample) for sample in samples]})
        parquet.write_table(table, self.folder / "samples.parquet", row_group_size=ROW_GROUP)

    def open(self) -> Callable[[int], Any]:
        file = import_module("pyarrow.parquet").ParquetFile(self.folder / "samples.parquet")
        kept: dict[int, Any] = {}

        def read(number: int) -> Any:
            group, place = divmod(number, ROW_GROUP)
            if group not in kept:
                kept.clear()
                kept[group] = file.read_row_group(group).column("sample")
            return pickle.loads(kept[group][place].as_buffer())

        return read


class Arrow(StoredFormat):
    name = "Arrow, mapped"

    def write(self, samples: Sequence[Any]) -> None:
        pyarrow = import_module("pyarrow")
        table = pyarrow.table({"sample": [packed(sample) for sample in samples]})
        path = str(self.folder / "samples.arrow")
        with pyarrow.OSFile(path, "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    def open(self) -> Callable[[int], Any]:
        pyarrow = import_module("pyarrow")
        mapped = pyarrow.memory_map(str(self.folder / "samples.arrow"))
        column = pyarrow.ipc.open_file(mapped).read_all().column("sample")
        return lambda number: pickle.loads(column[number].as_buffer())


class Lmdb(StoredFormat):
    name = "LMDB"

    def write(self, samples: Sequence[Any]) -> None:
        lmdb = import_module("lmdb")
        stored = [packed(sample) for sample in samples]
        room = LMDB_ROOM + 4 * sum(map(len, stored))
        with lmdb.open(str(self.folder / "lmdb"), map_size=room) as base, base.start(write=True) as transaction:
            for number, data in enumerate(stored):
                transaction.put(str(number).encode(), data)

    def open(self) -> Callable[[int], Any]:
        base = import_module("lmdb").open(str(self.folder / "lmdb"), readonly=True, lock=False, readahead=False)
        transaction = base.start(buffers=True)
        return lambda number: pickle.loads(transaction.get(str(number).encode()))


class Mapped(StoredFormat):
    """One array for each tensor of a sample."""

    name = "memory-mapped arrays"

    def write(self, samples: Sequence[Any]) -> None:
        numpy = import_module("numpy")
        rows = [sample if isinstance(sample, (tuple, list)) else (sample,) for sample in samples]
        try:
            for place, values in enumerate(zip(*rows, strict=True)):
                stacked = numpy.stack([numpy.asarray(as_arrays(value)) for value in values])
                numpy.save(self.folder / f"{place}.npy", stacked, allow_pickle=False)
        except ValueError:
            raise TypeError("samples are no tensors and numbers of the same shapes") from None

    def open(self) -> Callable[[int], Any]:
        numpy = import_module("numpy")
        files = sorted(self.folder.glob("*.npy"), key=lambda path: int(path.stem))
        arrays = [numpy.load(path, mmap_mode="r") for path in files]
        return lambda number: [numpy.array(array[number]) for array in arrays]


FORMATS: tuple[type[StoredFormat], ...] = (Files, Tar, Parquet, Arrow, Lmdb, Mapped)


def packed(sample: Any) -> bytes:
    """With tensors as arrays, of which a tensor is made for nothing."""
    return pickle.dumps(as_arrays(sample), protocol=5)


def as_arrays(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        return sample.detach().cpu().contiguous().numpy()
    if isinstance(sample, dict):
        return {name: as_arrays(each) for name, each in sample.items()}
    if isinstance(sample, (tuple, list)):
        return [as_arrays(each) for each in sample]
    return sample


def formats_of(samples: Sequence[Any]) -> list[dict[str, Any]]:
    """For each format "name", "bytes" (of a sample on disk) and ns of a sample: "ordered_ns" and "random_ns" with its
    files out of the page cache (None where the system does not put them out), "warm_ns" from memory; or "left_out"."""
    found = []
    for kind in FORMATS:
        folder = Path(tempfile.mkdtemp(prefix="steptime-format-"))
        try:
            found.append({"name": kind.name, **timed_format(kind(folder), samples)})
        except ImportError as error:
            found.append({"name": kind.name, "left_out": f"there is no {error.name} here"})
        except Exception as error:  # noqa: BLE001 - samples are the user's: one that cannot be stored is left out
            found.append({"name": kind.name, "left_out": str(error).partition("\n")[0][:200]})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def timed_format(form: StoredFormat, samples: Sequence[Any]) -> dict[str, Any]:
    form.write(samples)
    files = [path for path in form.folder.rglob("*") if path.is_file()]
    order = list(range(len(samples)))
    shuffled = random.Random(0).sample(order, len(order))
    cold = {}
    for name, numbers in (("ordered_ns", order), ("random_ns", shuffled)):
        with cleared(files) as fetched:
            duration = read_all(form.open(), numbers)
        cold[name] = duration if fetched() else None
    warm = min(read_all(form.open(), shuffled) for _ in range(PASSES))
    size = sum(path.stat().st_blocks * 512 for path in files) / len(samples)
    return {"bytes": size, "warm_ns": warm, **cold}


def read_all(read: Callable[[int], Any], numbers: Sequence[int]) -> float:
    start = time.perf_counter_ns()
    for number in numbers:
        read(number)
    return (time.perf_counter_ns() - start) / len(numbers)


@contextlib.contextmanager
def cleared(files: Sequence[Path]) -> Iterator[Callable[[], int]]:
    """Puts files out of the page cache; a function that tells the bytes that this process has had read from a disk
    since. It is 0 where they stayed: files in memory, or a system without that call."""
    os.sync()  # what was not written yet stays; fsync does nothing in an overlay that is thrown away
    for path in files:
        with contextlib.suppress(OSError, AttributeError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = fetched_bytes()
    yield lambda: fetched_bytes() - before


def fetched_bytes() -> int:
    """Since this process began, from disks; Linux's /proc/PID/io (proc(5))."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.partition("\nread_bytes: ")[2].partition("\n")[0] or 0)


class OpenedFiles:
    """The regular files that this process opens for reading while it is watched, outside of Python's own folders."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self.watching = False
        own = tuple({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)})

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and self.watching and isinstance(arguments[0], (str, bytes, os.PathLike)):
                path = os.path.realpath(os.fsdecode(arguments[0]))
                if not path.startswith((*own, "/proc/", "/dev/", "/sys/")) and Path(path).is_file():
                    self.paths.add(Path(path))

        sys.addaudithook(hook)

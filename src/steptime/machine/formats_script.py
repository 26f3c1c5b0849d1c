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
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

ROW_GROUP = 32
"""Samples in a row group of Parquet: a batch, as a streaming reader would choose."""
PASSES = 3
"""Passes of random reads from memory, of which the shortest counts."""
LMDB_ROOM = 16 << 20
"""Bytes of an LMDB file beyond four times the stored data; the file only grows to what is used."""


Read = Callable[[int], Any]
"""Function that reads a sample by its number, with everything open that a dataset would open once."""


def write_files(folder: Path, samples: Sequence[Any]) -> None:
    for number, sample in enumerate(samples):
        (folder / str(number)).write_bytes(packed(sample))


def open_files(folder: Path) -> Read:
    return lambda number: pickle.loads((folder / str(number)).read_bytes())


def write_tar(folder: Path, samples: Sequence[Any]) -> None:
    with tarfile.open(folder / "samples.tar", "w") as archive:
        for number, sample in enumerate(samples):
            data = packed(sample)
            member = tarfile.TarInfo(f"{number}.pickle")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def open_tar(folder: Path) -> Read:
    path = folder / "samples.tar"
    with tarfile.open(path) as archive:
        places = [(member.offset_data, member.size) for member in archive]
    file = path.open("rb")

    def read(number: int) -> Any:
        offset, size = places[number]
        file.seek(offset)
        return pickle.loads(file.read(size))

    return read


def table_of(samples: Sequence[Any]) -> Any:
    return import_module("pyarrow").table({"sample": [packed(sample) for sample in samples]})


def write_parquet(folder: Path, samples: Sequence[Any]) -> None:
    parquet = import_module("pyarrow.parquet")
    parquet.write_table(table_of(samples), folder / "samples.parquet", row_group_size=ROW_GROUP)


def open_parquet(folder: Path) -> Read:
    file = import_module("pyarrow.parquet").ParquetFile(folder / "samples.parquet")
    kept: dict[int, Any] = {}

    def read(number: int) -> Any:
        group, place = divmod(number, ROW_GROUP)
        if group not in kept:
            kept.clear()
            kept[group] = file.read_row_group(group).column("sample")
        return pickle.loads(kept[group][place].as_buffer())

    return read


def write_arrow(folder: Path, samples: Sequence[Any]) -> None:
    pyarrow, table = import_module("pyarrow"), table_of(samples)
    path = str(folder / "samples.arrow")
    with pyarrow.OSFile(path, "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def open_arrow(folder: Path) -> Read:
    pyarrow = import_module("pyarrow")
    mapped = pyarrow.memory_map(str(folder / "samples.arrow"))
    column = pyarrow.ipc.open_file(mapped).read_all().column("sample")
    return lambda number: pickle.loads(column[number].as_buffer())


def write_lmdb(folder: Path, samples: Sequence[Any]) -> None:
    lmdb = import_module("lmdb")
    stored = [packed(sample) for sample in samples]
    room = LMDB_ROOM + 4 * sum(map(len, stored))
    with lmdb.open(str(folder / "lmdb"), map_size=room) as base, base.begin(write=True) as transaction:
        for number, data in enumerate(stored):
            transaction.put(str(number).encode(), data)


def open_lmdb(folder: Path) -> Read:
    base = import_module("lmdb").open(str(folder / "lmdb"), readonly=True, lock=False, readahead=False)
    transaction = base.begin(buffers=True)
    return lambda number: pickle.loads(transaction.get(str(number).encode()))


def write_mapped(folder: Path, samples: Sequence[Any]) -> None:
    """Writes one array file per tensor of a sample, with the tensors of all samples."""
    numpy = import_module("numpy")
    rows = [sample if isinstance(sample, (tuple, list)) else (sample,) for sample in samples]
    try:
        for place, values in enumerate(zip(*rows, strict=True)):
            stacked = numpy.stack([numpy.asarray(as_arrays(value)) for value in values])
            numpy.save(folder / f"{place}.npy", stacked, allow_pickle=False)
    except ValueError:
        raise TypeError("samples are no tensors and numbers of the same shapes") from None


def open_mapped(folder: Path) -> Read:
    numpy = import_module("numpy")
    files = sorted(folder.glob("*.npy"), key=lambda path: int(path.stem))
    arrays = [numpy.load(path, mmap_mode="r") for path in files]
    return lambda number: [numpy.array(array[number]) for array in arrays]


FORMATS: dict[str, tuple[Callable[[Path, Sequence[Any]], None], Callable[[Path], Read]]] = {
    "a file each": (write_files, open_files),
    "tar (as WebDataset)": (write_tar, open_tar),
    "Parquet": (write_parquet, open_parquet),
    "Arrow, mapped": (write_arrow, open_arrow),
    "LMDB": (write_lmdb, open_lmdb),
    "memory-mapped arrays": (write_mapped, open_mapped),
}
"""Functions that write samples into a folder and open them there. They raise ImportError if their package is missing,
TypeError for samples that they cannot hold."""


def packed(sample: Any) -> bytes:
    """Pickle of a sample with its tensors as arrays, from which tensors are made without a copy."""
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
    """Results for each format: "name", "bytes" (of a sample on disk), and ns per sample: "ordered_ns" and "random_ns"
    read with files out of the page cache (None if the system does not evict them), "warm_ns" from memory; or
    "left_out", the reason why the format was not measured."""
    found = []
    for name in FORMATS:
        folder = Path(tempfile.mkdtemp(prefix="steptime-format-"))
        try:
            found.append({"name": name, **timed_format(name, folder, samples)})
        except ImportError as error:
            found.append({"name": name, "left_out": f"there is no {error.name} here"})
        except Exception as error:  # noqa: BLE001 - samples are the user's: one that cannot be stored is left out
            found.append({"name": name, "left_out": str(error).partition("\n")[0][:200]})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def timed_format(name: str, folder: Path, samples: Sequence[Any]) -> dict[str, Any]:
    write, opened = FORMATS[name]
    write(folder, samples)
    files = [path for path in folder.rglob("*") if path.is_file()]
    order = list(range(len(samples)))
    shuffled = random.Random(0).sample(order, len(order))
    cold = {}
    for kind, numbers in (("ordered_ns", order), ("random_ns", shuffled)):
        with cleared(files) as fetched:
            duration = read_all(opened(folder), numbers)
        cold[kind] = duration if fetched() else None
    warm = min(read_all(opened(folder), shuffled) for _ in range(PASSES))
    size = sum(path.stat().st_blocks * 512 for path in files) / len(samples)
    return {"bytes": size, "warm_ns": warm, **cold}


def read_all(read: Read, numbers: Sequence[int]) -> float:
    start = time.perf_counter_ns()
    for number in numbers:
        read(number)
    return (time.perf_counter_ns() - start) / len(numbers)


@contextlib.contextmanager
def cleared(files: Sequence[Path]) -> Iterator[Callable[[], int]]:
    """Context manager that evicts files from the page cache. Yields a function that returns the bytes that this process
    has since read from disks: 0 if the files stayed (files in memory, or a system without that call)."""
    os.sync()  # what was not written yet stays; fsync does nothing in an overlay that is thrown away
    for path in files:
        with contextlib.suppress(OSError, AttributeError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = fetched_bytes()
    yield lambda: fetched_bytes() - before


def fetched_bytes() -> int:
    """Bytes that this process has read from disks, by Linux's /proc/PID/io (proc(5)); 0 elsewhere."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.partition("\nread_bytes: ")[2].partition("\n")[0] or 0)


class OpenedFiles:
    """Records the regular files outside of Python's own folders that this process opens while `watching`."""

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

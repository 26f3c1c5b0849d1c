"""Real dumps of real gloo jobs, a folder for each way to hang: `python generate.py FOLDER [MODE…]`.

Each mode is a job of three ranks, forked from a process that has torch: all of them take a few seconds. A rank writes
its dump when as many of its calls are left as the mode leaves for ever, so that no load of the machine changes what is
written, and lives on until all have. The bytes are torch's but for the paths, which start with /venv and /job. The
version of torch that wrote what is stored here is in torch.txt.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

WORLD = 3
DEADLINE = 30.0
"""Seconds for what takes a fraction of one: then the mode does not do what it says."""
TICK = 0.01
os.environ.update(TORCH_FR_BUFFER_SIZE="100", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")

import torch  # noqa: E402 - the size of the ring is read once
import torch._C._distributed_c10d as c10d  # noqa: E402
import torch.distributed as distributed  # noqa: E402
from torch._C._profiler import gather_traceback, symbolize_tracebacks  # noqa: E402
from torch.distributed import ProcessGroup, ReduceOp, all_gather, all_reduce, barrier, broadcast  # noqa: E402

dump_trace: Callable[..., bytes] = vars(c10d)["_dump_fr_trace"]
Mode = Callable[[int, ProcessGroup, Path], int | None]
"""From the rank, a group of ranks 0 and 1, and the job's folder to the number of calls that are left for ever; None
where gloo ends one of the processes, and the others write when that has happened."""


def never_calls(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 is stuck in its own code."""
    if rank != 1:
        all_reduce(torch.ones(20), async_op=True)
    return int(rank != 1)


def other_operation(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 gathers where the others reduce."""
    if rank == 1:
        all_gather([torch.ones(20) for _ in range(WORLD)], torch.ones(20), async_op=True)
    else:
        all_reduce(torch.ones(20), async_op=True)
    return 1


def other_size(rank: int, pair: ProcessGroup, folder: Path) -> None:
    """Rank 1's last batch is shorter."""
    all_reduce(torch.ones(7 if rank == 1 else 20), async_op=True)


def other_type(rank: int, pair: ProcessGroup, folder: Path) -> None:
    """Rank 1 has another precision."""
    all_reduce(torch.ones(20, dtype=torch.float64 if rank == 1 else torch.float32), async_op=True)


def other_reduction(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 takes the maximum where the others add up: no dump holds that, and gloo does not mind."""
    all_reduce(torch.ones(20), op=ReduceOp.MAX if rank == 1 else ReduceOp.SUM, async_op=True)
    return 0


def other_root(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 2 waits for another root than the others name: no dump holds that, either."""
    broadcast(torch.ones(20), src=1 if rank == 2 else 0, async_op=True)
    return int(rank != 1)


def other_order(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 calls the same two collectives the other way round."""
    if rank != 1:
        all_reduce(torch.ones(20), async_op=True)
    broadcast(torch.ones(5), src=0, async_op=True)
    if rank == 1:
        all_reduce(torch.ones(20), async_op=True)
    return 1 if rank == 2 else 2


def other_count(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 has a batch less: it comes to its barrier where the others still reduce."""
    for _ in range(2 if rank == 1 else 3):
        all_reduce(torch.ones(20), async_op=True)
    barrier(async_op=True)
    return 1 if rank == 1 else 2


def other_group(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 0 waits for rank 1 in the group of the two, which waits with rank 2 for rank 0 in that of all."""
    all_reduce(torch.ones(20), group=pair if rank == 0 else None, async_op=True)
    return 1


def straggler(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 comes when rank 0 has written its dump."""
    if rank == 1:
        until((folder / "rank_0").exists)
    all_reduce(torch.ones(20), async_op=True)
    return int(rank == 0)


def died(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 is killed; gloo ends what the others wait for."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce(torch.ones(20), async_op=True)
    return 0


def stopped(rank: int, pair: ProcessGroup, folder: Path) -> int:
    """Rank 1 stands still."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    all_reduce(torch.ones(20), async_op=True)
    return 1


CALLED: tuple[Mode, ...] = (
    never_calls,
    other_operation,
    other_size,
    other_type,
    other_reduction,
    other_root,
    other_order,
    other_count,
    other_group,
    straggler,
    died,
    stopped,
)
MODES = {mode.__name__: mode for mode in CALLED}


def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds. Raises TimeoutError."""
    end = time.monotonic() + DEADLINE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(holds)
        time.sleep(TICK)


def calls_left() -> int:
    """Calls of this process that have not ended."""
    dump = pickle.loads(dump_trace(includeStackTraces=False))
    return sum(not call["retired"] for call in dump["entries"])


def without_paths(dump: bytes) -> bytes:
    """The dump with the machine's paths replaced: in a pickle, a text follows its length."""

    def renamed(found: re.Match[bytes]) -> bytes:
        length = int.from_bytes(found[1], "little")
        path = found[2][:length]
        new = re.sub(rb"^/.*(?=/lib/python3)", b"/venv", path)
        new = re.sub(rb"^/.*(?=/generate\.py$)", b"/job", new)
        return b"X" + len(new).to_bytes(4, "little") + new + found[2][length:]

    return re.sub(rb"X(..\x00\x00)(/[^\x00]*\.py)", renamed, dump, flags=re.DOTALL)


def work(mode: str, rank: int, folder: Path) -> None:
    """A rank of a job, until it is killed."""
    store = distributed.FileStore(str(folder / "store"), WORLD)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    pair = distributed.new_group([0, 1])
    for _ in range(3):
        all_reduce(torch.ones(10))
    if rank < 2:
        all_reduce(torch.ones(10), group=pair)
    barrier()
    until(lambda: calls_left() == 0)
    left = MODES[mode](rank, pair, folder)
    until((folder / "gone").exists if left is None else lambda: calls_left() == left)
    partial = folder / f"partial_{rank}"
    partial.write_bytes(without_paths(dump_trace()))
    partial.rename(folder / f"rank_{rank}")
    signal.pause()


def start(mode: str, rank: int, folder: Path) -> int:
    """Forks a rank."""
    process = os.fork()
    if process == 0:
        try:
            work(mode, rank, folder)
        finally:
            os._exit(1)
    return process


def run(mode: str, folder: Path) -> None:
    """One job, until each of its ranks has written a dump, has died or stands still."""
    folder.mkdir(parents=True)
    processes = [start(mode, rank, folder) for rank in range(WORLD)]
    gone: set[int] = set()

    def over() -> bool:
        for rank in set(range(WORLD)) - gone:
            if os.waitpid(processes[rank], os.WNOHANG | os.WUNTRACED)[0]:
                gone.add(rank)
                (folder / "gone").touch()
        return all(rank in gone or (folder / f"rank_{rank}").exists() for rank in range(WORLD))

    try:
        until(over)
    finally:
        for rank, process in enumerate(processes):
            if rank not in gone or mode == stopped.__name__:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        for path in (folder / "store", folder / "gone"):
            path.unlink(missing_ok=True)


def main(folder: Path, modes: list[str]) -> None:
    """All of these modes, one after the other."""
    symbolize_tracebacks(
        [gather_traceback(python=True, script=False, cpp=True)]
    )  # else each dump reads libtorch's names
    folder.mkdir(exist_ok=True)
    (folder / "torch.txt").write_text(f"{torch.__version__}\n", encoding="utf-8")
    for mode in modes or MODES:
        run(mode, folder / mode)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""Executor on a Ray cluster: each block of turns has a device of its own, and several blocks run at the same time.

Ray decides where. A worker there is a process of its own, with the user's environment and not Ray's:

    python -m steptime.trials.cluster [--detached]

A line of JSON on its standard input is an `Order`, one on its standard output a `ClusterReply`. When standard input
ends, for whatever reason, the worker ends the running job with everything that it started, and then itself. The
machines share the folders of job and trial."""

from __future__ import annotations

import _thread
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

import msgspec

from steptime.clusters import connect, import_ray
from steptime.errors import CommandError, SteptimeError
from steptime.own_python import own_python
from steptime.trials.containment import Workspace, leave
from steptime.trials.execute import ScheduledRun, execute
from steptime.trials.executor import Block, Notify
from steptime.trials.trial import BudgetExhausted, Run

PATIENCE = 60.0
"""Seconds in which a cluster must provide a device; devices that others hold are not waited for."""
LOOK = 1.0
"""Seconds between two checks for a signal while workers are busy."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Environment variables in which Ray names an actor's devices."""
INTERRUPTED = 130
DETACHED = "--detached"


# -- a worker ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """Request to a worker: the run to execute, and its workspace."""

    workspace: Workspace
    scheduled: ScheduledRun


@dataclass(frozen=True, slots=True)
class ClusterReply:
    """Reply to an order. run: the run, if it was executed; spent: True if the budget ran out; refusal: (slug,
    sentence), if nothing can run there."""

    run: Run | None = None
    spent: bool = False
    refusal: tuple[str, str] | None = None


Kind = TypeVar("Kind", Order, ClusterReply)


def encode(document: Order | ClusterReply) -> bytes:
    """Encodes a message as one line of JSON."""
    return msgspec.json.encode(document, enc_hook=os.fspath) + b"\n"


def decode(line: bytes, kind: type[Kind]) -> Kind:
    """Decodes a line. Raises msgspec.DecodeError, also for the empty line of a worker that died."""
    return msgspec.json.decode(line, type=kind, dec_hook=lambda path, text: path(text))


def answer(order: Order) -> ClusterReply:
    workspace = order.workspace
    for folder in (workspace.directory, workspace.folder):
        if not folder.is_dir():
            sentence = (
                f"{socket.gethostname()} has no folder {folder}. On a cluster, the job's folder must be shared "
                "by all machines."
            )
            return ClusterReply(refusal=("folder-gone", sentence))
    try:
        return ClusterReply(run=execute(workspace, order.scheduled))
    except BudgetExhausted:
        return ClusterReply(spent=True)
    except SteptimeError as error:
        return ClusterReply(refusal=(error.slug, error.sentence))


def _listen(source: BinaryIO, orders: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        orders.put(line)
    orders.put(b"")
    _thread.interrupt_main()


def main(arguments: Sequence[str] = ()) -> int:
    """Answers orders until standard input ends. A detached worker is no child of Ray's actor, because Ray kills an
    actor's children before they can end the processes that they have started."""
    if DETACHED in arguments and os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    workspaces: set[Workspace] = set()
    try:
        while line := orders.get():
            order = decode(line, Order)
            workspaces.add(order.workspace)
            sys.stdout.buffer.write(encode(answer(order)))
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for workspace in workspaces:
            leave(workspace)
    return 0


# -- the cluster ------------------------------------------------------------------------------------------------------


class ClusterWorker:
    """Actor on a node of the cluster, with a worker process and the pipes to it."""

    def __init__(self, environment: dict[str, str], on_device: bool) -> None:
        given = {name: os.environ[name] for name in VISIBLE if name in os.environ} if on_device else {}
        self._devices = ",".join(given.values())
        self._process = subprocess.Popen(
            own_python("steptime.trials.cluster", DETACHED),
            env={**environment, **given},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._process.wait()  # it has detached a process, which answers

    def place(self) -> str:
        """Name of the node and its devices, unique to this worker."""
        return f"{socket.gethostname()}/{self._devices or os.getpid()}"

    def run(self, order: bytes) -> bytes:
        """Reply to an order as a line; b"" if the worker died."""
        pipes = self._process
        if pipes.stdin is None or pipes.stdout is None:
            return b""
        with contextlib.suppress(BrokenPipeError):
            pipes.stdin.write(order)
            pipes.stdin.flush()
        return pipes.stdout.readline()


class RayExecutor:
    """Executor on a Ray cluster: the one of RAY_ADDRESS, else one that runs on this machine, else a new one for this
    process, reachable on the loopback address only.

    devices: accelerators per block; 0 for jobs on the CPU, which get a node each. Raises UsageError if Ray is not
    installed, CommandError if no cluster can be reached or has room."""

    def __init__(self, devices: int) -> None:
        self._ray = import_ray("--executor ray")
        self._started = connect(self._ray)
        try:
            self._workers = _make_workers(self._ray, devices)
        except BaseException:
            self.close()
            raise

    @property
    def width(self) -> int:
        """Number of workers (see Executor)."""
        return len(self._workers)

    forking, at_once = False, 1

    def alternates(self, workspace: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """Always False: each run is a process on a device of its own."""
        return False

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        """Yields the runs of all blocks (see Executor); each worker has its own queue of blocks."""
        queues: dict[str, deque[ScheduledRun]] = {place: deque() for place in self._workers}
        for number, block in enumerate(blocks):
            queues[list(queues)[number % len(queues)]].extend(block)
        running: dict[Any, str] = {}

        def start(place: str) -> None:
            if queues[place]:
                scheduled = queues[place].popleft()
                notify(scheduled, None)
                running[self._workers[place].run.remote(encode(Order(workspace, scheduled)))] = place

        for place in queues:
            start(place)
        try:
            while running:
                done, _ = self._ray.wait(list(running), num_returns=1, timeout=LOOK)
                for answer in done:
                    place = running.pop(answer)
                    run = self._read(answer, place)
                    start(place)
                    yield run
        finally:
            for place in running.values():  # interrupted: its worker, and so its job, ends with the actor
                self._ray.kill(self._workers.pop(place))

    def _read(self, reference: Any, place: str) -> Run:
        try:
            answer = decode(self._ray.get(reference), ClusterReply)
        except (self._ray.exceptions.RayError, msgspec.DecodeError):
            answer = ClusterReply()
        if answer.spent:
            raise BudgetExhausted
        if answer.refusal is not None:
            raise SteptimeError(*answer.refusal)
        if answer.run is None:
            raise CommandError(
                "worker-lost",
                f"The trial's worker on {place} was lost: its machine left the cluster, or ran out of memory. "
                "Finished runs are kept; continue with --resume.",
            )
        return replace(answer.run, place=place)

    def close(self) -> None:
        """Ends the workers, and a Ray cluster of its own."""
        for worker in getattr(self, "_workers", {}).values():
            self._ray.kill(worker)
        self._workers = {}
        if self._started:
            self._ray.shutdown()


def _make_workers(ray: Any, devices: int) -> dict[str, Any]:
    """Actors by place, as many as the cluster has room for."""
    actor = ray.remote(ClusterWorker)
    environment = dict(os.environ)
    made = []
    for node, cpus, workers in _rooms(ray.nodes(), devices):
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": cpus, "num_gpus": devices, "scheduling_strategy": strategy, "max_restarts": 0}
        made += [actor.options(**options).remote(environment, devices > 0) for _ in range(workers)]
    asked = {worker.place.remote(): worker for worker in made}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=PATIENCE) if asked else ([], [])
    for reference in late:
        ray.kill(asked[reference])
    if not ready:
        what = f"machine with {devices} free accelerators" if devices else "machine with all its CPUs free"
        raise CommandError("ray-no-room", f"The Ray cluster has no {what}. Wait for one, or leave out --executor.")
    return {ray.get(reference): asked[reference] for reference in ready}


def _rooms(nodes: Sequence[dict[str, Any]], devices: int) -> list[tuple[str, int, int]]:
    """Tuples (node, CPUs per worker, workers) of the nodes that are alive. A worker on the CPU takes its whole node,
    because two jobs would disturb each other's times."""
    found: list[tuple[str, int, int]] = []
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        cpus = int(resources.get("CPU", 0))
        workers = int(resources.get("GPU", 0)) // devices if devices else int(cpus > 0)
        if workers:
            found.append((node["NodeID"], cpus // workers, workers))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv))

"""The executor on a Ray cluster: each block of turns on a device of its own, several blocks at the same time.

Ray decides where; what runs there is a `lane` in a process of its own, with the user's environment and not Ray's, which
ends its job when Ray, the machine of the trial or the trial itself goes away. The folders of job and trial are shared.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from steptime.clusters import connect, import_ray
from steptime.errors import CommandError, SteptimeError
from steptime.trials.conduct import Block, Tell
from steptime.trials.containment import Workspace
from steptime.trials.execute import ScheduledRun
from steptime.trials.trial import Run, Spent
from steptime.trials.worker import DETACHED, Answer, Order, decode_answer, encode

PATIENCE = 60.0
"""Seconds in which a cluster must give us a device: one that others hold is not waited for."""
LOOK = 1.0
"""Seconds between two looks for a signal while lanes work."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""What Ray says with which devices an actor was given."""


class ClusterWorker:
    """An actor: a lane's process on a node of the cluster, and the pipes to it."""

    def __init__(self, environment: dict[str, str], on_device: bool) -> None:
        given = {name: os.environ[name] for name in VISIBLE if name in os.environ} if on_device else {}
        self._devices = ",".join(given.values())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "steptime.trials.worker", DETACHED],
            env={**environment, **given},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._process.wait()  # what it has left behind answers

    def place(self) -> str:
        """The node and its devices, which no two lanes share."""
        import socket

        return f"{socket.gethostname()}/{self._devices or os.getpid()}"

    def run(self, order: bytes) -> bytes:
        """The answer to an order; b"" from a lane that died."""
        pipes = self._process
        if pipes.stdin is None or pipes.stdout is None:
            return b""
        with contextlib.suppress(BrokenPipeError):
            pipes.stdin.write(order)
            pipes.stdin.flush()
        return pipes.stdout.readline()


class RayExecutor:
    """A Ray cluster: the one of RAY_ADDRESS, else one that runs on this machine, else one that is started here, for
    this process, on the loopback address alone.

    devices: accelerators of a block; 0 for jobs on the CPU, which have a node to themselves. Raises UsageError where
    Ray is not installed, CommandError where no cluster can be reached or has no room.
    """

    def __init__(self, devices: int) -> None:
        self._ray = import_ray("--executor ray")
        self._started = connect(self._ray)
        try:
            self._lanes = _make_lanes(self._ray, devices)
        except BaseException:
            self.close()
            raise

    @property
    def width(self) -> int:
        """See Executor."""
        return len(self._lanes)

    def run(self, stand: Workspace, blocks: Sequence[Block], tell: Tell) -> Generator[Run, None, None]:
        """See Executor."""
        queues: dict[str, deque[ScheduledRun]] = {place: deque() for place in self._lanes}
        for number, block in enumerate(blocks):
            queues[list(queues)[number % len(queues)]].extend(block)
        running: dict[Any, str] = {}

        def start(place: str) -> None:
            if queues[place]:
                turn = queues[place].popleft()
                tell(turn, None)
                running[self._lanes[place].run.remote(encode(Order(stand, turn)))] = place

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
            for place in running.values():  # interrupted: its lane, and so its job, ends with the actor
                self._ray.kill(self._lanes.pop(place))

    def _read(self, reference: Any, place: str) -> Run:
        try:
            answer = decode_answer(self._ray.get(reference))
        except (self._ray.exceptions.RayError, msgspec.DecodeError):
            answer = Answer()
        if answer.spent:
            raise Spent
        if answer.refusal is not None:
            raise SteptimeError(*answer.refusal)
        if answer.run is None:
            raise CommandError(
                "lane-lost",
                f"The process of the trial on {place} went away: its machine left the cluster, or ran out of memory. "
                "What was run is kept; --resume goes on.",
            )
        return replace(answer.run, place=place)

    def close(self) -> None:
        """See Executor."""
        for lane in getattr(self, "_lanes", {}).values():
            self._ray.kill(lane)
        self._lanes = {}
        if self._started:
            self._ray.shutdown()


def _make_lanes(ray: Any, devices: int) -> dict[str, Any]:
    """Actors by place, for as many as the cluster has free."""
    actor = ray.remote(ClusterWorker)
    environment = dict(os.environ)
    made = []
    for node, cpus, lanes in _rooms(ray.nodes(), devices):
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": cpus, "num_gpus": devices, "scheduling_strategy": strategy, "max_restarts": 0}
        made += [actor.options(**options).remote(environment, devices > 0) for _ in range(lanes)]
    asked = {lane.place.remote(): lane for lane in made}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=PATIENCE) if asked else ([], [])
    for reference in late:
        ray.kill(asked[reference])
    if not ready:
        what = f"machine with {devices} free accelerators" if devices else "machine with all its CPUs free"
        raise CommandError("ray-no-room", f"The Ray cluster has no {what}: wait, or leave --executor out.")
    return {ray.get(reference): asked[reference] for reference in ready}


def _rooms(nodes: Sequence[dict[str, Any]], devices: int) -> list[tuple[str, int, int]]:
    """(node, CPUs of a lane, lanes) of the nodes that are there. A lane on the CPU takes all of its node: two jobs
    would disturb each other's times."""
    found: list[tuple[str, int, int]] = []
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        cpus = int(resources.get("CPU", 0))
        lanes = int(resources.get("GPU", 0)) // devices if devices else int(cpus > 0)
        if lanes:
            found.append((node["NodeID"], cpus // lanes, lanes))
    return found

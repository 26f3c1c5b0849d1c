"""Our side of the fork server: starts it, asks it for a process, and holds that process like a `Popen`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from steptime.machine import fork_script

PATIENCE = 60.0
"""Seconds for the server to import torch; without an answer, processes start as usual."""
ANSWER = 10.0
"""Seconds for a fork."""
PYTHON = re.compile(r"python(3(\.\d+)?)?")
PROGRAM = b"\x7fELF"
"""First bytes of a program. A Python that is a script starts another one, with more than its command line says."""


def is_forkable(words: Sequence[str]) -> bool:
    """True if a command is a Python with a file or a module, and without options of Python's own."""
    first, *rest = words
    if not PYTHON.fullmatch(Path(first).name) or not rest:
        return False
    with contextlib.suppress(OSError), Path(first).open("rb") as file:
        plain = rest[0].endswith(".py") and not rest[0].startswith("-")
        return file.read(len(PROGRAM)) == PROGRAM and (plain or (rest[0] == "-m" and len(rest) > 1))
    return False


class ForkedJob:
    """Watchdog of a job that the server forked, with the methods of `subprocess.Popen` that its owners call."""

    def __init__(self, pid: int, asked: int, status: int) -> None:
        self.pid, self.stdin = pid, os.fdopen(asked, "wb", buffering=0)
        self.returncode: int | None = None
        self._status, self._ready = status, select.poll()
        self._ready.register(status, select.POLLIN)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not self._ready.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            text = os.read(self._status, 64)
            os.close(self._status)
            self.returncode = int(text) if text else -signal.SIGKILL  # without a word it was killed
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Server for the processes of a trial, started with the first of them. It forks only for commands of one Python in
    one environment."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._python = ""
        self._asking = threading.Lock()
        self.spent = self.took = 0.0
        """Seconds that all starts of the server took, and its last one."""
        self.off = False
        """True once a fork was found to be unsound, or the server cannot be had: processes start as usual."""

    def job(
        self,
        words: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        spec: str,
        files: tuple[IO[bytes], IO[bytes], tuple[int, ...]],
    ) -> ForkedJob | None:
        """Forks a process; None if it must be started in another way. files: for output and for errors, and descriptors
        that its watchdog holds."""
        plain = {name: value for name, value in environment.items() if name not in fork_script.OURS}
        request = {"words": list(words), "directory": str(directory), "environment": dict(environment), "spec": spec}
        with self._asking:
            if self.off or not is_forkable(words):
                return None
            if self._server is None:
                self._start(words[0], directory, plain)
            if self._socket is None or (self._python, self._environment) != (words[0], plain):
                return None
            try:
                return self._fork(self._socket, request, files)
            except (OSError, ValueError):  # it was ended
                self.switch_off()
                return None

    def _start(self, python: str, directory: Path, environment: dict[str, str]) -> None:
        self._python, self._environment, began = python, environment, time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.suppress(OSError):
            self._server = subprocess.Popen(
                (python, fork_script.__file__, str(theirs.fileno())),
                env={**environment, "STEPTIME_INJECT": "", "PYTHONDONTWRITEBYTECODE": "1"},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        ours.settimeout(PATIENCE)
        self._socket = ours
        ready = b""
        with contextlib.suppress(OSError):
            ready = ours.recv(64)
        if ready != fork_script.READY:
            self.switch_off()
        ours.settimeout(ANSWER)
        self.took = time.monotonic() - began
        self.spent += self.took

    def _fork(
        self, server: socket.socket, request: Mapping[str, object], files: tuple[IO[bytes], IO[bytes], tuple[int, ...]]
    ) -> ForkedJob:
        output, errors, held = files
        asked, ask = os.pipe()
        status, ended = os.pipe()
        with open(os.memfd_create("steptime"), "w+", encoding="utf-8") as document:  # noqa: PTH123 - it has no path
            json.dump(request, document)
            document.seek(0)
            given = [document.fileno(), asked, output.fileno(), errors.fileno(), ended, *held]
            try:
                socket.send_fds(server, [b"?"], given)
                return ForkedJob(int(server.recv(64)), ask, status)
            except BaseException:
                os.close(ask)
                os.close(status)
                raise
            finally:
                os.close(asked)
                os.close(ended)

    def switch_off(self) -> None:
        """Ends the server for good."""
        self.off = True
        self.renew()

    def renew(self) -> None:
        """Ends the server; the next process starts another one, with a memory layout of its own. Its forks live on."""
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(ANSWER)
            self._server.kill()
            self._server.wait()
        self._server = self._socket = None

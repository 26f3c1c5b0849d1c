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
        """Waits for the job's end and returns its exit status. Raises subprocess.TimeoutExpired."""
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


class _TorchServer:
    """Server that imports torch, or waits for requests. used: it has forked."""

    def __init__(self, python: str, directory: Path, environment: dict[str, str]) -> None:
        self.made_of = python, directory, environment
        self.used = False
        self._ready: bool | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                (python, fork_script.__file__, str(theirs.fileno())),
                env={**environment, "STEPTIME_INJECT": "", "PYTHONDONTWRITEBYTECODE": "1"},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def is_ready(self) -> bool:
        """Waits until the server has imported torch; False if it could not."""
        if self._ready is None:
            self.socket.settimeout(PATIENCE)
            try:
                self._ready = self.socket.recv(64) == fork_script.READY
            except OSError:
                self._ready = False
            self.socket.settimeout(ANSWER)
        return self._ready

    def end(self) -> None:
        """Ends the server. Its forks live on."""
        self.socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class ForkServer:
    """Server that forks the processes of a trial, started with the first of them, or ahead. It forks only for commands
    of one Python in one environment."""

    def __init__(self) -> None:
        self._server: _TorchServer | None = None
        self._next: _TorchServer | None = None
        self._asking = threading.Lock()
        self.spent = 0.0
        """Seconds that were waited for starts of the server."""
        self.off = False
        """True once a fork was found to be unsound, or the server cannot be had: processes start as usual."""

    def ahead(self, words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        """Starts the server for a command before its first process."""
        if not self.off and self._server is None and self._next is None and is_forkable(words):
            self._next = _TorchServer(words[0], directory, _plain(environment))

    def start_next(self) -> int:
        """Starts the server that `renew` puts in place of this one. Returns its pid; 0 if there is none."""
        with self._asking:
            if self._server is None:
                self._server, self._next = self._next, None
            if self._next is None and self._server is not None and not self.off:
                self._next = _TorchServer(*self._server.made_of)
            return self._next.pid if self._next is not None else 0

    def await_next(self) -> None:
        """Waits until the next server is ready, so that its start disturbs nothing that is timed."""
        if (server := self._next) is not None:
            server.is_ready()

    def job(
        self,
        words: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        spec: str,
        files: tuple[IO[bytes], IO[bytes], tuple[int, ...]],
    ) -> ForkedJob | None:
        """Forks a process for a command; None if it must be started in another way. spec: specification of its
        containment. files: for its output and its errors, and descriptors that its watchdog holds."""
        with self._asking:
            server = self._server_for(words, directory, _plain(environment))
            if server is None:
                return None
            request = {"words": words, "directory": str(directory), "environment": dict(environment), "spec": spec}
            try:
                return self._fork(server.socket, request, files)
            except (OSError, ValueError):  # it was ended
                self.switch_off()
                return None

    def _server_for(self, words: Sequence[str], directory: Path, environment: dict[str, str]) -> _TorchServer | None:
        """Server that can fork for a command, if there is one."""
        if self.off or not is_forkable(words):
            return None
        wanted = words[0], directory, environment
        if self._server is None:
            self._server, self._next = self._next, None
        if self._server is not None and not self._server.used and self._server.made_of[::2] != wanted[::2]:
            self._server.end()  # it was started ahead for something else
            self._server = None
        self._server = self._server or _TorchServer(*wanted)
        began = time.monotonic()
        if not self._server.is_ready():
            self.switch_off()
            return None
        self.spent += time.monotonic() - began
        self._server.used = True
        return self._server if self._server.made_of[::2] == wanted[::2] else None

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
        self.close()

    def renew(self) -> None:
        """Ends the server; a new one, with a memory layout of its own, forks the next process."""
        if self._server is not None:
            self._server.end()
        self._server = None

    def close(self) -> None:
        """Ends the server, and the next one."""
        self.renew()
        self._server, self._next = self._next, None
        self.renew()


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in fork_script.OURS}

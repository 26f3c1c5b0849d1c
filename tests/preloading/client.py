"""Stands for `python` in a command: has the server run the command line, and ends as that ended.

    client.py SOCKET PROGRAM WORD ...

PROGRAM is how the job is to start Pythons of its own.
"""

import _signal as signal  # type: ignore[import-not-found]
import _socket as socket  # what is around it takes longer to import than Python to start
import array
import marshal
import os
import sys

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")

server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect(sys.argv[1])
umask = os.umask(0)
os.umask(umask)
descriptors = [int(name) for name in os.listdir("/proc/self/fd") if int(name) != server.fileno()]
descriptors = [
    number for number in sorted(descriptors) if os.path.exists(f"/proc/self/fd/{number}")
]  # not listdir's own
request = {
    "program": sys.argv[2],
    "words": sys.argv[3:],
    "environment": dict(os.environ),
    "directory": os.getcwd(),
    "umask": umask,
    "numbers": descriptors,
    "group": os.getpgrp(),
    "ignored": [number for number in (2, 15) if signal.getsignal(number) is signal.SIG_IGN],
}
text = marshal.dumps(request)
namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")]  # a trial may contain us
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors + namespaces))]
server.sendmsg([len(text).to_bytes(8, "big")], rights)
server.sendall(text)


def answer() -> bytes:
    """The next line; nothing where the server is gone."""
    line = b""
    while not line.endswith(b"\n") and (more := server.recv(1)):
        line += more
    return line


child = int(answer())
for name in FORWARDED:
    signal.signal(getattr(signal, name), lambda number, frame: os.kill(child, number))
status = int(answer() or 9)  # no answer: the server was killed
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))

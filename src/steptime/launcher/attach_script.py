"""Script inside of gdb: makes a Python process run a line of ours, when it next runs Python.

    gdb -nx -batch -iex "set auto-solib-add off" -x attach_script.py        (STEPTIME_PID, STEPTIME_LINE)

The process is stopped for some milliseconds at a time. The script calls functions in the job only if its main thread is
in no allocator, loader or lock: malloc, and Py_AddPendingCall (Python/C API). The latter takes a C function and its
argument, and threads may call it without any lock. PyRun_SimpleString runs the line in the main thread, between two
bytecodes. Prints "entered", or "busy" if no such moment came.
"""

import os
import time

import gdb  # type: ignore[import-untyped]  # gdb's own Python has it

ATTEMPTS, PAUSE = 100, 0.03
HOLDING = ("libc.so", "libc-", "ld-linux", "ld-musl", "jemalloc", "tcmalloc", "mimalloc", "libpthread")
"""Libraries whose functions may hold a lock that malloc takes."""
WAITING = (
    "read", "write", "poll", "select", "epoll", "nanosleep", "futex", "cond_", "wait", "sem_", "ioctl", "recv", "send",
    "accept", "yield", "syscall", "cancel",
)  # fmt: skip
"""Their functions that wait for the system, and hold no such lock."""
DEEP = 12
"""Most frames examined."""
UNSAFE = ("malloc", "calloc", "realloc", "free", "PendingCall", "dlopen", "fork")


def main() -> None:
    pid, line = int(os.environ["STEPTIME_PID"]), os.environ["STEPTIME_LINE"].encode() + b"\0"
    gdb.execute("set pagination off")
    gdb.execute("set confirm off")
    for _ in range(ATTEMPTS):
        gdb.execute(f"attach {pid}", to_string=True)
        try:
            gdb.execute("sharedlibrary libc", to_string=True)
            gdb.execute("sharedlibrary libpython", to_string=True)
            for thread in gdb.selected_inferior().threads():
                if thread.ptid[1] == pid:
                    thread.switch()
            if is_safe():
                enter(line)
                print("entered")
                return
        finally:
            gdb.execute("detach", to_string=True)
        time.sleep(PAUSE)
    print("busy")


def is_safe() -> bool:
    frame = gdb.newest_frame()
    library, name = gdb.solib_name(frame.pc()) or "", frame.name() or ""
    if any(each in library for each in HOLDING) and not any(each in name for each in WAITING):
        return False
    for _ in range(DEEP):
        if frame is None:
            break
        if any(each in (frame.name() or "") for each in UNSAFE):
            return False
        try:
            frame = frame.older()
        except gdb.error:  # what is below cannot be unwound
            break
    return True


def enter(line: bytes) -> None:
    place = int(gdb.parse_and_eval(f"((unsigned long (*)(unsigned long)) malloc)({len(line)})"))
    gdb.selected_inferior().write_memory(place, line)
    call = f"((int (*)(void *, void *)) Py_AddPendingCall)((void *) PyRun_SimpleString, (void *) {place})"
    if int(gdb.parse_and_eval(call)) != 0:
        raise RuntimeError("the interpreter's queue is full")


if __name__ == "__main__":
    main()

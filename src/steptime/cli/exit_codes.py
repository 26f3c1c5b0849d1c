"""Boundary between steptime and its user: every error becomes one sentence and an exit status here.

Exit statuses: 0 done; 1 refused; 2 invalid command line; 70 a bug of steptime (EX_SOFTWARE of sysexits.h); 130
interrupted. `run` ends as the job did."""

from __future__ import annotations

import errno
import tempfile
import traceback
from collections.abc import Callable

import click

from steptime.answer.printable import one_line
from steptime.answer.screen import notify
from steptime.errors import SteptimeError

BUG = 70
INTERRUPTED = 130
OUTSIDE = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.EAGAIN,
})  # fmt: skip
"""Errors of the system (permissions, space, other limits) that can occur anywhere and are no bug of steptime."""


def shield(action: Callable[[], int]) -> int:
    """Runs an action and returns its exit status; an error becomes a sentence on standard error, never a traceback."""
    try:
        return action()
    except SteptimeError as error:
        say(str(error))
        return error.exit_status
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        say(f"{error.format_message()} See: {error.ctx.command_path if error.ctx else 'steptime'} --help (usage)")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except OSError as error:
        if error.errno in OUTSIDE:
            what = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
            say(
                f"The system refused a file, a process or memory that this command needs ({what}). Free it, or "
                "work in another folder. (system-refused)"
            )
            return 1
        if error.errno != errno.ENAMETOOLONG:
            return _bug(error)
        say("A file name is too long: check the paths of this command. (usage)")
        return 2
    except Exception as error:  # noqa: BLE001 - the boundary: a bug of ours is reported as one
        return _bug(error)


def _bug(error: Exception) -> int:
    say(f"This is a bug of steptime: {type(error).__name__}: {error}. {_keep_traceback()} (bug)")
    return BUG


def say(sentence: str) -> None:
    """Prints a line on standard error, prefixed with steptime's name."""
    notify(f"steptime: {one_line(sentence)}\n", error=True)


def _keep_traceback() -> str:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="steptime-bug-", suffix=".log", delete=False) as log:
            log.write(traceback.format_exc())
        return f"Please report it with {log.name}. Recordings and reports already written are intact."
    except OSError:
        return f"Please report it with this: {traceback.format_exc()}"

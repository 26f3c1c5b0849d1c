"""Rules of third parties, through the entry point group "steptime.rules".

One law: what a plugin gets wrong is said in words at load, and costs nobody their diagnosis.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import EntryPoint, entry_points
from types import FrameType

from steptime.findings.rule import Rule

GROUP = "steptime.rules"


def plugin_rules(
    taken: Iterable[Rule], found: Iterable[EntryPoint] | None = None
) -> tuple[tuple[Rule, ...], tuple[tuple[str, str], ...]]:
    """Rules of plugins, and ("plug-in" and its name, what is wrong) for each one that cannot be used.

    taken: rules whose codes and names are in use. found: entry points to load, by default those installed.
    """
    codes = {rule.code: rule.name for rule in taken}
    rules: list[Rule] = []
    problems: list[tuple[str, str]] = []
    for entry in entry_points(group=GROUP) if found is None else found:
        try:
            loaded = _loaded(entry)
        except ImportError as error:
            problems.append((f"plug-in {entry.name}", str(error)))
            continue
        problem = _problem(entry, loaded, codes)
        if problem or not isinstance(loaded, Rule):
            problems.append((f"plug-in {entry.name}", problem))
        else:
            codes[loaded.code] = loaded.name
            rules.append(loaded)
    return tuple(rules), tuple(problems)


def _loaded(entry: EntryPoint) -> object:
    """What an entry point stands for. What its module prints goes to standard error: standard output may be a report.

    Raises ImportError, in words, whatever the module raises, an exit too; KeyboardInterrupt where it was the user's.
    """
    with _interrupts() as interrupts, redirect_stdout(sys.stderr):
        try:
            return entry.load()
        except BaseException as error:  # a stranger's module may raise anything, or exit
            if interrupts and isinstance(error, KeyboardInterrupt):
                raise
            told = traceback.format_exception_only(error)[-1].strip()
            raise ImportError(f"{entry.value} cannot be imported: {told}") from None


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The interrupts by the user inside of the block, by which a KeyboardInterrupt is known as theirs."""
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield seen
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _problem(entry: EntryPoint, loaded: object, codes: dict[str, str]) -> str:
    """What is wrong with a loaded entry point, "" when nothing is."""
    if not isinstance(loaded, Rule):
        return f"{entry.value} is a {type(loaded).__name__}, not a rule: decorate it with steptime.findings.rule.rule"
    if loaded.code in codes:
        return f"{entry.value} has the code {loaded.code}, which {codes[loaded.code]} has already: take another"
    if loaded.name in codes.values():
        return f"{entry.value} has the name {loaded.name}, which another rule has already: take another"
    return ""

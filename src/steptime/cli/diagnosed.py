"""The report of what a command line names: remembered, or made now. The analysis is imported only where it is needed,
which takes as long as all the rest of a second look."""

from __future__ import annotations

from pathlib import Path

from steptime.report.remembered import question_about, recall, remember
from steptime.report.report import Report


def diagnosed(
    paths: tuple[str, ...],
    *,
    max_size: int,
    cache: bool,
    pictures: bool,
    compile_logs: Path | None,
    ncu: Path | None,
    engine: str | None = None,
    workers: int | None = None,
) -> Report:
    """As `diagnosis.diagnose_anywhere`, of one trace from the cache where it was asked the same before."""
    plain = cache and len(paths) == 1 and compile_logs is None and ncu is None and engine is None and workers is None
    question = question_about(paths[0], pictures=pictures, max_size=max_size) if plain else None
    if question is not None and (report := recall(question)) is not None:
        return report
    from steptime.diagnosis import Beside, diagnose_anywhere

    report = diagnose_anywhere(
        paths,
        max_size=max_size,
        cache=cache,
        engine=engine,
        workers=workers,
        pictures=pictures,
        beside=Beside(compile_logs, ncu),
    )
    if question is not None:
        remember(question, report)
    return report

"""Which function a line or an operator belongs to, where a trace and the timed lines name it differently."""

from __future__ import annotations

from steptime.quantities import SourceLine


def function_of(source: SourceLine) -> tuple[str, str]:
    """A function by the names of its file and its own: traces shorten paths and leave classes out."""
    return source.file.replace("\\", "/").rsplit("/", 1)[-1], source.function.rsplit(".", 1)[-1]

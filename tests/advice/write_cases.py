"""Writes the planted cases as JSON, from tests/: `python -m advice.write_cases`; --check names those that differ."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
from advice.planted import PLANTED

CASES = Path(__file__).parent / "cases"


def wanted() -> dict[Path, bytes]:
    """Every file with its content."""
    return {
        CASES / rule / f"{name.replace(' ', '-').replace(chr(39), '')}.json": msgspec.json.format(
            msgspec.json.encode(reported(case)), indent=1
        )
        + b"\n"
        for rule, cases in PLANTED.items()
        for name, case in cases.items()
    }


def reported(value: Any) -> Any:
    """A case without what has its default: a new field of `Case` changes no file."""
    if isinstance(value, tuple):
        return [reported(item) for item in value]
    if not is_dataclass(value):
        return value
    named = ((field, getattr(value, field.name)) for field in fields(value))
    return {field.name: reported(item) for field, item in named if field.default is MISSING or item != field.default}


def main(arguments: list[str]) -> int:
    """Writes, or compares."""
    files = wanted()
    there = {path: path.read_bytes() for path in CASES.rglob("*.json")}
    stale = sorted(path for path in files.keys() | there.keys() if files.get(path) != there.get(path))
    if "--check" in arguments:
        sys.stderr.write("".join(f"{path} is not current\n" for path in stale))
        return 1 if stale else 0
    for path in stale:
        if path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Writes the planted cases as JSON, from tests/: `python -m findings.write_cases`; --check names those that differ."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from findings.planted import PLANTED

CASES = Path(__file__).parent / "cases"


def wanted() -> dict[Path, bytes]:
    """Every file with its content."""
    return {
        CASES / rule / f"{name.replace(' ', '-').replace(chr(39), '')}.json": msgspec.json.format(
            msgspec.json.encode(case), indent=1
        )
        + b"\n"
        for rule, cases in PLANTED.items()
        for name, case in cases.items()
    }


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

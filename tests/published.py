"""Traces that other projects have published: all of them in the folder next to the project, ten small ones in the
clone.

`shared_data` (conftest.py) is the folder of one of the two. A test that asks for a file that only the larger one has is
skipped with its name.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

import pytest

from steptime.trace.reader import read
from steptime.trace.table import Trace

ROOT = Path(__file__).resolve().parent.parent
CLONED = ROOT / "tests" / "data" / "published"
"""See its README.md for sources and licences."""
UNHIDDEN = Path(os.environ.get("STEPTIME_DATA", ROOT.parent / "shared" / "data"))
IN_A_CLONE = not UNHIDDEN.is_dir()
DATA = CLONED if IN_A_CLONE else UNHIDDEN
NO_DATA = {"README.md", "expected.json", "LICENSE-HolisticTraceAnalysis", "LICENSE-TraceLens"}
FILES = sorted(path for path in DATA.rglob("*") if path.is_file() and path.name not in NO_DATA)


ALIKE = re.compile(
    r"param/dlrm_kineto/worker[1-6]_|hta/trace_filter/sampled_rank-1|/rank_not_found_v0|/simple_add/output/"
    r"|google_owlv2|/negative_queue_length_values_check/rank0|resnet50_workers4|/resnet_act_checkpoint"
)
"""Files of which another one is like them and smaller: other ranks of a job, other runs."""


def is_alike(path: Path) -> bool:
    """True for a file that only the slow tests look at."""
    return ALIKE.search(path.as_posix()) is not None


class Published(type(Path())):  # type: ignore[misc]
    """A folder of which a test asks for files by name: where one is absent, the test is skipped."""

    def __truediv__(self, name: str | Path) -> Published:
        found = Published(Path(self) / name)
        if not found.exists():
            pytest.skip(f"{name} is not in {self} (set STEPTIME_DATA)")
        return found


def whole() -> None:
    """Skips a test that needs them all."""
    if IN_A_CLONE:
        pytest.skip(f"{UNHIDDEN}, with all published traces, is not here (set STEPTIME_DATA)")


@lru_cache(maxsize=8)
def trace_of(path: Path) -> Trace:
    """A published trace, read once for the tests that look at it one after another."""
    return read(path)

"""A second look at a large trace says what the first one said, or looks anew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from traces import Events, kernel, launch, operator, step, trace_file

from steptime import diagnosis
from steptime.advice import engine
from steptime.cli.delivery import diagnosed
from steptime.folders import cache_folder
from steptime.report import remembered
from steptime.report.report import Report
from steptime.trace import cache, entries
from steptime.trace.reader import DEFAULT_MAX_SIZE

ask = partial(diagnosed, max_size=DEFAULT_MAX_SIZE, cache=True, pictures=False, compile_logs=None, ncu=None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, empty; small traces are remembered, too, and files that were written just now."""
    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_SIZE", 0)
    monkeypatch.setattr(entries, "QUIET_NS", -(10**18))
    return tmp_path / "cache" / "traces"


@pytest.fixture
def diagnoses(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was diagnosed in earnest."""
    seen: list[object] = []
    in_earnest = diagnosis.diagnose_anywhere

    def counted(paths: tuple[str, ...], **options: object) -> Report:
        seen.append(paths)
        return in_earnest(paths, **options)

    monkeypatch.setattr(diagnosis, "diagnose_anywhere", counted)
    return seen


def a_trace(path: Path, steps: int = 6) -> Path:
    """Steps of 1 ms on a device: one matrix product in each."""
    events: Events = []
    for number in range(steps):
        start = 1000 * number
        events += [step(start, start + 900, number), operator("aten::mm", start + 10, start + 60)]
        events += [launch(number + 1, start + 20, start + 30), kernel(number + 1, start + 40, start + 700)]
    path.parent.mkdir(parents=True, exist_ok=True)
    return trace_file(path, events)


@pytest.mark.parametrize(
    "name",
    [
        "aorta/mi350x_repeated_correlation.pt.trace.json",
        "hta/cpu_only/full_old_rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
        "hta/trace_filter/sampled_rank-0.json.gz",
        "param/dlrm_kineto/worker0_step_12.1694128201545.pt.trace.json.gz",
    ],
)
@pytest.mark.parametrize("pictures", [False, True])
def test_a_second_look_says_exactly_what_the_first_one_reported(
    name: str, pictures: bool, folder: Path, diagnoses: list[object], shared_data: Path
) -> None:
    path = (str(shared_data / name),)
    plain = diagnosis.diagnose_paths(path, cache=False, pictures=pictures)
    first, second = (ask(path, pictures=pictures) for _ in range(2))
    assert len(diagnoses) == 1
    assert first == second == plain
    contents = [[each.content for each in report.processes[0].traces] for report in (first, second)]
    assert contents[0] == contents[1] or not pictures


def test_a_second_look_imports_no_analysis_of_its_own(tmp_path: Path) -> None:
    """What it does not import takes no time."""
    trace = a_trace(tmp_path / "t.json")
    code = (
        "import sys; from steptime.trace import cache, entries; from steptime.cli.main import main; "
        "cache.LEAST_SIZE = 0; entries.QUIET_NS = -10**18; "
        "main(sys.argv[1:]); print('steptime.diagnosis' in sys.modules, file=sys.stderr)"
    )
    environment = {**os.environ, "STEPTIME_CACHE_DIR": str(tmp_path / "cache")}
    words = [sys.executable, "-c", code, "diagnose", str(trace)]
    first, second = (
        subprocess.run(words, capture_output=True, text=True, check=True, env=environment) for _ in range(2)
    )
    assert first.stdout == second.stdout != ""
    assert (first.stderr, second.stderr) == ("True\n", "False\n")


def changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_trace(path, steps=7)


def code_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_code", lambda: "another")


def peaks_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache_folder() / "peaks-of-another.json").write_text("{}")


def compiled_alongside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path.parent / "dedicated_log_torch_trace_rank_0.log").write_text("")


def packages_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path.parent)


def damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = (cache_folder() / "traces").glob("*.answer")
    entry.write_bytes(entry.read_bytes().replace(b"gemm", b"gemv"))


def cut_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = (cache_folder() / "traces").glob("*.answer")
    entry.write_bytes(entry.read_bytes()[:-1])


def of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)


@pytest.mark.parametrize(
    "happened",
    [
        changed,
        code_changed,
        peaks_measured,
        compiled_alongside,
        packages_changed,
        damaged,
        cut_short,
        of_another_user,
    ],
)
def test_whatever_an_answer_depends_on_is_asked_anew_when_it_changes(
    happened: Callable[[Path, pytest.MonkeyPatch], None],
    folder: Path,
    diagnoses: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = a_trace(tmp_path / "trace" / "t.json")
    ask((str(path),))
    happened(path, monkeypatch)
    again = ask((str(path),))
    assert len(diagnoses) == 2
    assert again == diagnosis.diagnose_paths((str(path),), cache=False, pictures=False)


def test_each_name_and_each_kind_of_report_has_an_answer_of_its_own(
    folder: Path, diagnoses: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_trace(tmp_path / "t.json")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert ask((str(path),)).source == str(path)
        assert ask(("t.json",)).source == "t.json"
        assert ask(("t.json",), pictures=True).processes[0].step_view is not None
    assert len(diagnoses) == 3


def test_what_was_asked_otherwise_is_not_remembered(folder: Path, diagnoses: list[object], tmp_path: Path) -> None:
    path, other = a_trace(tmp_path / "rank0.json"), a_trace(tmp_path / "rank1.json")
    for _ in range(2):
        ask((str(path),), cache=False)
        ask((str(path), str(other)), cache=False)
        ask((str(path),), workers=1)
    assert len(diagnoses) == 6
    assert not list(folder.glob("*.answer"))


def test_a_report_in_which_a_plug_in_had_a_part_is_not_remembered(
    folder: Path, diagnoses: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rules = a_trace(tmp_path / "t.json"), engine.all_rules()[0]
    mine = replace(rules[0], code="ST999", name="mine")
    monkeypatch.setattr(engine, "all_rules", lambda: ((*rules, mine), ()))
    for _ in range(2):
        ask((str(path),))
    assert len(diagnoses) == 2


def test_a_pipe_is_not_opened_to_be_asked_about(folder: Path, tmp_path: Path, in_time: None) -> None:
    os.mkfifo(tmp_path / "t.json")
    assert remembered.question_about(str(tmp_path / "t.json"), pictures=False, max_size=1) is None

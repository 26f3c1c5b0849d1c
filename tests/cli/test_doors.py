"""The verbs that need no job: explain, env, diagnose and report of what exists already."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steptime.cli.main import GROUPS, VERBS

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twelve steps of a made-up job on a CPU: half of each in the loader, half in one operator."""
    events = []
    for step in range(12):
        since = 1000.0 * step
        marks = (
            (f"ProfilerStep#{step}", "user_annotation", since, 1000.0),
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", since, 500.0),
            ("aten::mm", "cpu_op", since + 500.0, 500.0),
        )
        events += [
            {"ph": "X", "cat": event_kind, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration}
            for name, event_kind, start, duration in marks
        ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    return path


def test_explain_lists_the_rules_and_shows_pages(steptime: Steptime) -> None:
    listing = steptime("explain").stdout.splitlines()
    assert len(listing) >= 30
    code, name = listing[0].split()[:2]
    by_code, by_name = steptime("explain", code.lower()), steptime("explain", name)
    assert by_code.stdout == by_name.stdout
    for heading in ("What it means", "How we know", "What helps", "When to ignore it"):
        assert f"## {heading}" in by_code.stdout


def test_explain_shows_messages_by_the_word_in_their_parentheses(steptime: Steptime) -> None:
    refused = steptime("diagnose", "nowhere").stderr
    slug = refused.rsplit("(", 1)[1].rstrip(")\n")
    page = steptime("explain", slug)
    assert page.returncode == 0
    assert page.stdout.startswith(f"# {slug}\n")


def test_explain_says_which_time_a_category_has(steptime: Steptime) -> None:
    page = steptime("explain", "overhead").stdout
    assert page.startswith("# overhead: a category of the step\n")
    assert "launches kernels" in page
    assert "A CPU step has none of it." in steptime("explain", "sync").stdout
    assert "did you mean overhead?" in steptime("explain", "overheads").stderr


def test_explain_suggests_what_was_meant(steptime: Steptime) -> None:
    assert "did you mean input-wait?" in steptime("explain", "input-wai").stderr


def test_a_trace_is_accounted_for_without_torch(steptime: Steptime, trace: Path) -> None:
    run = steptime("diagnose", trace)
    assert run.returncode == 0
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    shares = {line.split()[0]: line.split()[-3:-1] for line in lines if "█" in line}
    assert shares == {"input": ["50", "%"], "compute": ["50", "%"]}


def test_the_next_command_can_be_pasted(steptime: Steptime, trace: Path) -> None:
    for words in (("diagnose", trace), ("report", trace, "-o", "-")):
        last = steptime(*words).stdout.splitlines()[-1]
        assert last.startswith("Next:  steptime ")
        after = steptime(
            *shlex.split(last.removeprefix("Next:  steptime ")), *(["--force"] if " report " in last else [])
        )
        assert after.returncode == 0, after.stderr


def test_a_diagnosis_takes_torch_nowhere(trace: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from steptime.cli.main import main\n"
        f"sys.exit(main(['diagnose', {str(trace)!r}]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_every_format_and_standard_output_can_be_asked_for_at_once(
    steptime: Steptime, trace: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"r{extension}" for extension in (".md", ".json", ".txt")]
    run = steptime("diagnose", trace, *(word for file in files for word in ("-o", file)), "-o", "-", "--full")
    assert run.returncode == 0
    assert [line for line in run.stderr.splitlines() if line.startswith("steptime: Wrote ")] == run.stderr.splitlines()
    assert len(run.stderr.splitlines()) == 3
    assert (tmp_path / "r.txt").read_text(encoding="utf-8") == run.stdout
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert report["processes"][0]["verdict"]["bottleneck"]
    again = steptime("diagnose", tmp_path / "r.json")
    assert again.stdout == run.stdout, "a report that was saved says the same"


def test_json_is_the_report_and_nothing_else(steptime: Steptime, trace: Path) -> None:
    report = json.loads(steptime("diagnose", trace, "--json", "--full").stdout)
    assert report["schema_version"] == 3
    step = report["processes"][0]["case"]["step"]["duration"]["value"]
    assert sum(
        category["duration"]["value"] for category in report["processes"][0]["case"]["categories"]
    ) == pytest.approx(step)


def test_a_folder_of_traces_is_a_job_of_several_ranks(steptime: Steptime, trace: Path) -> None:
    folder = trace.parent / "ranks"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank{rank}.json.gz").write_bytes(trace.read_bytes())
    report = json.loads(steptime("diagnose", folder, "--json", "--full").stdout)
    assert [process["name"] for process in report["processes"]] == ["rank 0", "rank 1"]


def test_env_describes_the_machine_as_json(steptime: Steptime) -> None:
    """As it was measured once: tests/machine measures."""
    pytest.importorskip("torch")
    run = steptime("env", "--json", "--python", sys.executable)
    assert run.returncode == 0
    environment = json.loads(run.stdout)
    assert environment["identity"]["usable_cpus"] >= 1
    assert environment["machines"][0]["measured"]


def test_a_reader_that_leaves_early_is_no_error(trace: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -c 'from steptime.cli.main import entry; entry()' explain | head -n 1"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert run.stdout.startswith("ST1")
    assert "Traceback" not in run.stderr
    assert "Exception" not in run.stderr


def test_steptime_alone_shows_its_verbs(steptime: Steptime) -> None:
    run = steptime()
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == steptime("--help").stdout
    assert len(run.stdout.splitlines()) <= 42


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("diagnos", "x"), "Did you mean 'diagnose'?"),
        (("diagnose", "--fulll", "x"), "Did you mean '--full'?"),
        (("python", "train.py", "--epochs", "3"), "Did you mean: steptime run -- python train.py --epochs 3?"),
        (("train.py",), "Did you mean: steptime run -- train.py?"),
        ((".",), "Did you mean: steptime diagnose .?"),
        (("qqqqq",), "No such command 'qqqqq'. See: steptime --help"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(steptime: Steptime, words: tuple[str, ...], meant: str) -> None:
    run = steptime(*words)
    assert run.returncode == 2
    assert meant in run.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("steptime di", "plain,diagnose"),
        ("steptime diagnose --ann", "plain,--annotate"),
        ("steptime diagnose tra", "file,tra"),
        ("steptime run -- python tra", "file,tra"),
        ("steptime report x -o tra", "file,tra"),
        ("steptime explain ST101", "plain,ST101"),
    ],
)
def test_a_shell_completes_verbs_options_files_and_codes(
    steptime: Steptime, monkeypatch: pytest.MonkeyPatch, words: str, completed: str
) -> None:
    monkeypatch.setenv("_STEPTIME_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert steptime().stdout.splitlines() == [completed]


@pytest.mark.parametrize("words", [(), ("--help",), ("--version",), ("-h",)])
def test_the_help_loads_no_package_but_click(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom steptime.cli.main import main\n"
        f"main({list(words)!r})\n"
        "heavy = {'numpy', 'msgspec', 'libcst', 'rich', 'jinja2', 'psutil', 'torch'} & set(sys.modules)\n"
        "sys.exit(bool(heavy) and f'{sorted(heavy)} were imported')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_every_verb_is_in_one_group_with_a_line_that_fits() -> None:
    assert list(VERBS) == [verb for verbs in GROUPS.values() for verb in verbs]
    assert len(VERBS) == sum(map(len, GROUPS.values()))
    assert max(map(len, VERBS.values())) <= 64


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_gives_a_shell_its_completion(
    steptime: Steptime, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("_STEPTIME_COMPLETE", f"{shell}_source")
    run = steptime()
    assert run.returncode == 0, run.stderr
    assert f"_STEPTIME_COMPLETE={shell}_complete" in run.stdout

"""Names that a trial's files hold: what is no plain name removes, runs and writes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from steptime.cli.mcp import TOOLS
from steptime.cli.verbs.judge import command as judge
from steptime.cli.verbs.lab import command as lab
from steptime.cli.verbs.trial import command as try_
from steptime.errors import RecordingError, UsageError
from steptime.launcher.watchdog import clear
from steptime.trials.containment import Workspace, contained
from steptime.trials.names import own_folder
from steptime.trials.results import NAME, Metric, PatchResult, Plan, append_result, read_results
from steptime.trials.trial import Run, Variant

HOSTILE = ("x/../../../victim", "../victim", "/victim", ".hidden", "", "a b", "a\0b", "a\nb", "ä", "x" * 300)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_variant_nor_run_has_another_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name"):
        Variant(name)
    run = Run("a", stage=0, round=0, position=0, seed=0, rehearsal=False, failure="", seconds=1.0)
    for field in ("variant", "folder") if name else ():
        with pytest.raises(ValueError, match="is not a valid name"):
            replace(run, **{field: name})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../../b", "..", "", ".", "a\0b"])
def test_no_source_is_anywhere_else(path: str) -> None:
    with pytest.raises(ValueError, match="is not a relative path"):
        Variant("a", sources=((path, "text"),))
    Variant("a", sources=(("../beside/model.py", "text"), ("model.py", "text")))


def planted(folder: Path, *, uncontained: bool = False, **variant: object) -> Path:
    """A trial as its file says, of a stranger's hand."""
    trial = folder / "runs" / "trial"
    metric = Metric("(.*)")
    append_result(trial, plan=Plan(("true",), str(folder), "", (Variant("a"),), 0.03, metric=metric))
    document = json.loads((trial / NAME).read_text())
    document["plan"]["variants"][0].update(variant)
    document["plan"]["uncontained"] = uncontained
    (trial / NAME).write_text(json.dumps(document) + "\n")
    return trial


@pytest.mark.parametrize("verb", [judge, lab, try_])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_alongside_a_trial_is_not_removed(tmp_path: Path, verb: object, name: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "thesis.tex").write_text("mine")
    trial = planted(tmp_path, name=name)
    with pytest.raises(RecordingError, match="damaged"):
        CliRunner().invoke(verb, ["--resume", str(trial)], catch_exceptions=False, standalone_mode=False)  # type: ignore[arg-type]
    assert (tmp_path / "victim" / "thesis.tex").read_text() == "mine"


def test_what_a_file_says_to_be_lifted_is_not(tmp_path: Path) -> None:
    trial = planted(tmp_path, uncontained=True)
    document = json.loads((trial / NAME).read_text())
    document["plan"]["command"] = ["sh", "-c", "true", "s3://bucket"]
    (trial / NAME).write_text(json.dumps(document) + "\n")
    with pytest.raises(UsageError, match="add --uncontained"):
        CliRunner().invoke(judge, ["--resume", str(trial)], catch_exceptions=False, standalone_mode=False)


def test_no_link_is_followed_out_of_a_trial(tmp_path: Path) -> None:
    (tmp_path / "victim" / "0-000-a").mkdir(parents=True)
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "variants").symlink_to(tmp_path / "victim")
    with pytest.raises(RecordingError, match="is a symbolic link"):
        own_folder(tmp_path / "trial", "variants", "0-000-a")
    (tmp_path / "trial" / "copies").symlink_to(tmp_path / "victim")
    workspace = Workspace(("true",), tmp_path / "trial", tmp_path)
    with (
        pytest.raises(RecordingError, match="is a symbolic link"),
        contained(workspace, "0-000-a", tmp_path / "recording"),
    ):
        pass
    assert (tmp_path / "victim" / "0-000-a").is_dir()


def test_a_workspace_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir(mode=0o500)
    folder = own_folder(tmp_path, "copies", "a")
    (folder / "locked").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "victim")
    (folder / "locked").chmod(0)
    clear(folder)
    assert not folder.exists()
    assert (tmp_path / "victim").stat().st_mode & 0o777 == 0o500


def test_results_that_are_a_link_are_none(tmp_path: Path) -> None:
    trial = planted(tmp_path)
    (trial / NAME).rename(tmp_path / "elsewhere")
    (trial / NAME).symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(RecordingError):
        read_results(trial)
    with pytest.raises(OSError, match="symbolic links"):
        append_result(trial, plan=Plan(("true",), "/", "", (), 0.03))
    assert (tmp_path / "elsewhere").read_bytes() == before


def test_no_command_but_that_of_a_patch_is_reported(tmp_path: Path) -> None:
    PatchResult("", (), (), None, apply="git -C '/a b' apply /c/patch.diff")
    for apply in ("rm -rf /", "git -C /a apply /b; rm -rf /", "git -c core.pager=x apply y"):
        with pytest.raises(ValueError, match="is not a command"):
            PatchResult("", (), (), None, apply=apply)


def test_an_agent_goes_on_with_no_strangers_trial(tmp_path: Path) -> None:
    """Its changes are code, which the client of the call has not given."""
    anyio = pytest.importorskip("anyio")
    trial = planted(tmp_path, sources=[["train.py", "print('evil')"]])
    kind, function = TOOLS["judge"]
    given = kind(command=["true"], directory=str(tmp_path), resume=str(trial))

    async def notify(sentence: str) -> None:
        raise AssertionError(sentence)

    with pytest.raises(UsageError, match="This account did not plan"):
        anyio.run(function, given, notify)


def test_a_diff_copies_and_makes_nothing_outside_of_its_scratch(tmp_path: Path) -> None:
    from steptime.trials.candidates import from_diff

    job = tmp_path / "job"
    job.mkdir()
    (tmp_path / "secret").write_text("a\n")
    (job / "change.diff").write_text("--- a/../secret\n+++ b/../secret\n@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(UsageError):
        from_diff(job / "change.diff", job, "diff-1")
    assert (tmp_path / "secret").read_text() == "a\n"


def test_a_plan_of_our_own_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steptime import written
    from steptime.trials.results import is_our_trial

    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path / "cache"))
    plan = Plan(("true",), str(tmp_path), "", (), 0.03)
    append_result(tmp_path / "ours", plan=plan)
    assert is_our_trial(tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / NAME).write_bytes((tmp_path / "ours" / NAME).read_bytes().replace(b"0.03", b"0.04"))
    assert not is_our_trial(tmp_path / "theirs")
    for number in range(written.MOST):
        written.remember(b"%d" % number)
    assert written.is_ours(b"%d" % (written.MOST - 1))
    assert not is_our_trial(tmp_path / "ours"), "so long ago it is not known any more"
    assert (tmp_path / "cache" / written.NAME).stat().st_size <= (written.MOST + 1) * (written.LENGTH + 1)
    monkeypatch.setenv("STEPTIME_CACHE_DIR", "/dev/null/no")
    written.remember(b"1")
    assert not written.is_ours(b"1")

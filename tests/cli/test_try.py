"""`steptime try` and `steptime lab` at the door: what they refuse before anything is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from advice.planted import PLANTED

from steptime.advice.fix import Goal, Option, Proposal, Snippet
from steptime.advice.fixes.input import whole_tensor
from steptime.answer.text import as_text
from steptime.cli.main import main
from steptime.cli.trial import TrialOptions, _next, _nothing_to_try, named_fix, only
from steptime.errors import UsageError
from steptime.quantities import Estimate, SourceLine
from steptime.report.verdict_words import reason_text
from steptime.trials.results import PatchResult, Plan, append_result
from steptime.trials.trial import MAX_ROUNDS, Agreement, Budget, Judgement, TrialVerdict, Variant


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (["try"], "no-recording"),
        (["try", "--resume", "x", "runs/y"], "usage"),
        (["try", "--budget", "soon", "x"], "usage"),
        (["try", "--resume", "nowhere"], "no-such-file"),
        (["try", "-o", "x.pdf", "nowhere"], "output-format"),
        (["try", "-o", "gone/x.txt", "nowhere"], "output-unwritable"),
        (["try", "."], "no-recording"),
        (["try", "no-such-program"], "command-not-found"),
        (["lab"], "no-recording"),
        (["lab", "--batch-sizes", "16,x", "runs/y"], "usage"),
        (["lab", "--batch-sizes", "0", "runs/y"], "usage"),
    ],
)
def test_what_cannot_be_followed_is_one_sentence(
    words: list[str], slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) in (1, 2, 127)
    reported = capsys.readouterr()
    assert reported.out == ""
    assert f"({slug})" in reported.err.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("verb", ["try", "lab"])
def test_options_may_follow_a_recording(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text('{"format_version": 1}')
    before = main([verb, "--quiet", str(tmp_path)]), capsys.readouterr()
    behind = main([verb, str(tmp_path), "--quiet"]), capsys.readouterr()
    assert before == behind
    assert "(too-few-steps)" in before[1].err, "the recording was read"


@pytest.mark.parametrize("verb", ["try", "lab"])
def test_a_word_behind_a_recording_is_refused(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text('{"format_version": 1}')
    assert main([verb, str(tmp_path), "train.py"]) == 2
    assert "only options may follow it" in " ".join(capsys.readouterr().err.split())


def test_options_behind_a_program_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["try", "no-such-program", "--budget", "nonsense"]) == 127
    assert "nonsense" not in capsys.readouterr().err


@pytest.mark.parametrize("code", ["RM101", "rm101", "fitting-workers"])
def test_a_fix_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 0
    assert "What it promises" in capsys.readouterr().out


def test_advice_names_the_line_and_what_it_could_save_at_most(tmp_path: Path) -> None:
    site = SourceLine("train.py", 12, text="for row in rows:")
    option = Option("a loop", edit=Snippet("y = x @ w", site), advice="Replace the loop by one operator.")
    proposal = Proposal(whole_tensor, option, "ST301", 2.5e6)
    reported = as_text(_nothing_to_try((proposal,), tmp_path, Goal.SPEED))
    message = " ".join(reported.split())
    assert "train.py:12: Replace the loop by one operator. It saves at most 2.50 ms per step." in message
    assert "steptime explain RM108" in message
    assert "  y = x @ w\n" in reported
    assert reported.splitlines()[-1] == f"Next:  steptime lab {tmp_path}"


def test_a_patch_that_ran_one_round_goes_on(tmp_path: Path) -> None:
    variant = Variant("RM601", proposal="RM601")
    once = Judgement(variant, TrialVerdict.UNDECIDED, Agreement.SAME_BITS, "Too few rounds", rounds=1)
    append_result(tmp_path, plan=Plan(("python", "train.py"), "/job", "runs/a", (variant,), 0.03, goal=Goal.MEMORY))
    append_result(tmp_path, patch=PatchResult("diff", (), (), once))
    adopted = replace(once, verdict=TrialVerdict.ADOPT, rounds=3)
    options = TrialOptions(Budget(60.0), True, "local", False, 6)
    assert _next((adopted,), (), tmp_path, options) == f"steptime try --budget 2m --resume {tmp_path}"
    append_result(
        tmp_path, patch=PatchResult("diff", (), (), replace(once, rounds=3, memory=Estimate(1.5, 1.4, 1.6, 3, "1")))
    )
    assert _next((adopted,), (), tmp_path, options) == "steptime explain RM601"


def test_what_is_undecided_goes_on_as_long_as_further_rounds_are_run(tmp_path: Path) -> None:
    variant = Variant("RM201", proposal="RM201")
    open_ = Judgement(variant, TrialVerdict.UNDECIDED, Agreement.SAME_BITS, "Unclear: ±21 % noise", rounds=4)
    append_result(tmp_path, plan=Plan(("python", "train.py"), "/job", "runs/a", (variant,), 0.03))
    options = TrialOptions(Budget(60.0), True, "local", False, 6)
    proposed = (Proposal(whole_tensor, Option("a loop"), "ST301", 2.5e6),)
    assert _next((open_,), proposed, tmp_path, options) == f"steptime try --budget 2m --resume {tmp_path}"
    assert reason_text(open_) == "Unclear: ±21 % noise"
    ended = replace(open_, rounds=MAX_ROUNDS)
    assert _next((ended,), proposed, tmp_path, options) == "steptime explain RM108"
    assert reason_text(ended) == "Unclear: ±21 % noise; still undecided after 12 rounds, the maximum"


def test_where_nothing_frees_memory_by_itself_the_account_of_it_comes_next(tmp_path: Path) -> None:
    reported = as_text(_nothing_to_try((), tmp_path, Goal.MEMORY))
    assert reported.splitlines()[-1] == f"Next:  steptime memory {tmp_path}"


@pytest.mark.parametrize(
    ("words", "message"),
    [(["touch", "started"], "steptime run -- touch started"), (["touch", "started", "s3://a/b"], "names s3://a/b")],
)
def test_a_command_that_cannot_be_contained_is_refused_before_it_is_started(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("steptime.trials.containment.overlays_work", lambda *_: False)
    assert main(["try", "-q", "--", *words]) == 2
    reported = capsys.readouterr().err.replace("\n", " ")
    assert message in reported
    assert "--uncontained" in reported
    assert not list(tmp_path.iterdir())


def test_a_fix_is_tried_by_its_name_whatever_was_found() -> None:
    case = PLANTED["too-few-workers"]["fires"]
    (named,) = only([named_fix("fitting-workers")], [], case)[:1]
    assert named.fix.code == "RM101"
    assert named.finding == ""
    with pytest.raises(UsageError, match="There is no fix 'RM999'"):
        named_fix("RM999")
    with pytest.raises(UsageError, match=r"RM305 \(no-checkpointing\) does not apply to this job"):
        only([named_fix("RM305")], [], case)

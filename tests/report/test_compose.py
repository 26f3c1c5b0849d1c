"""What the reader is told to do next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from documents import markdown_of, text_of

from steptime.advice.rule import Weight
from steptime.advice.rules.switches import debug_switch, exploding_gradient
from steptime.advice.run_uses import SettingsUse
from steptime.recording.recording import Manifest
from steptime.report.compose import end_of, next_command
from steptime.report.page import page
from steptime.report.report import Report


@pytest.fixture
def exploding(report: Report) -> Report:
    """The same with gradients that run away."""
    process = report.processes[0]
    finding = exploding_gradient.finding("The gradients have grown 500 times", "Clip them.")
    return replace(report, processes=(replace(process, findings=(*process.findings, finding)),))


def test_gradients_that_run_away_are_looked_for_before_anything_is_made_faster(exploding: Report) -> None:
    command = next_command("runs/a", exploding.environment, exploding.processes[0])
    assert command == f"steptime nan -- {exploding.environment.command}"


def test_without_the_jobs_command_the_category_is_read(exploding: Report) -> None:
    process = replace(exploding.processes[0], findings=exploding.processes[0].findings[-1:])
    nameless = replace(exploding.environment, command="")
    assert next_command("runs/a", nameless, process) == "steptime report runs/a -o report.md"


def test_a_note_that_is_reported_in_full_is_not_followed_by_the_page_of_a_doubt(report: Report) -> None:
    note = exploding_gradient.finding("The gradients have grown 500 times", "Clip them.", weight=Weight.NOTE)
    caveat = replace(note, code="ST802", weight=Weight.CAVEAT)
    process = replace(report.processes[0], findings=(replace(note, code="ST702"), caveat))
    nameless = replace(report.environment, command="")
    assert next_command("runs/a", nameless, process) == "steptime report runs/a -o report.md"
    assert next_command("runs/a", nameless, replace(process, findings=(caveat,))) == "steptime explain ST802"


def test_otherwise_it_is_what_has_the_most_savings(report: Report) -> None:
    assert next_command("runs/a", report.environment, report.processes[0]).split()[1] in ("try", "explain")


def test_a_note_whose_cost_only_a_trial_tells_is_tried(report: Report) -> None:
    finding = debug_switch.finding("PYTHONDEVMODE=1 is set: the interpreter checks itself", "Take it out.")
    on = replace(report.processes[0].case, settings=SettingsUse(1, 2, 2, debug_switches=(("PYTHONDEVMODE", "1"),)))
    process = replace(report.processes[0], case=on, findings=(finding,))
    assert next_command("runs/a", report.environment, process) == "steptime try runs/a"


@pytest.mark.parametrize(
    ("status", "signal", "message"),
    [(0, None, ""), (1, None, "ended with status 1"), (137, 9, "ended with signal 9"), (130, 2, ""), (None, None, "")],
)
def test_a_job_that_did_not_end_well_says_so(
    report: Report, status: int | None, signal: int | None, message: str
) -> None:
    manifest = Manifest(1, "0.1.0", ("python", "dies.py"), "/job", "vm", 0, exit_status=status, ended_by_signal=signal)
    environment = replace(report.environment, facts=end_of(manifest))
    assert environment.ended == message
    ended = replace(report, environment=environment)
    for document in (text_of(ended), markdown_of(ended), page.render(ended)):
        assert (message in document) if message else ("ended with" not in document)

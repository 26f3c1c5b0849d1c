"""Answers for agents: the answer on a report, a trial or a comparison that every renderer shows, in short, with the
codes of the fixes and the exact next call of a tool."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from steptime.advice.explain import find_fix, find_rule
from steptime.advice.fix import JointEdit, Proposal, Snippet
from steptime.advice.fixes import CATALOGUE
from steptime.advice.line_evidence import function_of, loop_functions
from steptime.advice.propose import propose
from steptime.advice.rule import Weight
from steptime.answer.answer import Answer
from steptime.answer.brief import Call, Document, as_brief, entry_of, place_of, saves_text
from steptime.answer.printable import one_line
from steptime.compare.answer import answer_of as answer_of_comparison
from steptime.compare.comparison import Comparison
from steptime.quantities import SourceLine, format_duration
from steptime.report import judge_answer, trial_answer
from steptime.report.answer import answer_of
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import prediction_text, predictions
from steptime.report.verdict_words import seconds_to_decide, seconds_to_start, speed_text
from steptime.trials.judge import usual_metric, usual_step
from steptime.trials.plan import writable
from steptime.trials.results import PatchResult, Results
from steptime.trials.trial import Judgement, TrialVerdict


def call(tool: str, **arguments: Any) -> Call:
    """Call of a tool, as data, without empty arguments."""
    return {"tool": tool, "arguments": {name: value for name, value in arguments.items() if value}}


NEEDED = frozenset({"input", "transfer", "forward", "backward", "optimizer"})
"""Roles of lines that every training needs."""
MOST_LINES, MOST_FINDINGS = 2, 8
"""Most lines that are named next to the findings; most of both."""
LEAST_SHARE = 0.05
"""Fraction of a step below which a line is not worth an edit."""
CHANGE = "change.patch"
"""File name for an agent's own change."""
HOW = f"Edit the line, `git diff > {CHANGE}`, take it back with `git apply -R {CHANGE}`, and judge the change."
USUAL_BUDGET, LONGEST_BUDGET = 600, 3600
"""Budget of a trial, s: the default of `judge`, and the most that an answer suggests."""
ROOM = 1.5
"""Safety factor on the expected time of further rounds, for rehearsals and a busier machine."""
OPEN = frozenset({TrialVerdict.ADOPT.value, TrialVerdict.UNDECIDED.value})
"""Verdicts after which a fix may still pay."""


# -- a diagnosis ------------------------------------------------------------------------------------------------------


def of_report(report: Report, job: Mapping[str, Any], path: str) -> Document:
    """Answer on where the time goes. job: arguments that name the job in a further call (its command, its folder),
    empty if the client gave no command. path: path of the recording or the trace."""
    process, made = report.processes[0], answer_of(report)
    codes, step = to_try(report, job), process.case.step.duration.value
    found = [entry_of(each, step, codes.get(each.code, ())) for each in made.findings]
    dear = [_dear(*each, step) for each in dear_lines(process)[:MOST_LINES]]
    alone = bool(dear) and not any(each.weight is Weight.FINDING for each in made.findings)
    own = alone and bool(job) and not any(each["fixes"] for each in found)
    first = {name: dear[0][name] for name in ("line", "saves")} if alone else {}
    unsaid = (
        f" {each.get('code', each['name'])}: {each['why']}"
        for each in (dear if alone else found)[:1]
        if each["why"] not in made.headline
    )
    badge = made.badge or f"{process.verdict.confidence.capitalize()}."
    return as_brief(
        replace(made, headline=made.headline + "".join(unsaid), badge=badge),
        call("judge", diff=CHANGE, recording=path, **job) if own else _after_diagnosis(process, found, job, path),
        list(dict.fromkeys(code for each in found for code in each["fixes"])),
        found=[*found[: MOST_FINDINGS - len(dear)], *dear],
        **first,
        how=HOW if own else "",
        more_findings=max(0, len(found) + len(dear) - MOST_FINDINGS),
        problems=[one_line(each) for each in report.problems],
        **{"recording" if job else "path": path},
    )


def dear_lines(process: ProcessReport) -> list[tuple[SourceLine, float]]:
    """Expensive lines outside of input, model and optimizer that no finding names, as (line, ns per step), longest
    first: lines of the loop, and lines below it in functions that run no operators."""
    case, spent = process.case, dict[SourceLine, float]()
    working = {function_of(use.source) for use in case.operators if use.source is not None}
    busy = working | {function_of(SourceLine(file, 0, name)) for file, name in loop_functions(case.lines)}
    for line in case.lines:
        inside = line.role in ("forward", "backward", "optimizer") and working and function_of(line.source) not in busy
        if inside or line.role not in NEEDED:
            spent[line.source] = line.duration.value
    timed = {function_of(each) for each in spent} | busy
    for path in case.paths if working else ():
        if path.part != "input" and function_of(path.lines[0]) not in timed:
            spent[path.lines[0]] = spent.get(path.lines[0], 0.0) + path.duration
    named = {each.source.place for each in process.findings if each.source is not None}
    least = LEAST_SHARE * case.step.duration.value
    found = [(each, taken) for each, taken in spent.items() if taken >= least and each.place not in named]
    return sorted(found, key=lambda each: -each[1])


def _dear(line: SourceLine, taken: float, step: float) -> Document:
    """Entry for a line, in the form of a finding. taken, step: ns."""
    spent = saves_text(taken, step)
    why = f"The line takes {spent}; no rule explains why."
    do = "Do it less often, or once before the loop, if the training does not need it in every step."
    return {"name": "dear-line (note)", "line": place_of(line), "saves": f"at most {spent}", "why": why, "do": do}


def to_try(report: Report, job: Mapping[str, Any]) -> dict[str, list[str]]:
    """Codes of the fixes that can be tried, by the code of their finding. Fixes that a trial of this recording has
    rejected, or that cannot be written into its sources, are left out. {} for a trace, which has no job to run."""
    process = report.processes[0]
    if process.case.step.mode == "trace":
        return {}
    trials = report.trials.variants if report.trials is not None else ()
    refused = {each.proposal for each in trials if each.verdict not in OPEN}
    refused -= {each.proposal for each in trials if each.verdict in OPEN}
    found: dict[str, list[str]] = {}
    for proposal in _proposals(process, job):
        if not proposal.advice_only and proposal.fix.code not in refused:
            for code in proposal.fix.addresses:
                found.setdefault(code, []).append(proposal.fix.code)
    return {code: list(dict.fromkeys(fixes)) for code, fixes in found.items()}


def _proposals(process: ProcessReport, job: Mapping[str, Any]) -> tuple[Proposal, ...]:
    """Proposals; what is an edit alone stays applicable only if it can be written into the job's sources."""
    found = propose(process.case, process.findings)
    if not job:
        return found
    return writable(found, Path(job.get("directory") or ".").absolute(), job["command"])


def _after_diagnosis(
    process: ProcessReport, found: Sequence[Mapping[str, Any]], job: Mapping[str, Any], path: str
) -> Call:
    """Next call: trials of applicable fixes; else the page of the largest finding; else the predictions."""
    if job and any(each["fixes"] for each in found):
        return call("judge", recording=path, **job)
    first = next((each.code for each in process.findings if each.weight is Weight.FINDING), "")
    if first:
        return call("explain", code=first, path=path, **job)
    return call("what_if", path=path, **job)


# -- a page -----------------------------------------------------------------------------------------------------------


def of_page(code: str, page: str, report: Report | None, job: Mapping[str, Any], path: str) -> Document:
    """Answer on the meaning of a finding, a fix or a message, and its place in a recording, if there is one."""
    fix, rule = find_fix(code), find_rule(code)
    about = fix.addresses if fix is not None else {rule.code} if rule is not None else set()
    known: Document = {}
    if report is not None:
        process, fixes = report.processes[0], to_try(report, job)
        step, mine = process.case.step.duration.value, (each for each in process.findings if each.code in about)
        known = next((entry_of(each, step, fixes.get(each.code, ())) for each in mine), {})
    title, _, body = page.partition("\n")
    if not job:
        next_ = call("diagnose", command=["python", "train.py"])
    elif known.get("fixes") and fix is None:
        next_ = call("judge", fixes=known["fixes"], recording=path, **job)
    else:
        next_ = call("judge", diff=CHANGE, recording=path, **job)
    sure = report.processes[0].verdict.badge if report is not None else ""
    return as_brief(
        Answer(title=code, headline=title.lstrip("# "), badge=sure or "A definition, not a measurement."),
        next_,
        [fix.code]
        if fix is not None
        else known.get("fixes") or [each.code for each in CATALOGUE if each.addresses & about],
        line=known.get("line", ""),
        saves=known.get("saves", ""),
        do=known.get("do", ""),
        how=HOW if "diff" in next_["arguments"] else "",
        page=" ".join(body.split()),
    )


# -- what a change would bring ----------------------------------------------------------------------------------------


def of_what_if(report: Report, job: Mapping[str, Any], path: str) -> Document:
    """Answer on the predicted saving of each fix, and the step without one kind of delay."""
    process = report.processes[0]
    step, trace = process.case.step.duration.value, process.case.step.mode == "trace"
    proposals = _proposals(process, job)
    predicted = [_prediction(each, step) for each in proposals]
    codes = list(dict.fromkeys(each.fix.code for each in proposals if not each.advice_only and not trace))
    replayed = [prediction_text(each, step) for each in predictions(process.case.replay, step)]
    found = [entry_of(each, step) for each in process.findings if each.weight is Weight.FINDING]
    best = next((each for each in predicted if each["saves"]), None)
    after = call("judge", diff=CHANGE, recording=path, **job) if job else call("explain", code="ST101")
    after = call("explain", code=found[0]["code"], path=path, **job) if found else after
    sentence = f"{best['change']} would save {best['saves']}" if best else "the gain of no fix can be predicted"
    if not predicted and replayed:
        sentence = replayed[0]
    first = {name: found[0][name] for name in ("line", "saves")} if found else {}
    return as_brief(
        Answer(
            "",
            f"Of a step of {format_duration(step)}: {sentence}.",
            "Likely: predicted, not measured." if best or replayed else "Unclear: only a trial shows what a fix gains.",
        ),
        call("judge", fixes=codes[:3], recording=path, **job) if job and codes else after,
        codes,
        **first,
        how=HOW if "diff" in after["arguments"] and not codes else "",
        predictions=predicted,
        replayed=replayed,
        limits=[f"{each['code']} at {each['line'] or 'several lines'}: {each['saves']}" for each in found],
    )


def _prediction(proposal: Proposal, step: float) -> Document:
    fix, option = proposal.fix, proposal.option
    saving, most = option.saving, proposal.upper_bound
    saves = ""
    if saving is not None and 0 < saving.value <= saving.high < step:
        low, high = step / (step - saving.low), step / (step - saving.high)
        saves = f"{format_duration(saving.value)} per step, {step / (step - saving.value):.2f}× ({low:.2f}–{high:.2f})"
    edit = option.edit.example if isinstance(option.edit, JointEdit) else option.edit
    return {
        "code": fix.code,
        "change": f"{fix.code} {option.label}",
        "saves": saves,
        "at_most": format_duration(most) if most is not None else "",
        "promise": fix.promise.value,
        "line": place_of(edit.site) if isinstance(edit, Snippet) else "",
        "do": one_line(option.advice),
    }


# -- a trial ----------------------------------------------------------------------------------------------------------


def of_trial(
    results: Results, folder: str, job: Mapping[str, Any], finding: str, applies: str = "", *, resumed: bool = False
) -> Document:
    """Answer on the result of each change, and what to do with it. finding: code of the job's first one, "" for none.
    applies: command that applies the client's own change, if it is a diff. resumed: it was continued."""
    judged = [judgement for stage, judgement in results.judgements if stage == 0]
    judged.sort(key=lambda each: (each.verdict is not TrialVerdict.ADOPT, -(each.speed.value if each.speed else 0.0)))
    patch = results.patch
    proved = patch.judgement if patch is not None else None
    best = proved or next(iter(judged), None)
    won = best is not None and best.verdict is TrialVerdict.ADOPT
    diff = patch.diff if patch is not None else ""
    more: Document = {}
    if patch is not None and (diff or patch.environment or patch.snippets):
        more = {"patch": diff, "environment": dict(patch.environment), "write_yourself": list(patch.snippets)}
        more |= {"patch_file": f"{folder}/patch.diff"} if diff else {}
    own = patch is None or not (patch.diff or patch.environment)
    waits = not own and proved is None  # no time was left to run the patch itself
    apply = "" if not won or waits else applies if own else patch_command(patch)
    known = [*judged, *([proved] if proved else [])]
    after = _after_trial(bool(apply), won, known, results, folder, job, finding, resumed=resumed)
    after = call("judge", resume=folder, budget=_budget(results, ()), **job) if won and waits else after
    ours = any(each.variant.proposal for each in judged)
    return as_brief(
        (trial_answer if ours else judge_answer).answer_of(results, folder),
        after,
        [each.variant.proposal for each in judged if each.verdict is TrialVerdict.ADOPT and each.variant.proposal],
        line=_touched(diff) or next((path for each in judged for path, _ in each.variant.sources), ""),
        saves=_saved(best, results),
        apply=apply,
        how=HOW if not apply and after["arguments"].get("diff") == CHANGE else "",
        **more,
        folder=folder,
    )


def _saved(best: Judgement | None, results: Results) -> str:
    """Measured savings: "57.5 ms of 80 ms per step, 3.56× (3.40–3.70)"; "" without a gain."""
    target, runs = results.plan.until_loss, [run for run in results.runs if run.stage == 0]
    usual, unit = (usual_step(runs), 1.0) if target is None else (usual_metric(runs), 1e9)
    if best is None or best.speed is None or best.speed.value <= 1 or usual is None:
        return ""
    saved = usual.value * unit * (1 - 1 / best.speed.value)
    whole = f"{format_duration(usual.value * unit)} {f'to a loss of {target.loss:g}' if target else 'per step'}"
    return f"{format_duration(saved)} of {whole}, {speed_text(best.speed, best.of_run)}"


def _budget(results: Results, judged: Sequence[Judgement]) -> str:
    """Budget for the continuation of a trial: "14m"."""
    further = [seconds_to_start(results), *(seconds_to_decide(each, results) for each in judged)]
    known = [ROOM * each for each in further if each is not None]
    wanted = min(LONGEST_BUDGET, max([USUAL_BUDGET, min(known, default=0.0)]))
    return f"{ceil(wanted / 60)}m"


def _touched(diff: str) -> str:
    """First line that a diff changes, "" for none."""
    found = re.search(r"^\+\+\+ b/(?P<file>.+)\n@@ -\d+(?:,\d+)? \+(?P<line>\d+)", diff, re.MULTILINE)
    if found is None:
        return ""
    line, added = int(found["line"]), ""
    for each in diff[found.end() :].splitlines()[1:]:
        if each.startswith(("+", "-")):
            added = next((text[1:].strip() for text in diff[found.end() :].splitlines()[1:] if text[:1] == "+"), "")
            break
        line += 1
    return f"{found['file']}:{line}: {added}"


def patch_command(patch: PatchResult | None) -> str:
    """Shell command that applies a patch."""
    if patch is None:
        return ""
    variables = [f"export {shlex.join(f'{name}={value}' for name, value in patch.environment)}"]
    return " && ".join([*filter(None, [patch.apply]), *(variables if patch.environment else [])])


def _after_trial(
    applicable: bool,
    won: bool,
    judged: Sequence[Judgement],
    results: Results,
    folder: str,
    job: Mapping[str, Any],
    finding: str,
    *,
    resumed: bool,
) -> Call:
    """Next call: the job again, once the change is applied; else more rounds, a change of the client's own, or what
    else helps. A trial of steptime's fixes that is still undecided after it was resumed ends there: other changes are
    worth more than a small gain."""
    recording, metric = results.plan.recording, results.plan.metric
    if applicable and metric is None:
        return call("diagnose", **job)
    if metric is not None and not any(each.verdict is TrialVerdict.UNDECIDED for each in judged):
        better = {"lower_is_better": True} if metric.lower_is_better else {}
        return call("judge", diff=CHANGE, metric=metric.pattern, **better, **job)
    if won:
        target = results.plan.until_loss
        until = {"until_loss": target.loss} if target is not None else {}
        return call("judge", diff=CHANGE, recording=recording, **until, **job)
    undecided = [each for each in judged if each.verdict is TrialVerdict.UNDECIDED]
    ours = all(each.variant.proposal and each.verdict is not TrialVerdict.ADOPT for each in judged)
    if undecided and resumed and recording and ours:
        return call("judge", diff=CHANGE, recording=recording, **job)
    if undecided:
        return call("judge", resume=folder, budget=_budget(results, undecided), **job)
    return call("explain", code=finding, path=recording, **job) if finding else call("what_if", path=recording, **job)


# -- a comparison -----------------------------------------------------------------------------------------------------


def of_comparison(comparison: Comparison, after: Report, path: str) -> Document:
    """Answer on the differences between runs, beyond noise, and the likely cause. after: report of the last run."""
    change = comparison.step.change
    first = next((each.code for each in after.processes[0].findings), "")
    return as_brief(
        answer_of_comparison(comparison),
        call("explain", code=first, path=path) if first else call("what_if", path=path),
        list(dict.fromkeys(code for fixes in to_try(after, {}).values() for code in fixes)),
        line=next((each.name for each in comparison.pieces if each.kind == "line"), ""),
        saves=f"{format_duration(-change.value)} per step" if change is not None and change.value < 0 else "",
        cause=comparison.cause.sentence,
    )

"""Answers for agents: a report, a trial or a comparison as a small document that fits into a conversation.

Every answer has the keys of `answer`: the sentence, the confidence, the line, the savings, the codes of the fixes, and
the exact next call of a tool. Lists and sentences are cut until the whole is below MOST_BYTES; parts that a call or a
command needs are never cut."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from steptime.advice.explain import find_fix, find_rule
from steptime.advice.fix import JointEdit, Proposal, Snippet
from steptime.advice.fixes import CATALOGUE
from steptime.advice.line_evidence import function_of, loop_functions
from steptime.advice.propose import propose
from steptime.advice.rule import Finding, Weight
from steptime.answer.printable import one_line, shorten
from steptime.compare.comparison import Comparison, DifferenceOutcome
from steptime.quantities import SourceLine, format_duration, format_share
from steptime.report.gain import gain_of
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import prediction_text, predictions, step_text
from steptime.report.verdict_words import seconds_to_decide, seconds_to_start, speed_text, word_of
from steptime.trials.judge import usual_metric, usual_step
from steptime.trials.plan import writable
from steptime.trials.results import PatchResult, Results
from steptime.trials.trial import Judgement, TrialVerdict

MOST_BYTES = 4000
"""Most bytes of an answer: 1,500 tokens of 2.7 bytes, which is little for JSON."""
SIZES = ((8, 1600), (6, 800), (5, 400), (4, 240), (3, 160), (2, 120), (1, 80))
"""(entries of a list, characters of a sentence), tried in order until the answer fits."""
WHOLE = frozenset({"next", "recording", "folder", "apply", "patch_file", "code", "fixes"})
"""Keys whose values are never cut."""
Call = Mapping[str, Any]


def fitted(document: Mapping[str, Any]) -> str:
    """Document as one line of JSON, cut to MOST_BYTES."""
    text = ""
    for most, length in SIZES:
        text = json.dumps(_cut(document, most, length), ensure_ascii=False)
        if len(text.encode("utf-8", "backslashreplace")) <= MOST_BYTES:
            return text
    kept = {key: value for key, value in document.items() if key in ("answer", "confidence", *WHOLE)}
    return json.dumps(_cut(kept, *SIZES[-1]), ensure_ascii=False)


def _cut(value: Any, most: int, length: int) -> Any:
    if isinstance(value, Mapping):
        return {key: each if key in WHOLE else _cut(each, most, length) for key, each in value.items()}
    if isinstance(value, list):
        entries = [_cut(each, most, length) for each in value[:most]]
        return [_reported(each) if isinstance(each, dict) else each for each in entries]
    return shorten(value, length) if isinstance(value, str) else value


def _reported(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Entry of a list without empty values."""
    return {key: value for key, value in entry.items() if value not in ("", [])}


def answer(
    sentence: str, confidence: str, line: str, saves: str, fixes: Sequence[str], next_: Call, **more: Any
) -> dict[str, Any]:
    """Fields of every answer, and the special ones of one. line, saves: "" if unknown."""
    frame = {"answer": one_line(sentence), "confidence": one_line(confidence), "line": line, "saves": saves}
    return {**frame, "fixes": list(fixes), **more, "next": dict(next_)}


def call(tool: str, **arguments: Any) -> Call:
    """Call of a tool, without empty arguments."""
    return {"tool": tool, "arguments": {name: value for name, value in arguments.items() if value}}


NEEDED = frozenset({"input", "transfer", "forward", "backward", "optimizer"})
"""Roles of lines that every training needs."""
MOST_LINES = 2
"""Most lines that are named besides the findings."""
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


def of_report(report: Report, job: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Answer on where the time goes. job: arguments that name the job in a further call (its command, its folder),
    empty if the client gave no command. path: of the recording or the trace."""
    process = report.processes[0]
    codes = to_try(report, job)
    found = [_finding(each, process, codes) for each in process.findings]
    step, gain = process.case.step, gain_of(report)
    parts = sorted(process.case.categories, key=lambda each: -each.duration.value)
    lines = dear_lines(process)
    alone = bool(lines) and not any(each.weight is Weight.FINDING for each in process.findings)
    dear = [_dear(*each, process) for each in lines[:MOST_LINES]]
    first = (dear if alone else found)[:1]
    where = _first(first)
    unsaid = (
        f" {each.get('code', each['name'])}: {each['why']}"
        for each in first
        if each["why"] not in process.verdict.sentence
    )
    own = alone and job and not any(each["fixes"] for each in found)
    next_ = call("judge", diff=CHANGE, recording=path, **job) if own else _after_diagnosis(process, found, job, path)
    return answer(
        process.verdict.sentence + "".join(unsaid),
        _sure(process),
        *where,
        list(dict.fromkeys(code for each in found for code in each["fixes"])),
        next_,
        how=HOW if own else "",
        possible=gain.lines[0] if gain is not None else "",
        step=step_text(step),
        parts={each.name: _saving(each.duration.value, process) for each in parts[:4] if each.duration.value},
        findings=[*found[: SIZES[0][0] - len(dear)], *dear],
        more_findings=max(0, len(found) + len(dear) - SIZES[0][0]),
        problems=[one_line(each) for each in report.problems],
        **{"recording" if job else "path": path},
    )


def dear_lines(process: ProcessReport) -> list[tuple[SourceLine, float]]:
    """Expensive lines outside of input, model and optimizer that no finding names, with their ns per step, longest
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
    named = {(each.source.file, each.source.line) for each in process.findings if each.source is not None}
    least = LEAST_SHARE * case.step.duration.value
    found = [(each, taken) for each, taken in spent.items() if taken >= least and (each.file, each.line) not in named]
    return sorted(found, key=lambda each: -each[1])


def _dear(line: SourceLine, taken: float, process: ProcessReport) -> dict[str, Any]:
    """Entry for a line, in the form of a finding. taken: ns per step."""
    spent = _saving(taken, process)
    why = f"The line takes {spent}; no rule explains why."
    do = "Do it less often, or once before the loop, if the training does not need it in every step."
    return {"name": "dear-line (note)", "line": place(line), "saves": f"at most {spent}", "why": why, "do": do}


def to_try(report: Report, job: Mapping[str, Any]) -> dict[str, list[str]]:
    """Codes of the fixes that can be tried, by the finding that they answer, without those that a trial of this
    recording has rejected, and those that cannot be written into its sources. {} for a trace, which has no job to
    run."""
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
    """Proposals; those that exist only as an edit remain applicable only if it can be written into the job's
    sources."""
    found = propose(process.case, process.findings)
    if not job:
        return found
    return writable(found, Path(job.get("directory") or ".").absolute(), job["command"])


def _sure(process: ProcessReport) -> str:
    verdict = process.verdict
    return f"{verdict.confidence}: {verdict.reason}" if verdict.reason else verdict.confidence


def _saving(taken: float, process: ProcessReport) -> str:
    """Time per step as text: "57.5 ms per step (72 %)"."""
    step = process.case.step.duration.value
    share = f" ({format_share(taken / step)})" if step else ""
    return f"{format_duration(taken)} per step{share}"


def place(source: SourceLine | None) -> str:
    """Place and text of a line: "train.py:12: loss.item()"."""
    if source is None:
        return ""
    return one_line(f"{source.file}:{source.line}{f': {source.text}' if source.text else ''}")


def _finding(finding: Finding, process: ProcessReport, codes: Mapping[str, list[str]]) -> dict[str, Any]:
    saves = _saving(finding.savings.value, process) if finding.savings is not None else ""
    return {
        "code": finding.code,
        "name": finding.name + ("" if finding.weight is Weight.FINDING else f" ({finding.weight.value})"),
        "line": place(finding.source),
        "saves": saves,
        "why": one_line(finding.summary),
        "do": one_line(finding.advice),
        "fixes": codes.get(finding.code, []),
    }


def _first(found: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """(line, savings) of the first finding, which has the largest savings; ("", "") without one."""
    return (found[0]["line"], found[0]["saves"]) if found else ("", "")


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


def of_page(code: str, page: str, report: Report | None, job: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Answer on the meaning of a finding, a fix or a message, and its place in a recording, if there is one."""
    fix, rule = find_fix(code), find_rule(code)
    about = fix.addresses if fix is not None else {rule.code} if rule is not None else set()
    process = report.processes[0] if report is not None else None
    finding = next((each for each in process.findings if each.code in about), None) if process is not None else None
    known: dict[str, Any] = {}
    if report is not None and process is not None and finding is not None:
        known = _finding(finding, process, to_try(report, job))
    codes = (
        [fix.code]
        if fix is not None
        else known.get("fixes") or [each.code for each in CATALOGUE if each.addresses & about]
    )
    title, _, body = page.partition("\n")
    if not job:
        next_ = call("diagnose", command=["python", "train.py"])
    elif known.get("fixes") and fix is None:
        next_ = call("judge", fixes=known["fixes"], recording=path, **job)
    else:
        next_ = call("judge", diff=CHANGE, recording=path, **job)
    return answer(
        title.lstrip("# "),
        _sure(process) if process is not None else "a definition, not a measurement",
        known.get("line", ""),
        known.get("saves", ""),
        codes,
        next_,
        do=known.get("do", ""),
        how=HOW if "diff" in next_["arguments"] else "",
        page=" ".join(body.split()),
    )


# -- what a change would bring ----------------------------------------------------------------------------------------


def of_what_if(report: Report, job: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Answer on the predicted saving of each fix, and the step without one kind of delay."""
    process = report.processes[0]
    step = process.case.step.duration.value
    proposals = _proposals(process, job)
    trace = process.case.step.mode == "trace"
    reported = [_prediction(each, step) for each in proposals]
    codes = list(dict.fromkeys(each.fix.code for each in proposals if not each.advice_only and not trace))
    replayed = [prediction_text(each, step) for each in predictions(process.case.replay, step)]
    found = [_finding(each, process, {}) for each in process.findings if each.weight is Weight.FINDING]
    best = next((each for each in reported if each["saves"]), None)
    after = call("judge", diff=CHANGE, recording=path, **job) if job else call("explain", code="ST101")
    after = call("explain", code=found[0]["code"], path=path, **job) if found else after
    sentence = f"{best['change']} would save {best['saves']}" if best else "No fix has a prediction for this job"
    if not reported and replayed:
        sentence = replayed[0]
    return answer(
        f"Of a step of {format_duration(step)}: {sentence}.",
        f"{'likely' if best or replayed else 'unclear'}: predicted, not measured; {_sure(process)}",
        *_first(found),
        codes,
        call("judge", fixes=codes[:3], recording=path, **job) if job and codes else after,
        how=HOW if "diff" in after["arguments"] and not codes else "",
        predictions=reported,
        replayed=replayed,
        limits=[f"{each['code']} at {each['line'] or 'several lines'}: {each['saves']}" for each in found],
    )


def _prediction(proposal: Proposal, step: float) -> dict[str, Any]:
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
        "line": place(edit.site) if isinstance(edit, Snippet) else "",
        "do": one_line(option.advice),
    }


# -- a trial ----------------------------------------------------------------------------------------------------------


def of_trial(
    results: Results, folder: str, job: Mapping[str, Any], finding: str, applies: str = "", *, resumed: bool = False
) -> dict[str, Any]:
    """Answer on the result of each change, and what to do with it. finding: code of the job's first one, "" for none.
    applies: command that applies the client's own change, if it is a diff. resumed: the trial continued an interrupted
    one."""
    judged = [judgement for stage, judgement in results.judgements if stage == 0]
    judged.sort(key=lambda each: (each.verdict is not TrialVerdict.ADOPT, -(each.speed.value if each.speed else 0.0)))
    patch = results.patch
    proved = patch.judgement if patch is not None else None
    best = proved or next(iter(judged), None)
    target, runs = results.plan.until_loss, [run for run in results.runs if run.stage == 0]
    usual, unit = (usual_step(runs), 1.0) if target is None else (usual_metric(runs), 1e9)
    saves = ""
    if best is not None and best.speed is not None and best.speed.value > 1 and usual is not None:
        saved = usual.value * unit * (1 - 1 / best.speed.value)
        whole = f"{format_duration(usual.value * unit)} {f'to a loss of {target.loss:g}' if target else 'per step'}"
        saves = f"{format_duration(saved)} of {whole}, {speed_text(best.speed)}"
    won = best is not None and best.verdict is TrialVerdict.ADOPT
    diff = patch.diff if patch is not None else ""
    more: dict[str, Any] = {}
    if patch is not None and (diff or patch.environment or patch.snippets):
        more = {"patch": diff, "environment": dict(patch.environment), "write_yourself": list(patch.snippets)}
        more |= {"patch_file": f"{folder}/patch.diff"} if diff else {}
    own = patch is None or not (patch.diff or patch.environment)
    waits = not own and proved is None  # no time was left to run the patch itself
    apply = "" if not won or waits else applies if own else patch_command(patch)
    known = [*judged, *([proved] if proved else [])]
    after = _after_trial(bool(apply), won, known, results, folder, job, finding, resumed=resumed)
    after = call("judge", resume=folder, budget=_budget(results, ()), **job) if won and waits else after
    return answer(
        _message(best, proved is not None, results.plan.min_gain),
        _decided(best, results),
        _touched(diff) or next((path for each in judged for path, _ in each.variant.sources), ""),
        saves,
        [each.variant.proposal for each in judged if each.verdict is TrialVerdict.ADOPT and each.variant.proposal],
        after,
        apply=apply,
        how=HOW if not apply and after["arguments"].get("diff") == CHANGE else "",
        candidates=[_candidate(each, results) for each in judged],
        **more,
        folder=folder,
    )


def _message(best: Judgement | None, as_patch: bool, min_gain: float) -> str:
    if best is None:
        return "No fix was tried."
    what = "the patch, run by itself" if as_patch else best.variant.label or best.variant.name
    return f"{word_of(best, min_gain)}: {what}{f', {speed_text(best.speed)}' if best.speed is not None else ''}"


def _decided(best: Judgement | None, results: Results) -> str:
    if best is None:
        return "unclear: no variant was timed"
    if best.verdict is not TrialVerdict.UNDECIDED:
        alone = results.patch is not None and results.patch.diff and results.patch.judgement is None
        more = "; the budget ended before the patch ran by itself" if alone else ""
        return f"confident: {best.agreement.value}; {best.rounds} rounds{more}"
    further, first = seconds_to_decide(best, results), seconds_to_start(results)
    more = f"; about {format_duration(further * 1e9)} more should decide it" if further is not None else ""
    if first is not None:
        more = f"; its first rounds take about {format_duration(first * 1e9)}, more than the budget allowed"
    return f"unclear: {best.sentence}{more}"


def _budget(results: Results, judged: Sequence[Judgement]) -> str:
    """Budget for the continuation of a trial: "14m"."""
    further = [seconds_to_start(results), *(seconds_to_decide(each, results) for each in judged)]
    known = [ROOM * each for each in further if each is not None]
    wanted = min(LONGEST_BUDGET, max([USUAL_BUDGET, min(known, default=0.0)]))
    return f"{ceil(wanted / 60)}m"


def _candidate(judgement: Judgement, results: Results) -> dict[str, Any]:
    variant = judgement.variant
    further = seconds_to_decide(judgement, results)
    return {
        "code": variant.proposal or variant.name,
        "change": variant.label or variant.name,
        "verdict": word_of(judgement, results.plan.min_gain),
        "speed_up": speed_text(judgement.speed) if judgement.speed is not None else "",
        "training": judgement.agreement.value,
        "why": one_line(judgement.sentence),
        **({"seconds_to_decide": round(further)} if further is not None else {}),
    }


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

_SURE = {
    DifferenceOutcome.MORE: "confident",
    DifferenceOutcome.LESS: "confident",
    DifferenceOutcome.NONE: "confident",
    DifferenceOutcome.UNDECIDED: "unclear",
}


def of_comparison(comparison: Comparison, after: Report, path: str) -> dict[str, Any]:
    """Answer on the differences between runs, beyond noise, and the likely cause. after: the last of them."""
    step = comparison.step
    change = step.change
    line = next((each.name for each in comparison.pieces if each.kind == "line"), "")
    codes = to_try(after, {})
    first = next((each.code for each in after.processes[0].findings), "")
    return answer(
        comparison.sentence,
        f"{_SURE[step.outcome]}: {step.reason or comparison.noise.sentence}",
        line,
        f"{format_duration(-change.value)} per step" if change is not None and change.value < 0 else "",
        list(dict.fromkeys(code for fixes in codes.values() for code in fixes)),
        call("explain", code=first, path=path) if first else call("what_if", path=path),
        cause=comparison.cause.sentence,
        parts=[
            f"{each.name}: {each.outcome.value}, {format_duration(each.change.value)} per step"
            for each in comparison.parts
            if each.change is not None and each.outcome in (DifferenceOutcome.MORE, DifferenceOutcome.LESS)
        ],
        pieces=[f"{each.kind} {one_line(each.name)}: {each.fate.value}" for each in comparison.pieces],
        settings=[f"{each.name}: {each.before} → {each.after}" for each in comparison.settings],
        caveats=list(comparison.caveats),
    )

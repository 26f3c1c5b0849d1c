"""Examining: what is missing, what fails, what is immaterial, what is said better by another rule, and in which
order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import HEALTHY
from advice.planted import PLANTED

from steptime.advice.engine import QUICKER_OF_REST, examine
from steptime.advice.evidence import Case, LineUse
from steptime.advice.rule import Finding, Function, Rule, Weight, rule
from steptime.advice.rules import CATALOGUE
from steptime.advice.run_uses import CategoryUse, HolderUse, LoaderUse, MemoryUse, SegmentUse, StepSummary
from steptime.quantities import Estimate, SourceLine

STEP = StepSummary(Estimate(1000.0, 990.0, 1010.0, 50), 60, 50, 5, "optimizer", "cpu")
HOST = CategoryUse("python", Estimate(300.0, 290.0, 310.0, 50), Estimate(300.0, 290.0, 310.0, 50))
CASE = Case(step=STEP, categories=(HOST,))
HERE, THERE = SourceLine("train.py", 1), SourceLine("train.py", 2)
PAGE = "A\n\nWhat it means\n  a\nHow we know\n  b\nWhat helps\n  c\nWhen to ignore it\n  d"


def saving(value: float, spread: float = 0.1) -> Estimate:
    return Estimate(value, value * (1 - spread), value * (1 + spread), 50)


def made(code: str, name: str, *findings: Finding, **options: object) -> Rule:
    def function(step: StepSummary) -> tuple[Finding, ...]:
        return findings

    function.__doc__ = PAGE
    return rule(code, name, **options)(function)  # type: ignore[arg-type]


def found(code: str, name: str, savings: Estimate | None, **more: object) -> Finding:
    weight = more.pop("weight", Weight.FINDING)
    return Finding(code, name, weight, f"{name} costs", "Do not.", savings, **more)  # type: ignore[arg-type]


def names(*rules: Rule, case: Case = CASE) -> list[str]:
    return [finding.name for finding in examine(case, rules).findings]


def test_missing_evidence_is_named_and_the_rule_is_not_called() -> None:
    def function(loader: LoaderUse) -> None:
        pytest.fail("called without its evidence")

    function.__doc__ = PAGE
    needy = rule("ST901", "needy")(function)
    examination = examine(CASE, [needy])
    assert examination.not_examined == (("ST901", "no DataLoader fed the training steps"),)
    assert not examination.failed
    traced = examine(replace(CASE, step=replace(STEP, mode="trace")), [needy])
    assert "a trace does not show" in traced.not_examined[0][1]


@pytest.mark.parametrize("generator", [False, True])
def test_a_rule_that_raises_costs_one_row(generator: bool) -> None:
    def plain(step: StepSummary) -> None:
        raise ZeroDivisionError("oh")

    def late(step: StepSummary):  # type: ignore[no-untyped-def]
        yield found("ST901", "broken", saving(100))
        raise ZeroDivisionError("oh")

    function: Function = late if generator else plain
    function.__doc__ = PAGE
    broken = rule("ST901", "broken")(function)
    fine = made("ST902", "fine", found("ST902", "fine", saving(100)))
    examination = examine(CASE, [broken, fine])
    assert examination.failed == (("ST901", "ZeroDivisionError: oh"),)
    assert [finding.name for finding in examination.findings] == ["fine"]


def test_findings_come_by_time_savings_then_notes_then_doubts() -> None:
    rules = (
        made("ST901", "note", found("ST901", "note", None, weight=Weight.NOTE)),
        made("ST902", "caveat", found("ST902", "caveat", None, weight=Weight.CAVEAT)),
        made("ST903", "small", found("ST903", "small", saving(30))),
        made("ST904", "large", found("ST904", "large", saving(200))),
    )
    assert names(*rules) == ["large", "small", "note", "caveat"]


def test_what_is_within_three_percent_or_within_its_own_noise_is_left_out() -> None:
    rules = (
        made("ST901", "tiny", found("ST901", "tiny", saving(29))),
        made("ST902", "noise", found("ST902", "noise", saving(50, spread=1.1))),
        made("ST903", "enough", found("ST903", "enough", saving(31))),
    )
    assert names(*rules) == ["enough"]


def test_what_a_few_traced_steps_show_is_reported_with_their_number() -> None:
    noisy = made("ST902", "noise", found("ST902", "noise", saving(50, spread=1.1)))
    few = replace(CASE, step=replace(STEP, mode="trace", steady=3))
    assert names(noisy, case=few) == ["noise"]
    assert "Based on 3 steps" in examine(few, [noisy]).findings[0].evidence[-1]
    assert names(noisy, case=replace(few, step=replace(few.step, steady=6))) == []
    assert names(noisy, case=replace(few, step=replace(few.step, mode="optimizer"))) == []
    lined = made("ST903", "lined", found("ST903", "lined", replace(saving(50, spread=1.1), samples=3)))
    assert names(lined, case=CASE) == ["lined"], "only few steps of a run are timed line by line"


def test_no_finding_promises_more_than_its_category_holds() -> None:
    greedy = made("ST901", "greedy", found("ST901", "greedy", saving(900), category="python"))
    (finding,) = examine(CASE, [greedy]).findings
    assert finding.savings is not None
    companions = QUICKER_OF_REST * (1000 - 310)
    assert (finding.savings.value, finding.savings.high) == (300.0, 310 + companions), "what stays may get quicker"


def test_a_particular_finding_replaces_the_general_one_and_keeps_its_words() -> None:
    general = made("ST901", "general", found("ST901", "general", saving(200), category="python"))
    special = made(
        "ST902", "special", found("ST902", "special", saving(150), category="python"), supersedes=("general",)
    )
    examination = examine(CASE, [general, special])
    assert [finding.name for finding in examination.findings] == ["special"]
    assert examination.findings[0].evidence == ("general costs",)


def test_a_particular_finding_that_explains_less_than_half_stands_alongside_the_general_one() -> None:
    general = made("ST901", "general", found("ST901", "general", saving(200), category="python"))
    special = made(
        "ST902", "special", found("ST902", "special", saving(90), category="python"), supersedes=("general",)
    )
    assert names(general, special) == ["general", "special"]


def test_another_category_is_another_matter() -> None:
    general = made("ST901", "general", found("ST901", "general", saving(200), category="python"))
    special = made(
        "ST902", "special", found("ST902", "special", saving(150), category="input"), supersedes=("general",)
    )
    assert set(names(general, special)) == {"general", "special"}


def test_a_line_of_the_loop_does_not_explain_what_the_loader_is_waited_for() -> None:
    waiting = PLANTED["slow-collate"]["fires"]
    (work,) = PLANTED["goes-through-all"]["fires"].works
    case = replace(waiting, works=(work,))
    assert {"slow-collate", "goes-through-all"} <= {each.name for each in examine(case, CATALOGUE).findings}


def test_findings_about_lines_are_replaced_line_by_line() -> None:
    general = made(
        "ST901",
        "general",
        found("ST901", "general", saving(100), source=HERE),
        found("ST901", "general", saving(90), source=THERE),
        by_line=True,
    )
    special = made("ST902", "special", found("ST902", "special", saving(100), source=HERE), supersedes=("general",))
    examination = examine(CASE, [general, special])
    assert [(finding.name, finding.source) for finding in examination.findings] == [
        ("special", HERE),
        ("general", THERE),
    ]


def test_how_much_the_profiler_slowed_operators_does_not_change_what_more_threads_could_save() -> None:
    case = PLANTED["too-few-threads"]["fires"]
    reported = set()
    for slowed in (3, 6):
        operators = tuple(replace(each, duration=slowed * each.duration) for each in case.operators)
        findings = examine(replace(case, operators=operators)).findings
        (found,) = (each for each in findings if each.name == "too-few-threads")
        reported.add(found.summary)
    assert len(reported) == 1


def test_findings_of_one_category_promise_no_more_than_it_holds_together() -> None:
    python = made("ST901", "python", found("ST901", "python", saving(200), category="python", source=HERE))
    other = made("ST902", "other", found("ST902", "other", saving(150), category="python", source=THERE))
    first, second = examine(CASE, [python, other]).findings
    assert first.savings is not None
    assert second.savings is not None
    assert (first.savings.value, second.savings.value) == (200, 100), "the category has 300"
    assert second.savings.high >= 150, "by itself it may save all of it"


def test_what_a_larger_finding_about_the_line_claims_already_stays_as_a_part_of_it() -> None:
    python = made("ST901", "python", found("ST901", "python", saving(200), category="python", source=HERE))
    garbage = made("ST902", "garbage", found("ST902", "garbage", saving(90), category="python", source=HERE))
    whole, part = examine(CASE, [python, garbage]).findings
    assert (whole.name, part.name, part.savings) == ("python", "garbage", None)
    assert part.summary == "garbage costs: 90 ns, included in the savings of ST901"


def test_what_its_category_has_no_room_for_is_a_part_of_what_fills_the_category() -> None:
    anywhere = made("ST901", "anywhere", found("ST901", "anywhere", saving(299), source=THERE))
    python = made("ST902", "python", found("ST902", "python", saving(295), category="python", source=HERE))
    part = made("ST903", "part", found("ST903", "part", saving(100), category="python"))
    assert "included in the savings of ST902" in examine(CASE, [anywhere, python, part]).findings[-1].summary


def test_what_categories_keep_apart_stands_alongside_each_other_on_one_line() -> None:
    python = made("ST901", "python", found("ST901", "python", saving(200), category="python", source=HERE))
    compute = made("ST902", "compute", found("ST902", "compute", saving(150), category="compute", source=HERE))
    assert names(python, compute) == ["python", "compute"]


def test_findings_promise_no_more_than_the_step_together() -> None:
    rules = [made(f"ST90{n}", name, found(f"ST90{n}", name, saving(600))) for n, name in enumerate(("one", "two"))]
    assert sum(each.savings.value for each in examine(CASE, rules).findings if each.savings is not None) == 1000


@pytest.mark.parametrize(
    ("saved", "first"), [((160, 0.2), "python-time"), ((90, 0.05), "overhead-bound"), ((40, 4.0), "overhead-bound")]
)
def test_a_line_goes_before_a_category_that_it_cannot_be_reported_apart_from(
    saved: tuple[float, float], first: str
) -> None:
    category = made("ST302", "overhead-bound", found("ST302", "overhead-bound", saving(180), category="overhead"))
    line = found("ST201", "python-time", saving(*saved), category="python", source=SourceLine("train.py", 7))
    assert names(category, made("ST201", "python-time", line))[0] == first


def test_what_is_reported_of_most_of_the_run_comes_first() -> None:
    rollouts = replace(PLANTED["input-wait"]["fires"], segments=(SegmentUse("rollout", 10, 9_000_000_000, 0.8),))
    assert examine(rollouts, CATALOGUE).findings[0].name == "rollout-share"


def test_what_can_be_tried_fits_how_the_job_computes() -> None:
    def advice(name: str) -> str:
        (found,) = (each for each in examine(PLANTED["compute-share"][name]).findings if each.code == "ST908")
        return found.advice

    message = "steptime try runs the job with float16 autocast, channels_last and torch.compile, and says what pays."
    traced = "It runs its convolutions in NCHW. Record the job with steptime run: then"
    assert advice("fires-on-convolutions") == f"{traced} {message}"
    assert advice("fires-in-half-by-the-names-of-kernels").endswith("the job with torch.compile, and says what pays.")
    assert advice("fires").startswith("It runs at 81 % of the roofline.")
    case = PLANTED["compute-share"]["fires-on-convolutions"]
    recorded = replace(case, step=replace(case.step, mode="optimizer"))
    (found,) = (each for each in examine(recorded).findings if each.code == "ST908")
    assert found.advice == f"It runs its convolutions in NCHW. {message}"


def test_what_the_step_is_made_of_goes_where_a_finding_shortens_it() -> None:
    message = [each.name for each in examine(PLANTED["dominant-operator"]["fires"]).findings]
    assert "dominant-operator" in message
    assert "compute-share" not in message


def test_a_note_on_one_operator_stays_where_it_names_a_line() -> None:
    one = PLANTED["dominant-operator"]["fires-as-a-note"]
    computing = replace(
        one, categories=HEALTHY.categories, kernels=tuple(replace(use, duration=9e6) for use in one.kernels)
    )
    lined = replace(
        computing, kernels=tuple(replace(use, source=SourceLine("model.py", 31)) for use in computing.kernels)
    )
    notes = {"dominant-operator", "compute-share"}
    assert notes & {each.name for each in examine(computing).findings} == {"compute-share"}
    assert notes & {each.name for each in examine(lined).findings} == notes


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("picked = random.sample(self.items, count)", 9, True),
        ("for each in items:", 9, False),  # another variable of that name
        ("self.items.append(x)", 3, False),  # the line that makes it longer
    ],
)
def test_a_line_that_reads_a_container_that_grows_says_so(text: str, line: int, says: bool) -> None:
    holder = HolderUse("deque", "Replay.items", 0, 0, False, SourceLine("a.py", 3, "add", "self.items.append(x)"), 40)
    case = replace(CASE, memory=MemoryUse("cpu", 2 << 30, holders=(holder,)))
    source = SourceLine("a.py", line, "sample" if line == 9 else "add", text)
    (finding,) = examine(case, [made("ST901", "slow", found("ST901", "slow", saving(200), source=source))]).findings
    sentence = "It reads the deque Replay.items, which grows by 40 with each step."
    assert (sentence in finding.evidence) is says
    assert ("Empty Replay.items after use" in finding.advice) is says


def test_a_container_with_the_name_of_a_word_in_a_sentence_is_not_read_by_the_line() -> None:
    holder = HolderUse("list", "times", 0, 0, False, SourceLine("a.py", 3, "main", "times.append(now)"), 1)
    case = replace(CASE, memory=MemoryUse("cpu", 2 << 30, holders=(holder,)))
    source = SourceLine("a.py", 9, "mean", "return mask.mm(table)")
    slow = replace(found("ST901", "slow", saving(200), source=source), evidence=("It runs mm, 2 times per step.",))
    (finding,) = examine(case, [made("ST901", "slow", slow)]).findings
    assert finding.evidence == slow.evidence


def test_a_line_of_a_function_whose_results_a_cache_keeps_says_that_it_grows() -> None:
    holder = HolderUse("cache", "offsets", 1, 1e6, False, SourceLine("a.py", 3, "offsets", "@lru_cache(None)"), 1)
    case = replace(CASE, memory=MemoryUse("cpu", 2 << 30, holders=(holder,)))
    source = SourceLine("a.py", 5, "offsets", "return torch.arange(count)")
    (finding,) = examine(case, [made("ST901", "slow", found("ST901", "slow", saving(200), source=source))]).findings
    assert "Its results stay in the cache offsets, which grows by 1 with each step." in finding.evidence
    assert "Give the cache of offsets a limit" in finding.advice


def test_a_cause_comes_before_a_setting_unless_the_setting_surely_saves_more() -> None:
    wide = replace(saving(300), low=20.0)
    setting = made("ST808", "too-few-threads", found("ST808", "too-few-threads", wide))
    place = made("ST201", "python-time", found("ST201", "python-time", saving(280, spread=0.2), source=THERE))
    cause = made("ST210", "computed-again", found("ST210", "computed-again", saving(260, spread=0.3), source=HERE))
    assert names(setting, place, cause) == ["computed-again", "python-time", "too-few-threads"]
    sure = made("ST808", "too-few-threads", found("ST808", "too-few-threads", replace(saving(600), low=550.0)))
    assert names(sure, cause) == ["too-few-threads", "computed-again"]


@pytest.mark.parametrize(
    ("saved", "below", "order"),
    [(100, THERE, ["cause", "outside-model"]), (60, THERE, ["outside-model", "cause"]),
     (100, None, ["outside-model", "cause"])],
)  # fmt: skip
def test_a_place_promises_all_of_its_time_and_comes_behind_a_cause_that_is_a_part_of_it(
    saved: int, below: SourceLine | None, order: list[str]
) -> None:
    place = made("ST207", "outside-model", found("ST207", "outside-model", saving(600), source=THERE))
    cause = made("ST210", "cause", found("ST210", "cause", saving(saved), source=HERE, below=below))
    examination = examine(CASE, [place, cause])
    assert [each.name for each in examination.findings] == order


def test_where_a_cause_is_asked_for_elsewhere_the_place_keeps_what_the_cause_leaves() -> None:
    case = replace(CASE, lines=(LineUse(THERE, "python", saving(600), saving(0), 1.0),))
    place = made("ST207", "outside-model", found("ST207", "outside-model", saving(600), source=THERE), by_line=True)
    cause = made(
        "ST210", "cause", found("ST210", "cause", saving(250), source=HERE, below=THERE), supersedes=("outside-model",)
    )
    first, rest = examine(case, [place, cause]).findings
    assert (first.name, rest.name) == ("cause", "outside-model")
    assert first.savings is not None
    assert rest.savings is not None
    assert (first.savings.value, rest.savings.value) == (250, 350)


def test_a_line_outside_of_the_loop_makes_parts_of_the_step_that_do_not_share_their_time() -> None:
    case = replace(CASE, lines=(LineUse(THERE, "python", saving(600), saving(0), 1.0),))
    updates = made("ST503", "updates", found("ST503", "updates", saving(150), source=HERE))
    batches = made("ST106", "batches", found("ST106", "batches", saving(100), source=HERE, category="input"))
    assert [each.savings is not None for each in examine(case, [updates, batches]).findings] == [True, True]
    timed = replace(case, lines=(LineUse(HERE, "python", saving(160), saving(0), 1.0),))
    assert [each.savings is not None for each in examine(timed, [updates, batches]).findings] == [True, False]


@pytest.mark.parametrize(("saved", "first"), [(60, "slow-evaluation"), (150, "slow")])
def test_a_note_on_the_run_comes_first_where_half_of_it_is_worth_more_than_all_findings(saved: int, first: str) -> None:
    case = replace(CASE, segments=(SegmentUse("evaluation", 4, 250, 0.2),))
    note = made("ST901", "slow-evaluation", found("ST901", "slow-evaluation", None, weight=Weight.NOTE))
    slow = made("ST999", "slow", found("ST999", "slow", saving(saved), source=HERE))
    assert names(note, slow, case=case)[0] == first

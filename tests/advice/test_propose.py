"""Proposals: they fit what is in force, and promise no more than is there."""

from __future__ import annotations

import functools
from dataclasses import replace
from functools import partial

import pytest
from advice.every_case import check_all, examined
from advice.healthy import HEALTHY, MS, loader, optimizer
from advice.planted import PLANTED

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.explain import find_fix
from steptime.advice.fix import Option, Promise, Proposal, fix
from steptime.advice.fixes import CATALOGUE
from steptime.advice.fixes.input import worker_option
from steptime.advice.propose import propose
from steptime.advice.savings import modelled
from steptime.analysis.timeline import PhaseName
from steptime.changes import Change


def proposals(case: Case) -> tuple[Proposal, ...]:
    return propose(case, examine(case).findings)


@functools.cache
def proposed(rule: str, name: str) -> tuple[Proposal, ...]:
    return propose(PLANTED[rule][name], examined(rule, name).findings)


def test_no_saving_is_beyond_the_time_savings() -> None:
    def law(rule: str, name: str, case: Case) -> None:
        for proposal in proposed(rule, name):
            saving = proposal.option.saving
            if saving is not None:
                assert saving.high <= case.step.duration.value
                assert proposal.upper_bound is None or saving.high <= proposal.upper_bound

    check_all(law)


def test_never_more_workers_than_the_model_asks_for() -> None:
    def law(rule: str, name: str, case: Case) -> None:
        findings = {finding.code for finding in examined(rule, name).findings}
        for proposal in proposed(rule, name):
            for change in proposal.option.changes:
                workers = change.argument("num_workers")
                if isinstance(workers, int) and case.loader is not None:
                    busy = case.loader.busy if case.loader.busy is not None else 1.0
                    assert workers * busy <= case.loader.usable_cpus
                    if "ST103" in findings:
                        assert workers < case.loader.workers
                    if case.loader.in_memory_tensors:
                        assert workers <= case.loader.workers

    check_all(law)


def test_every_answer_is_to_a_finding_that_is_there() -> None:
    case = PLANTED["too-few-workers"]["fires"]
    found = proposals(case)
    assert found[0].fix.code == "RM101"
    assert found[0].finding in {"ST101", "ST102"}
    assert propose(case, ()) == ()


def test_an_iterable_dataset_gets_no_workers() -> None:
    case = PLANTED["too-few-workers"]["fires"]
    assert case.loader is not None
    iterable = replace(case, loader=replace(case.loader, iterable=True))
    assert "RM101" not in {proposal.fix.code for proposal in proposals(iterable)}


def test_a_fused_optimiser_is_not_fused_again() -> None:
    uses = optimizer(8 * MS, 200)
    plain = replace(HEALTHY, optimizers=(uses,))
    fused = replace(HEALTHY, optimizers=(replace(uses, fused=True),))
    fix_ = find_fix("RM201")
    assert fix_ is not None
    assert [option.changes[0].argument("fused") for option in fix_(plain)] == [True]
    assert fix_(fused) == ()


def test_advice_comes_last() -> None:
    def law(rule: str, name: str, _case: Case) -> None:
        advice = [proposal.advice_only for proposal in proposed(rule, name)]
        assert advice == sorted(advice)

    check_all(law)


def test_codes_and_names_are_unique() -> None:
    assert len({each.code for each in CATALOGUE}) == len({each.name for each in CATALOGUE}) == len(CATALOGUE)


def test_a_fix_needs_its_sections_and_a_proper_code() -> None:
    with pytest.raises(ValueError, match="lacks"):

        @fix("RM999", "no-page", addresses=(), promise=Promise.SAME_BITS, risk=1)
        def without_a_page(case: Case) -> None:
            """Only a title."""

    with pytest.raises(ValueError, match="RM101"):
        fix("XX1", "x", addresses=(), promise=Promise.SAME_BITS, risk=1)


def test_a_loader_that_waits_gets_the_models_number() -> None:
    waiting = loader(30 * MS, 0.93 * MS, usable_cpus=4)
    case = replace(PLANTED["too-few-workers"]["fires"], loader=waiting)
    option = next(each.option for each in proposals(case) if each.fix.code == "RM101")
    assert option.changes[0].argument("persistent_workers") is True


def _offer(option: Option, **_: object) -> Option:
    return option


def test_what_acts_on_more_than_a_finding_is_about_may_save_more() -> None:
    case = PLANTED["memory-bound-pointwise"]["fires"]
    (found,) = [each for each in examine(case).findings if each.code == "ST401"]
    known = find_fix("RM301")
    assert found.savings is not None
    assert known is not None
    beyond, step = 1.5 * found.savings.high, case.step.duration.value
    for reach, most in ((0.0, found.savings.high), (beyond, beyond), (2 * step, step)):
        offered = Option("all of it", (Change("autocast"),), modelled(2 * step, 0.0, 2 * step), reach=reach)
        (proposal,) = propose(case, (found,), (replace(known, function=partial(_offer, offered)),))
        assert proposal.upper_bound == pytest.approx(most)
        assert proposal.option.saving is not None
        assert proposal.option.saving.high == pytest.approx(most)


def test_no_model_is_compiled_for_a_line_of_the_dataset_or_the_optimiser() -> None:
    case = PLANTED["dispatch-loop"]["fires"]
    compiled = next(each for each in proposals(case) if each.fix.name == "compiled-model")
    (finding,) = (each for each in examine(case).findings if each.code == compiled.finding)
    assert finding.source is not None
    cases: tuple[tuple[PhaseName, bool], ...] = (
        ("input", False), ("optimizer", False), ("forward", True), ("backward", True)
    )  # fmt: skip
    for phase, proposed in cases:
        elsewhere = tuple(replace(each, phase=phase, source=finding.source) for each in case.operators)
        found = propose(replace(case, operators=elsewhere), [finding])
        assert any(each.fix is compiled.fix for each in found) is proposed, phase


def test_a_sweep_tries_the_numbers_that_were_named_but_the_jobs_own() -> None:
    case = PLANTED["too-few-workers"]["fires"]
    assert case.loader is not None
    own = case.loader.workers
    options = {number: worker_option(case, number) for number in (0, 1, 2, own)}
    assert options[own] is None
    for number, option in options.items():
        if option is not None:
            assert option.changes[0].argument("num_workers") == number
            assert option.edit is not None
    streamed = replace(case, loader=replace(case.loader, iterable=True, workers=0))
    assert worker_option(streamed, 2) is None


def test_lower_precision_is_for_products_that_are_wide() -> None:
    """Of a device the kernels tell, not whether computing is most of the step."""
    case = PLANTED["single-precision"]["fires-in-tf32-by-the-names-of-kernels"]
    findings = examine(case).findings

    def offered(dtype: str) -> dict[str, float]:
        kernels = tuple(replace(use, dtype=dtype) for use in case.kernels)
        found = propose(replace(case, kernels=kernels), findings)
        return {each.fix.code: each.option.saving.value for each in found if each.option.saving is not None}

    assert offered("float32")["RM301"] > offered("tf32")["RM301"] > 0
    assert not {"RM301", "RM302", "RM306"} & offered("bfloat16").keys()


def test_what_the_note_on_computing_says_is_tried_is_tried() -> None:
    """On a device: its kernels tell what convolutions take, the host only launches them."""
    case = PLANTED["compute-share"]["fires-on-convolutions"]
    found = {each.fix.code for each in propose(case, examine(case).findings) if not each.advice_only}
    assert {"RM303", "RM304", "RM306"} <= found
    assert "RM304" not in {each.fix.code for each in propose(replace(case, kernels=()), examine(case).findings)}

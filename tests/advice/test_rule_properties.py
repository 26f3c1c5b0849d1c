"""No rule ever raises, promises more than there is, or advises workers that its own model does not want."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from functools import cache
from typing import Any, get_args, get_type_hints

import pytest
from advice.planted import PLANTED
from example_counts import examples
from hypothesis import HealthCheck, given, settings, strategies as st

from steptime.advice.device_uses import (
    AllocationUse,
    ChainUse,
    CollectiveUse,
    CopyUse,
    GapUse,
    MachineUse,
    RankUse,
    ReplayUse,
    RooflineUse,
)
from steptime.advice.engine import examine
from steptime.advice.evidence import Case, CompilationUse, LineUse, OptimizerUse, RecomputeUse, SiteUse
from steptime.advice.loader_model import supply
from steptime.advice.rule import Rule, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.run_uses import (
    CategoryUse,
    Contention,
    GarbageUse,
    LoaderUse,
    SegmentUse,
    SettingsUse,
    SpreadUse,
    StepSummary,
)
from steptime.advice.savings import named
from steptime.advice.verdict import verdict
from steptime.analysis.categories import Category
from steptime.analysis.lines import LineRole
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import BOUNDS, COMMUNICATION, KernelUse
from steptime.analysis.stragglers.comparison import Straggler
from steptime.analysis.timeline import Phase, SegmentKind
from steptime.analysis.what_if.what_if import Prediction
from steptime.quantities import Estimate, SourceLine
from steptime.recording.rule_facts import PaddingFacts

likely = st.sampled_from([0.0, 0.3, 2.0, 64.0, 300.0, 2e4, 3e5, 1e6, 4e6, 2e7, 2.5e7, 4e7])
numbers = st.one_of(likely, likely, st.floats(min_value=1e-3, max_value=1e12))
shares = st.floats(min_value=0, max_value=1)
counts = st.one_of(st.sampled_from([0, 1, 2, 8, 40, 128]), st.integers(min_value=0, max_value=500))
ODD = ("", "ünïcode # µ")


def strings_of(value: object, found: defaultdict[tuple[str, str], set[str]]) -> None:
    """Collects the strings of a record, by the name of its class and of the field."""
    for each in value if isinstance(value, tuple) else ():
        strings_of(each, found)
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            if isinstance(held, str):
                found[type(value).__name__, field.name].add(held)
            strings_of(held, found)


@cache
def strings() -> defaultdict[tuple[str, str], set[str]]:
    """Those that planted cases have in each field, and closed sets as the product declares them. Looked up by the first
    test that draws any: it takes half a second, and each worker of xdist imports this file."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for planted in PLANTED.values():
        for planted_case in planted.values():
            strings_of(planted_case, found)
    found["LineUse", "role"] |= {role.value for role in LineRole}
    found["CategoryUse", "name"] |= {each.name.lower() for each in (*Category, *Phase)}
    found["OperatorUse", "phase"] |= {each.name.lower() for each in Phase}
    found["SegmentUse", "kind"] |= {each.name.lower() for each in SegmentKind}
    found["KernelUse", "bound"] |= {*BOUNDS, COMMUNICATION}
    return found


def some_words() -> st.SearchStrategy[str]:
    """Any of them, but for texts of whole functions, which no other field has."""
    return st.sampled_from(sorted(each for each in {*ODD}.union(*strings().values()) if "\n" not in each))


def own_words(kind: str, field: str) -> st.SearchStrategy[str]:
    return st.deferred(lambda: st.sampled_from((*ODD, *sorted(strings()[kind, field]))))


words = st.deferred(some_words)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    value = draw(numbers)
    low = value * draw(shares)
    return Estimate(value, low, value * (1 + draw(shares)), draw(counts))


sources = st.builds(SourceLine, file=words, line=counts, function=words, text=words)


def every(kind: type, /, **fields_of_its_own: object) -> st.SearchStrategy[Any]:
    """Values of a dataclass with every field drawn, those with defaults too; of many alike one or two, as Hypothesis
    gives up what needs too many choices."""
    drawn: dict[str, object] = {field.name: ... for field in dataclasses.fields(kind)}
    types = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if get_args(types[field.name])[1:] == (...,) and field.name not in fields_of_its_own:
            (held, _) = get_args(types[field.name])
            drawn[field.name] = st.lists(st.from_type(held), max_size=2).map(tuple)
        if field.type == "str":
            drawn[field.name] = own_words(kind.__name__, field.name)
    return st.builds(kind, **{**drawn, **fields_of_its_own})  # type: ignore[arg-type]


for leaf, strategy in ((Estimate, estimates()), (SourceLine, sources), (float, numbers), (int, counts), (str, words)):
    st.register_type_strategy(leaf, strategy)
st.register_type_strategy(PaddingFacts, every(PaddingFacts, share=shares))
st.register_type_strategy(Straggler, every(Straggler, ranks=st.lists(counts, min_size=1, max_size=3).map(tuple)))
of_pairs = st.sampled_from(["distance", "product"])
st.register_type_strategy(SpreadUse, every(SpreadUse, kind=of_pairs))
SINGLE = (
    GarbageUse,
    Contention,
    MachineUse,
    RecomputeUse,
    RooflineUse,
    Prediction,
    ReplayUse,
)
DEVICE = (
    KernelUse,
    GapUse,
    CopyUse,
    CollectiveUse,
    AllocationUse,
    ChainUse,
    RankUse,
)
REPEATED = (
    *DEVICE,
    OptimizerUse,
    CompilationUse,
    SegmentUse,
    OperatorUse,
    SiteUse,
    LineUse,
)
PARTS: tuple[type, ...] = (StepSummary, SettingsUse, LoaderUse, *SINGLE, *REPEATED)
for part in PARTS:
    st.register_type_strategy(part, every(part))

names = st.deferred(lambda: st.sampled_from(sorted(strings()["CategoryUse", "name"])))
categories = st.builds(CategoryUse, name=names)
cases = every(
    Case,
    categories=st.lists(categories, max_size=5, unique_by=lambda use: use.name).map(tuple),
    phases=st.lists(categories, max_size=3, unique_by=lambda use: use.name).map(tuple),
)
loading = st.builds(
    Case,
    step=every(StepSummary),
    loader=every(LoaderUse, usable_cpus=st.integers(min_value=1, max_value=64)),
    settings=st.none() | every(SettingsUse),
    contention=st.none() | every(Contention),
)
many = settings(max_examples=examples(64), deadline=None, suppress_health_check=list(HealthCheck))
few = settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck), database=None)


def holds(case: Case) -> None:
    """What is true of the findings of any case."""
    examination = examine(case, CATALOGUE)
    assert examination.failed == ()
    for finding in examination.findings:
        assert "\n" not in finding.summary
        assert not re.search(r"\b(nan|inf)\b", finding.summary)
        if finding.weight is Weight.FINDING and "included in the savings of ST" not in finding.summary:
            assert finding.savings is not None
            assert math.isfinite(finding.savings.value)
            category = named(case.categories, finding.category)
            on_device = case.step.device != "cpu"  # on a CPU what stays may get quicker, too
            assert category is None or not on_device or finding.savings.high <= category.duration.high * (1 + 1e-9)
            assert finding.savings.value <= case.step.duration.value * (1 + 1e-9)
    charged = [each for each in examination.findings if each.weight is Weight.FINDING and each.savings is not None]
    assert sum(each.savings.value for each in charged if each.savings) <= case.step.duration.value * (1 + 1e-9)
    for category in case.categories:
        held = sum(each.savings.value for each in charged if each.savings and each.category == category.name)
        assert held <= category.duration.value * (1 + 1e-9)
    assert verdict(case, examination.findings).sentence


@many
@given(cases)
def test_no_case_makes_a_rule_raise_or_promise_what_is_not_there(case: Case) -> None:
    holds(case)


PARTS_OF_A_CASE = [field.name for field in dataclasses.fields(Case)]


@st.composite
def mixed(draw: st.DrawFn, rule: str) -> Case:
    """A case in which a rule fires, with some parts of another one's, or of none; the simplest is the case itself."""
    firing = [case for name, case in PLANTED[rule].items() if name.startswith("fires")]
    others = [case for planted in PLANTED.values() for case in planted.values()]
    case = draw(st.sampled_from(firing))
    for name in draw(st.lists(st.sampled_from(PARTS_OF_A_CASE), max_size=4, unique=True)):
        case = dataclasses.replace(case, **{name: getattr(draw(st.sampled_from(others)), name)})
    return case


@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.name)
def test_every_rule_fires_and_no_mixture_of_cases_makes_one_raise(rule: Rule) -> None:
    fired = []

    @few
    @given(mixed(rule.name))
    def look(case: Case) -> None:
        holds(case)
        if not rule.evidence.missing_in(case):
            fired.append(bool(rule(case)))

    look()
    assert any(fired)


@many
@given(loading)
def test_workers_are_never_raised_beyond_what_the_model_wants(case: Case) -> None:
    loader = case.loader
    assert loader is not None
    for finding in examine(case, CATALOGUE).findings:
        for advised in re.findall(r"num_workers=(\d+)", finding.advice):
            model = supply(case, loader)
            assert model is not None
            assert int(advised) in (0, model.best)
            assert int(advised) <= model.limit
            if finding.name == "too-few-workers":
                assert loader.workers < int(advised) <= model.best
                assert model.step(int(advised)) < case.step.duration.value
            else:
                assert int(advised) < max(loader.workers, 1)

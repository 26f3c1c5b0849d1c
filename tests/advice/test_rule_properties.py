"""No rule ever raises, promises more than there is, or advises workers that its own model does not want."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, get_args

from hypothesis import HealthCheck, given, settings, strategies as st

import steptime.advice.evidence as case_module
from steptime.advice.engine import examine
from steptime.advice.evidence import Case, CategoryUse, LineUse, LoaderUse, OperatorUse, SiteUse
from steptime.advice.loader_model import supply
from steptime.advice.rule import Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.savings import named
from steptime.advice.verdict import verdict
from steptime.analysis.categories import CategoryName
from steptime.analysis.stragglers.comparison import Straggler
from steptime.analysis.timeline import PhaseName
from steptime.quantities import Estimate, SourceLine

likely = st.sampled_from([0.0, 0.3, 2.0, 64.0, 300.0, 2e4, 3e5, 1e6, 4e6, 2e7, 2.5e7, 4e7])
numbers = st.one_of(likely, likely, st.floats(min_value=1e-3, max_value=1e12))
shares = st.floats(min_value=0, max_value=1)
counts = st.one_of(st.sampled_from([0, 1, 2, 8, 40, 128]), st.integers(min_value=0, max_value=500))
words = st.sampled_from(
    """|loss.backward()|print(loss.item())|gc.collect()|torch.save(state, path)|x = torch.tensor(rows)|ünïcode # µ
x = x.to(device, non_blocking=True)|hits += accuracy(a, b)|default_collate
cpu|cuda|aten::add_|aten::copy_|AdamW|checkpoint|rollout
aten::mm|aten::bmm|aten::_softmax|[[8, 64, 64], [8, 64, 64]]|[[]]|float32|tf32|bfloat16|HtoD|DtoH|pageable|sync
cudaFree|trace|compute|communication|aten::to""".replace("\n", "|").split("|")
)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    value = draw(numbers)
    low = value * draw(shares)
    return Estimate(value, low, value * (1 + draw(shares)), draw(counts))


sources = st.builds(SourceLine, file=words, line=counts, function=words, text=words)


def every(kind: type, **fields_of_its_own: object) -> st.SearchStrategy[Any]:
    """Values of a dataclass with every field drawn, those with defaults too."""
    drawn = {field.name: ... for field in dataclasses.fields(kind)}
    return st.builds(kind, **{**drawn, **fields_of_its_own})  # type: ignore[arg-type]


for leaf, strategy in ((Estimate, estimates()), (SourceLine, sources), (float, numbers), (int, counts), (str, words)):
    st.register_type_strategy(leaf, strategy)
st.register_type_strategy(case_module.PaddingFacts, every(case_module.PaddingFacts, share=shares))
st.register_type_strategy(Straggler, every(Straggler, ranks=st.lists(counts, min_size=1, max_size=3).map(tuple)))
SINGLE = (
    case_module.GarbageUse,
    case_module.Contention,
    case_module.MachineUse,
    case_module.RecomputeUse,
    case_module.RooflineUse,
    case_module.Prediction,
    case_module.ReplayUse,
)
DEVICE = (
    case_module.KernelUse,
    case_module.GapUse,
    case_module.CopyUse,
    case_module.CollectiveUse,
    case_module.AllocationUse,
    case_module.ChainUse,
    case_module.RankUse,
)
REPEATED = (
    *DEVICE,
    case_module.OptimizerUse,
    case_module.CompilationUse,
    case_module.SegmentUse,
    OperatorUse,
    SiteUse,
    LineUse,
)
PARTS: tuple[type, ...] = (case_module.StepSummary, case_module.SettingsUse, LoaderUse, *SINGLE, *REPEATED)
for part in PARTS:
    st.register_type_strategy(part, every(part))

categories = st.builds(CategoryUse, name=st.sampled_from(get_args(CategoryName)))
phases = st.builds(CategoryUse, name=st.sampled_from(get_args(PhaseName)))
cases = every(
    Case,
    categories=st.lists(categories, max_size=5, unique_by=lambda use: use.name).map(tuple),
    phases=st.lists(phases, max_size=3, unique_by=lambda use: use.name).map(tuple),
)
loading = st.builds(
    Case,
    step=every(case_module.StepSummary),
    loader=every(LoaderUse, usable_cpus=st.integers(min_value=1, max_value=64)),
    settings=st.none() | every(case_module.SettingsUse),
    contention=st.none() | every(case_module.Contention),
)
many = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@many
@given(cases)
def test_no_case_makes_a_rule_raise_or_promise_what_is_not_there(case: Case) -> None:
    examination = examine(case, CATALOGUE)
    assert examination.failed == ()
    for finding in examination.findings:
        assert "\n" not in finding.summary
        assert not re.search(r"\b(nan|inf)\b", finding.summary)
        if finding.weight is Weight.FINDING and "a part of what ST" not in finding.summary:
            assert finding.savings is not None
            assert math.isfinite(finding.savings.value)
            category = named(case.categories, finding.category)
            assert category is None or finding.savings.high <= category.duration.high
            assert finding.savings.value <= case.step.duration.value * (1 + 1e-9)
    charged = [each for each in examination.findings if each.weight is Weight.FINDING and each.savings is not None]
    assert sum(each.savings.value for each in charged if each.savings) <= case.step.duration.value * (1 + 1e-9)
    for category in case.categories:
        held = sum(each.savings.value for each in charged if each.savings and each.category == category.name)
        assert held <= category.duration.value * (1 + 1e-9)
    assert verdict(case, examination.findings).sentence


@many
@given(loading)
def test_workers_are_never_raised_beyond_what_the_model_wants(case: Case) -> None:
    loader = case.loader
    assert loader is not None
    for finding in examine(case, CATALOGUE).findings:
        for advised in re.findall(r"num_workers=(\d+)", finding.advice):
            model = supply(case.step, loader, case.settings, case.contention)
            assert model is not None
            assert int(advised) in (0, model.best)
            assert int(advised) <= model.limit
            if finding.name == "too-few-workers":
                assert loader.workers < int(advised) <= model.best
                assert model.step(int(advised)) < case.step.duration.value
            else:
                assert int(advised) < max(loader.workers, 1)

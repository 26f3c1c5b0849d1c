"""RM303: the model compiled."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.kernel_kinds import POINTWISE, plain_name
from steptime.findings.operator_time import profile_scale
from steptime.findings.stakes import modelled, named, ratio
from steptime.quantities import Estimate
from steptime.remedies.remedy import Option, Promise, remedy
from steptime.remedies.training_lines import model_edit

LIKELY, SURE = 2 / 3, 0.0
"""Of the dispatching: fused code still launches, and a graph break leaves all of it. And of the pointwise operators:
three in one save two writes and two reads of six (the optimiser's stay outside). By the profiler, 0.65 and 0.72 of what
they took went on a CPU (the planted jobs `pointwise_chain` and `large_tensors`, torch 2.13); a job that compiles each
length of its sequences anew lost a third of its speed (benchmarks/results/remedies-epyc-2cpu.md)."""
LIKELY_ON_CPU = 0.9
"""Of the dispatching on a CPU, which is all that small operators take there: four trials of the planted job
`small_operators` reached 0.94 to 1.13 of it."""
STATEMENT = "{model} = {torch}.compile({model})"
EXAMPLE = "model = torch.compile(model)  # before the optimiser is made from its parameters"


@remedy(
    "RM303",
    "compiled-model",
    addresses={"ST301", "ST302", "ST305", "ST401", "ST402"},
    promise=Promise.SAME_CURVE,
    risk=4,
)
def compiled_model(case: Case) -> Option | None:
    """The model compiled by torch.compile

    What it changes
        The module that your loop calls is compiled (TorchInductor, default mode). The first steps take seconds to
        minutes; they are kept apart and reported.

    What it promises
        A curve as another seed would give: dropout masks come from another generator. The gradients of the first step
        are compared parameter by parameter, with dropout off, because compilers have returned zero gradients beside a
        right loss.

    What it should gain
        Two thirds of the time that goes into dispatching small operators (nine tenths on a CPU), and two thirds of what
        chains of pointwise operators take: fused, they read and write memory once. Nothing is predicted where the
        profiled steps differ in shapes or in the number of operators: what is compiled anew, and how often, shows only
        in the trial.

    When to leave it
        When shapes change all the time, or runs are shorter than the compilation.
    """
    if case.compilations or any(root.compiled for root in case.roots):
        return None
    saving = _saving(case) if not case.changing_work else None
    edit = model_edit(case, STATEMENT, EXAMPLE, in_place="{model}.compile()")
    return Option("torch.compile(model)", (Change("compile"),), saving, edit, "dropout masks")


def _saving(case: Case) -> Estimate | None:
    launch = named(case.accounts, "launch")
    dispatching = launch.duration.value if launch is not None else 0.0
    moving = _in_chains(case)
    gain = dispatching + moving
    likely = (LIKELY_ON_CPU if case.step.device == "cpu" else LIKELY) * dispatching + LIKELY * moving
    return modelled(likely, SURE * gain, gain, case.step.steady) if gain else None


def _in_chains(case: Case) -> float:
    """ns a step of what fusion makes less of: what a device's chains move in between, else pointwise operators that
    move bytes, on the scale of the steady steps."""
    if case.chains:
        return sum(chain.duration * ratio(chain.saved, chain.bytes) for chain in case.chains)
    fusible = [use for use in case.operators if use.bound == "memory" and plain_name(use.name) in POINTWISE]
    spent = sum(use.duration for use in fusible if use.phase != "optimizer")
    return spent * profile_scale(case.operators, case.accounts)

"""RM303: the model compiled."""

from __future__ import annotations

from collections.abc import Iterable

from steptime.changes import Change
from steptime.findings.case import Case, OperatorUse
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.operator_time import AT_WORK, steady_time
from steptime.findings.pointwise_operators import moving
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
TANH = "tanh"
COMPILED_TANH, TANH_BYTES = 1.65, 8.0
"""ns of one in code that is compiled for a CPU, which takes a more exact routine than torch's own kernel; and bytes
that the kernel moves for it. By hand (torch 2.13) 1.65 with AVX-512, where the kernel took 0.6 and 1.2; on a
processor with AVX2 two trials of `pointwise_chain` lost 4 for each. exp, sigmoid, gelu and log cost no more."""
TANHS = 2
"""For each: backward computes it again instead of keeping it."""
MODEL = ("forward", "backward")
"""Phases that are compiled; operators of theirs by name have one of these, too."""
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
        chains of pointwise operators take: fused, they read and write memory once. On a CPU also two thirds of the
        Python and autograd between the model's operators, at most as much as goes into dispatching, less what tanh
        takes longer there. Nothing is predicted where the profiled steps differ in shapes or in the number of
        operators: what is compiled anew, and how often, shows only in the trial.

    When to leave it
        When shapes change all the time, or runs are shorter than the compilation.
    """
    if case.compilations or any(root.compiled for root in case.roots):
        return None
    saving, reach = _saving(case) if not case.changing_work else (None, 0.0)
    edit = model_edit(case, STATEMENT, EXAMPLE, in_place="{model}.compile()")
    return Option("torch.compile(model)", (Change("compile"),), saving, edit, "dropout masks", reach=reach)


def _saving(case: Case) -> tuple[Estimate | None, float]:
    """(what compiling saves, the time of all that it acts on), ns a step."""
    launch = named(case.accounts, "launch")
    dispatching = launch.duration.value if launch is not None else 0.0
    around = min(dispatching, _between(case)) if case.step.device == "cpu" else 0.0
    fused = _in_chains(case) + around
    gain = dispatching + fused
    likely = (LIKELY_ON_CPU if case.step.device == "cpu" else LIKELY) * dispatching + LIKELY * fused
    return modelled(likely - _slower(case), SURE * gain, gain, case.step.steady) if gain else None, gain


def _in_chains(case: Case) -> float:
    """ns a step of what fusion makes less of: what a device's chains move in between, else pointwise operators that
    move bytes, on the scale of the steady steps."""
    if case.chains:
        return sum(chain.duration * ratio(chain.saved, chain.bytes) for chain in case.chains)
    return _steady(case, moving(case.operators, case.machine))


def _slower(case: Case) -> float:
    """ns a step that code compiled for a CPU takes longer for what torch's own kernels do quicker."""
    if case.step.device != "cpu":
        return 0.0
    kernels = [use for use in case.operators if plain_name(use.name) == TANH]
    moved = sum(use.bytes or 0.0 for use in kernels)
    fused = set(moving(case.operators, case.machine)) & set(kernels)
    left = _steady(case, kernels) - LIKELY * _steady(case, fused)
    return max(0.0, TANHS * COMPILED_TANH * moved / TANH_BYTES - left)


def _steady(case: Case, chosen: Iterable[OperatorUse]) -> float:
    return steady_time(chosen, case.operators, case.accounts, case.machine)


def _between(case: Case) -> float:
    """ns a step of forward and backward in which no operator runs: modules that are called, autograd's own work."""
    inside = sum(phase.duration.value for phase in case.phases if phase.name in MODEL)
    at_work = sum(account.duration.value for account in case.accounts if account.name in AT_WORK)
    elsewhere = [use for use in case.operators if use.phase not in MODEL]
    at_work -= _steady(case, elsewhere)
    host = named(case.accounts, "host")
    return min(max(0.0, inside - at_work), host.duration.value if host is not None else 0.0)

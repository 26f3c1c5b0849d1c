"""RM5xx and RM6xx: switches that a job has left on, and memory for time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from steptime.advice.evidence import Case, SiteUse
from steptime.advice.fix import (
    Edit,
    EnvironmentEdit,
    ModelEdit,
    Option,
    Promise,
    Snippet,
    StatementEdit,
    SwitchEdit,
    fix,
    model_edit,
)
from steptime.advice.models import check_time, checks
from steptime.advice.run_uses import SettingsUse, StepSummary
from steptime.advice.savings import modelled
from steptime.analysis.modules import ModuleUse
from steptime.changes import Change
from steptime.debug_switches import acting
from steptime.quantities import format_count

STATEMENT = """for block in {holder}:
    block.forward = functools.partial({{torch}}.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)"""
FEWEST_BLOCKS = 2
EXAMPLE = """from torch.utils.checkpoint import checkpoint

for block in self.blocks:
    x = checkpoint(block, x, use_reentrant=False)"""
FREES = "Free"
"""In the name of a call to the driver: memory was given back in order to be asked for again, so it is nearly full."""
NEARLY = 0.9
"""Fraction of the device's memory: little is left for a larger batch."""


@fix("RM501", "no-anomaly-detection", addresses={"ST601"}, promise=Promise.SAME_BITS, risk=1)
def no_anomaly_detection(settings: SettingsUse) -> Option | None:
    """Autograd's anomaly detection switched off

    What it changes: torch.autograd.set_detect_anomaly(True) and torch.autograd.detect_anomaly() have no effect.

    What it promises: Equal losses: it only checks. A NaN in backward no longer stops the job.

    What it should gain: Half to nine tenths of the step time, on models of many small operators. The finding's savings
    are the best estimate.

    When to leave it: While you are looking for a NaN.
    """
    if not settings.detect_anomaly:
        return None
    edit = SwitchEdit("set_detect_anomaly", "torch.autograd.set_detect_anomaly(False)", others=("detect_anomaly",))
    return Option("no anomaly detection", (Change("anomaly-off"),), None, edit)


@fix("RM502", "not-deterministic", addresses={"ST603"}, promise=Promise.SAME_CURVE, risk=2)
def not_deterministic(settings: SettingsUse) -> Option | None:
    """Deterministic algorithms switched off

    What it changes: Deterministic algorithms of torch and of cuDNN are switched off. Later requests of the job for
    them have no effect.

    What it promises: A loss curve like that of another seed: sums are taken in another order, which may differ from
    run to run.

    What it should gain: Part of the time of the operators that are slower with deterministic algorithms; the finding
    names them.

    When to leave it: When the run must repeat bit for bit.
    """
    if not settings.deterministic:
        return None
    name = "use_deterministic_algorithms"
    others = ("set_deterministic_debug_mode",)
    edit = SwitchEdit(name, f"torch.{name}(False)", assigned="cudnn.deterministic", others=others)
    return Option("not deterministic", (Change("deterministic-off"),), None, edit)


@fix("RM503", "no-profiler", addresses={"ST602"}, promise=Promise.SAME_BITS, risk=1)
def no_profiler(settings: SettingsUse) -> Option | None:
    """The job's own profiler records nothing

    What it changes: The job may enter and leave torch.profiler.profile and torch.autograd.profiler.profile, but
    they record nothing; handlers of finished traces are not called.

    What it promises: Equal losses: it only watches.

    What it should gain: A tenth to two thirds of the step on models of many small operators; more with stacks and
    memory. The finding's savings are the best estimate.

    When to leave it: While you need its traces. With a schedule (wait, warmup, active, repeat) it records only a
    few steps of a run.
    """
    if not settings.profiler:
        return None
    snippet = Snippet("torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=2, active=3, repeat=1))")
    return Option("no profiler", (Change("profiler-off"),), None, snippet)


@fix("RM505", "unchecked-distributions", addresses={"ST608", "ST903"}, promise=Promise.SAME_BITS, risk=1)
def unchecked_distributions(step: StepSummary, sites: tuple[SiteUse, ...], case: Case) -> Option | None:
    """Distributions that do not check their arguments

    What it changes: torch.distributions.Distribution.set_default_validate_args(False) before training. Distributions
    that are made with validate_args=True check all the same.

    What it promises: Equal losses: a check changes nothing, it only raises.

    What it should gain: The time of the checks in a step, as ST608 estimates it. If rollouts check arguments, too,
    the time of these checks is not predicted.

    When to leave it: While the job is new: the checks find a NaN where it arises.
    """
    found = checks(sites)
    if not found:
        return None
    statement = "torch.distributions.Distribution.set_default_validate_args(False)"
    saved = sum(each.calls for each in found) * check_time(case.machine)
    between = any(use.kind == "rollout" for use in case.segments)
    saving = None if between else modelled(saved, 0.5 * saved, 2 * saved, step.steady)
    edit = StatementEdit(statement, "torch")
    return Option("distributions unchecked", (Change("unchecked-distributions"),), saving, edit)


@fix("RM504", "no-debug-switches", addresses={"ST606"}, promise=Promise.SAME_BITS, risk=1)
def no_debug_switches(step: StepSummary, settings: SettingsUse) -> Option | None:
    """Debugging variables of the environment switched off

    What it changes: CUDA_LAUNCH_BLOCKING, TORCH_DISTRIBUTED_DEBUG, ONEDNN_VERBOSE, PYTHONDEVMODE and other such
    variables that are on are switched off before the job starts. A variable that the script sets through os.environ
    stays as it is; the trial then says that the change had no effect.

    What it promises: Equal losses: these variables only make the job check, wait or print.

    What it should gain: Nothing is predicted. A variable that makes the job check every block or wait for every
    kernel may cost most of a step; others cost nothing measurable.

    When to leave it: While you are looking for the fault, or if the switch works around one.
    """
    found = acting(settings.debug_switches, step.device, settings.distributed_backend)
    variables = tuple((switch.name, switch.off) for switch, _ in found)
    if not variables:
        return None
    label = " ".join(f"{name}={value}" for name, value in variables)
    return Option(label, (Change("environment", arguments=variables),), None, EnvironmentEdit(variables))


@fix(
    "RM601",
    "activation-checkpointing",
    addresses={"ST306", "ST704", "ST705"},
    promise=Promise.SAME_BITS,
    risk=4,
    frees=0.6,
)
def activation_checkpointing(case: Case) -> Iterator[Option]:
    """Activations computed again instead of kept

    What it changes: Each of the model's repeated blocks (children of one class in a ModuleList or Sequential) keeps
    only its input; backward computes the rest again. In the source: a loop that puts torch.utils.checkpoint around
    each block's forward, if all blocks are in one list. If fewer blocks are enough to bring the peak below 90 % of
    the memory, steptime tries that number, too: each block that is left out saves its second forward.

    What it promises: Equal losses: the random numbers of the forward are restored when it is repeated.

    What it should gain: Memory, not time: the activations of all blocks but one. The cost is a second forward of the
    blocks, about a quarter of a step. Time is saved only if nearly full memory stalls the allocator, or if you use
    the memory for a larger batch. The trial shows peak memory and time.

    When to leave it: When memory is to spare (then see RM305).
    """
    if case.recompute is not None:
        return
    full = case.memory is not None and bool(
        case.memory.retries or (case.memory.capacity and case.memory.peak > NEARLY * case.memory.capacity)
    )
    if not full and not any(FREES in use.name for use in case.allocations):
        return
    holders = _holders(case.modules)
    holder = holders[0] if len(holders) == 1 else None
    yield Option("activation checkpointing", (Change("checkpointing"),), None, _edit_checkpointing(case, holder))
    if holder is not None and (few := _enough(case, holder)):
        change = Change("checkpointing", arguments=(("blocks", few),))
        label = f"activation checkpointing of {format_count(few, 'block')}"
        yield Option(label, (change,), None, _edit_checkpointing(case, holder, f"[:{few}]"))


def _edit_checkpointing(case: Case, holder: tuple[str, ...] | None, part: str = "") -> Edit:
    """In a loop over the blocks, where all that are known to repeat are in one holder and are of one class. part: slice
    of them."""
    if holder is None:
        return Snippet(EXAMPLE)
    statement = STATEMENT.format(holder=".".join(["{model}", *holder]) + part)
    edit = model_edit(case, statement, EXAMPLE)
    return replace(edit, module="functools") if isinstance(edit, ModelEdit) else edit


def _enough(case: Case, holder: tuple[str, ...]) -> int:
    """Number of the first blocks whose activations bring the peak below NEARLY of the capacity; 0 if all are needed, or
    what they keep is unknown."""
    paths = {tuple(use.path.split(".")[1:]): use.kept or 0.0 for use in case.modules}
    blocks = {
        int(path[-1]): kept for path, kept in paths.items() if path and path[:-1] == holder and path[-1].isdigit()
    }
    if case.memory is None or not case.memory.capacity:
        return 0
    needed = case.memory.peak - NEARLY * case.memory.capacity
    freed = list(accumulate(blocks[number] for number in sorted(blocks)))
    return next((few for few, each in enumerate(freed[:-1], 1) if each >= needed > 0), 0)


def _holders(modules: Sequence[ModuleUse]) -> list[tuple[str, ...]]:
    """Paths below the root of what holds blocks: children that are numbered from 0 on, are of one class, have children
    of their own, and are in no other block."""
    types = {tuple(each.path.split(".")): each.type for each in modules}
    parents = {path[:-1] for path in types}
    numbered: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path in types:
        if path[-1].isdigit() and len(path) > 1:
            numbered.setdefault(path[:-1], []).append(path)
    found = [
        holder
        for holder, children in numbered.items()
        if len(children) >= FEWEST_BLOCKS
        and len({types[child] for child in children}) == 1
        and {int(child[-1]) for child in children} == set(range(len(children)))
        and all(child in parents for child in children)
    ]
    outermost = [each for each in found if not any(each != other and each[: len(other)] == other for other in found)]
    known = [each[1:] for each in outermost]
    return known if all(name.isidentifier() for path in known for name in path) else []

"""A trial's side in the user's process: its appliers and its variant, told what happens, telling the recording.

One law: nothing in here reaches the user's program. An applier that fails is not exercised; a variant that fails lets
the job go on to its own end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from steptime.probe import backwards, identity
from steptime.probe.backwards import BackwardWatch
from steptime.probe.changes import exact, lengths, loading, models, precision, process, seeds, updates
from steptime.probe.changes.applier import Applier, RootWatch
from steptime.probe.changes.outside import OutsideWrites
from steptime.probe.changes.parity import ParityRecorder
from steptime.probe.changes.variant import ProcessVariant
from steptime.probe.objects import ConstructionWatch
from steptime.probe.ours import pass_on
from steptime.probe.patches import Follower
from steptime.probe.steps import BACKWARD, FORWARD, OPTIMIZER

APPLIERS: dict[str, type[Applier]] = {
    "anomaly-off": process.AnomalyOff,
    "autocast": precision.Autocast,
    "batch-size": loading.BatchSize,
    "cached-batch": loading.CachedBatch,
    "cached-items": loading.CachedItems,
    "channels-last": models.ChannelsLast,
    "checkpointing": models.Checkpointing,
    "compile": models.Compile,
    "cudnn-benchmark": models.CudnnBenchmark,
    "ddp": updates.DistributedSettings,
    "deterministic-off": process.DeterministicOff,
    "dynamic-shapes": models.DynamicShapes,
    "environment": process.EnvironmentVariables,
    "flush-denormal": process.FlushDenormal,
    "gc-freeze": process.GarbageFreeze,
    "loader": loading.LoaderSettings,
    "matmul-precision": precision.MatmulPrecision,
    "no-sync": updates.FewerExchanges,
    "optimizer": updates.OptimizerVariant,
    "optimizer-8bit": updates.Optimizer8Bit,
    "preload": process.Preloaded,
    "profiler-off": process.ProfilerOff,
    "sdpa-backend": models.AttentionBackend,
    "sharding": updates.ShardingSettings,
    "sharing-strategy": loading.SharingStrategy,
    "similar-lengths": lengths.SimilarLengths,
    "threads": process.ThreadCount,
    "zero-grad": updates.ZeroGrad,
}
"""Appliers by the kind of their change. "environment" and "preload" are made by the launch."""
MOST_BACKWARDS = 64
"""Backwards that are waited for before the first update; an optimiser inside a compiled step is never seen."""
NEWS = ("applied", "exercised")
ROOT_STEPS = 2
"""Steps in which roots are looked for, at least; in a variant all of the warm-up: a generator may learn at every
fifth."""


class Trial(Follower):
    """What the plan changes in this process, from the import of torch to the end of the job or of the variant."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.appliers = [make_applier(change) for change in plan.get("changes") or ()]
        self.acting = self.appliers
        self.variant = ProcessVariant(plan["recording"], **plan["variant"]) if plan.get("variant") else None
        self.parity = ParityRecorder(self.variant) if self.variant else None
        self.roots: list[torch.nn.Module] = []
        self._watch = RootWatch(self._root_found)
        self._steps = self._mode = 0
        self._optimizers = False
        self._written: dict[int, dict[str, Any]] = {}
        self._said: set[str] = set()
        self._session: Any = None
        self._outside: OutsideWrites | None = None

    def install(self) -> None:
        """Before the session's own patches: the session's lie outside."""
        if self.variant is not None:
            self.variant.install()
            seeds.install(self.variant.seed, self.variant.seed_offset)
            if not self.variant.dropout:
                precision.switch_off()
            if self.variant.exact:
                exact.install()
            if self.plan.get("contained") != "overlay":
                self._guard(self._listen)
        self._prepare()
        self._watch.install()
        backwards.install()
        backwards.watch(_Gate(self))
        if self.parity is not None:
            self.parity.install()
        ConstructionWatch(self._made).install()
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)

    def _prepare(self) -> None:
        self._tell("install")

    def _listen(self) -> None:
        self._outside = OutsideWrites(self.plan["recording"], lambda text: self._session.recorder.note(text))
        self._outside.install()

    def attach(self, session: Any) -> None:
        """The session of this process; after a fork, the child's."""
        self._session = session
        self._steps = 0
        self._written = {}
        session.trial = self
        if self.variant is not None:
            self.variant.finish = session.finish
            if self.parity is not None and self.variant.until_loss is not None:
                self.variant.reached = self.parity.reached
        if self.parity is not None:
            self.parity.attach(session.recorder)

    # -- what is told ----------------------------------------------------------------------------------------------

    def backward_begins(self, tensors: Any) -> Any:
        """An outermost backward. Returns the tensors that it begins on."""
        changed = self._before_backward(tensors)
        self._watch.in_backward = True
        return changed if changed is tensors else tuple(changed)

    def backward_ends(self) -> None:
        self._watch.in_backward = False
        self._tell("after_backward")
        self._keep("after_backward", self.roots)

    def _before_backward(self, tensors: Any) -> Any:
        self._keep("backward", tensors)
        for applier in self.acting:
            changed = self._ask(applier, "before_backward", tensors)
            tensors = tensors if changed is None else changed
        return tensors

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._tell("before_update", optimizer)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._keep("updated", optimizer)

    def _made(self, _: Any) -> None:
        self._optimizers = True

    def _root_found(self, module: torch.nn.Module) -> None:
        self.roots.append(module)
        for applier in sorted(self.appliers, key=lambda each: each.order):
            self._ask(applier, "root", module)
        if self.variant is not None and not self.variant.dropout:
            self._guard(precision.switch_off_in, module)
        if self.variant is not None and self.variant.exact:
            self._guard(exact.root, module)
        self._keep("root", module)  # beneath the session's own wrapper, which would not know itself under another one
        self._guard(self._session.add_root, module)

    def boundary(self, steps: int) -> None:
        """A step has ended. Does not return where the variant ends here."""
        if self._is_step():
            self._steps += 1
            self._stepped(self._steps)

    def _is_step(self) -> bool:
        """Whether a boundary that the session sees ends a step. Before the first update every backward may look like
        one (long accumulation); where there is an optimiser, an update is waited for."""
        counter = self._session.counter
        if counter.mode == BACKWARD and self._optimizers and counter.backwards < MOST_BACKWARDS:
            return False
        if counter.mode == FORWARD and self._optimizers:
            return False  # a rollout before the first training
        if self._mode == BACKWARD and counter.mode == OPTIMIZER and self._steps:
            self._steps = 0  # what was counted were no steps
            self._keep("restart")
        self._mode = counter.mode
        return True

    def _stepped(self, steps: int) -> None:
        if steps == 1:
            self._guard(self._describe)
        if steps == max(ROOT_STEPS, self.variant.warm_up if self.variant is not None else 0):
            self._watch.remove()
        self._tell("boundary", steps)
        self._guard(self._write_facts, False)
        if self._outside is not None:
            self._guard(self._outside.look)
        self._keep("boundary", steps, self._session.iterators.added)
        if self.variant is not None:
            self.variant.boundary(steps)

    def finish(self) -> None:
        """At the end of the process: what is known of the changes, and the rest of the losses."""
        self._guard(self._write_facts, True)
        if self._outside is not None:
            self._guard(self._outside.look)
        self._keep("finish")

    # -- the recording ---------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        kinds = [str(change["kind"]) for change in self.plan.get("changes") or ()]
        identity.write_process(self._session.recorder.folder, *identity.device_of(self.roots), kinds)

    def _write_facts(self, final: bool) -> None:
        """Counts in the sentences grow with every step: on the way only what is in force is news."""
        for number, applier in enumerate(self.appliers):
            change = self.plan["changes"][number]
            fields = {
                "identity": number,
                "kind": change["kind"],
                "target": applier.target,
                "applied": applier.applied,
                "exercised": applier.applied and applier.exercised,
                "detail": applier.detail,
                "seconds": applier.seconds,
            }
            known = self._written.get(number, {})
            if known != fields and (final or any(known.get(name) != fields[name] for name in NEWS)):
                self._written[number] = fields
                self._session.recorder.fact("change", **fields)

    def _tell(self, method: str, *arguments: Any) -> None:
        for applier in self.acting:
            self._ask(applier, method, *arguments)

    def _ask(self, applier: Applier, method: str, *arguments: Any) -> Any:
        try:
            return getattr(applier, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the change is not exercised, the job goes on
            applier.failed(error)
            pass_on(error)
            return None

    def _keep(self, method: str, *arguments: Any) -> None:
        """Tells the recorder of parity, where there is one."""
        if self.parity is not None:
            self._guard(getattr(self.parity, method), *arguments)

    def _guard(self, method: Callable[..., Any], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the recording is poorer, the job goes on
            text = f"the variant of a trial: {type(error).__name__}: {error}"
            if text not in self._said:
                self._said.add(text)
                self._session.recorder.note(text)
            pass_on(error)


class _Gate(BackwardWatch):
    """Tells a trial of outermost backwards."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._depth = trial, 0

    def begins(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        if partial or self._depth:  # in a backward: checkpointing, or an engine's thread
            return tensors, None
        tensors = self._trial.backward_begins(tensors)
        self._depth += 1
        return tensors, True

    def ends(self, begun: Any) -> None:
        self._depth -= 1
        self._trial.backward_ends()


def make_applier(change: dict[str, Any]) -> Applier:
    kind, target, arguments = change["kind"], change.get("target", ""), dict(change.get("arguments") or ())
    none = Applier(target, arguments)
    if kind not in APPLIERS:
        none.detail = "this steptime has no applier of that name"
        return none
    try:
        return APPLIERS[kind](target, arguments)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: arguments that make no sense change nothing
        none.failed(error)
        pass_on(error)
        return none

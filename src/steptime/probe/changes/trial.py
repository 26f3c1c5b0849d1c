"""Trial's side in the user's process: runs appliers and variant on the job's events, and records the outcome.

Nothing in here reaches the user's program. An applier that fails is not exercised; a variant that fails lets the job go
on to its own end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from steptime.probe import backwards, identity
from steptime.probe.backwards import BackwardObserver
from steptime.probe.changes import exact, graphs, loading, models, precision, process, seeds, updates
from steptime.probe.changes.applier import Applier, TopModuleObserver
from steptime.probe.changes.outside import OutsideWrites
from steptime.probe.changes.parity import ParityRecorder
from steptime.probe.changes.variant import ProcessVariant
from steptime.probe.objects import ConstructionObserver, unseen
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
    "graphed-callables": graphs.GraphedCallables,
    "loader": loading.LoaderSettings,
    "matmul-precision": precision.MatmulPrecision,
    "no-sync": updates.FewerExchanges,
    "optimizer": updates.OptimizerVariant,
    "optimizer-8bit": updates.Optimizer8Bit,
    "preload": process.Preloaded,
    "profiler-off": process.ProfilerOff,
    "sdpa-backend": models.AttentionBackend,
    "shard-model": updates.ShardedModel,
    "shard-optimizer": updates.ShardedOptimizer,
    "sharding": updates.ShardingSettings,
    "sharing-strategy": loading.SharingStrategy,
    "similar-lengths": loading.SimilarLengths,
    "threads": process.ThreadCount,
    "unchecked-distributions": process.UncheckedDistributions,
    "zero-grad": updates.ZeroGrad,
}
"""Appliers by the kind of their change. The launch makes "environment" and "preload"."""
MOST_BACKWARDS = 64
"""Most backwards to wait for the first update; an optimizer inside a compiled step is never seen."""
NEWS = ("applied", "exercised")
TOP_MODULE_STEPS = 2
"""Least steps to search top modules; in a variant the whole warm-up, as a generator may train in every fifth step."""


class Trial(Follower, BackwardObserver):
    """The plan's changes in this process, from the import of torch to the end of the job or the variant."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.appliers = [make_applier(change) for change in plan.get("changes") or ()]
        self.acting = self.appliers
        self.variant = ProcessVariant(plan["recording"], **plan["variant"]) if plan.get("variant") else None
        # ProfilerOff would switch ours off, too.
        profiles = not any(isinstance(each, process.ProfilerOff) for each in self.appliers)
        self.parity = ParityRecorder(self.variant, profiles=profiles) if self.variant else None
        self.top_modules: list[torch.nn.Module] = []
        self._observer = TopModuleObserver(self._top_module_found)
        self._steps = self._mode = 0
        self._optimizers = False
        self._written: dict[int, dict[str, Any]] = {}
        self._message: set[str] = set()
        self._session: Any = None
        self._outside: OutsideWrites | None = None

    def install(self) -> None:
        """Installs changes and observers before the session's timers, which are therefore the outer ones."""
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
        self._observer.install()
        backwards.install()
        backwards.observe(self)
        if self.parity is not None:
            self.parity.install()
        ConstructionObserver(self._made).install()
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)

    def _prepare(self) -> None:
        self._notify("install")

    def _listen(self) -> None:
        self._outside = OutsideWrites(self.plan["recording"], lambda text: self._session.recorder.note(text))
        self._outside.install()

    def attach(self, session: Any) -> None:
        """Connects the session of this process; after a fork, the child's."""
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

    # -- reports -------------------------------------------------------------------------------------------------------

    def starts(self, tensors: Any, partial: bool) -> tuple[Any, Any]:
        if partial or self._observer.in_backward:  # in a backward: checkpointing, or an engine's thread
            return tensors, None
        changed = self._before_backward(tensors)
        self._observer.in_backward = True
        return changed if changed is tensors else tuple(changed), True

    def ends(self, begun: Any) -> None:
        self._observer.in_backward = False
        self._notify("after_backward")
        self._keep("after_backward", self.top_modules)

    def _before_backward(self, tensors: Any) -> Any:
        self._keep("backward", tensors)
        for applier in self.acting:
            changed = self._ask(applier, "before_backward", tensors)
            tensors = tensors if changed is None else changed
        return tensors

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._notify("before_update", optimizer)
            self._keep("before_update", optimizer)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._keep("updated", optimizer)

    def _made(self, _: Any) -> None:
        self._optimizers = True

    def _top_module_found(self, module: torch.nn.Module) -> None:
        self.top_modules.append(module)
        for applier in sorted(self.appliers, key=lambda each: each.order):
            self._ask(applier, "top_module", module)
        if self.variant is not None and not self.variant.dropout:
            self._guard(precision.switch_off_in, module)
        if self.variant is not None and self.variant.exact:
            self._guard(exact.top_module, module)
        # Beneath the session's own wrapper, which would not know itself under another one.
        self._keep("top_module", module)
        self._guard(self._session.add_top_module, module)

    def boundary(self, steps: int) -> None:
        """Called when a step has ended. Does not return if the variant ends here."""
        if self._is_step():
            self._steps += 1
            self._stepped(self._steps)

    def _is_step(self) -> bool:
        """True if the session's boundary ends a step. Before the first update every backward may look like one (long
        accumulation), so a job with an optimizer waits for an update."""
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
        if steps == max(TOP_MODULE_STEPS, self.variant.warm_up if self.variant is not None else 0):
            self._observer.remove()
        self._notify("boundary", steps)
        self._guard(self._write_facts, False)
        if self._outside is not None:
            self._guard(self._outside.look)
        self._keep("boundary", steps, self._session.iterators.added)
        if self.variant is not None:
            self.variant.boundary(steps)

    def finish(self) -> None:
        """Writes the outcome of the changes and the rest of the losses, at the end of the process."""
        self._guard(self._write_facts, True)
        if self._outside is not None:
            self._guard(self._outside.look)
        self._keep("finish")

    # -- the recording ---------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        kinds = [str(change["kind"]) for change in self.plan.get("changes") or ()]
        identity.write_process(self._session.recorder.folder, *identity.device_of(self.top_modules), kinds)

    def _write_facts(self, final: bool) -> None:
        """Writes outcomes: before the end, only if a change's state is new, as counts in sentences grow all the
        time."""
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

    def _notify(self, method: str, *arguments: Any) -> None:
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
        """Calls the parity recorder, if there is one."""
        if self.parity is not None:
            self._guard(getattr(self.parity, method), *arguments)

    def _guard(self, method: Callable[..., Any], *arguments: Any) -> None:
        try:
            with unseen():
                method(*arguments)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the recording is poorer, the job goes on
            text = f"the variant of a trial: {type(error).__name__}: {error}"
            if text not in self._message:
                self._message.add(text)
                self._session.recorder.note(text)
            pass_on(error)


def make_applier(change: dict[str, Any]) -> Applier:
    kind, target, arguments = change["kind"], change.get("target", ""), dict(change.get("arguments") or ())
    none = Applier(target, arguments)
    if kind not in APPLIERS:
        none.detail = "this steptime has no such change"
        return none
    try:
        return APPLIERS[kind](target, arguments)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: arguments that make no sense change nothing
        none.failed(error)
        pass_on(error)
        return none

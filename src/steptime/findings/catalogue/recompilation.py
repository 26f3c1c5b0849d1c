"""ST304: the compiler compiles again."""

from __future__ import annotations

from collections import Counter

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, named, ratio
from steptime.links.frames import is_user_file
from steptime.quantities import SourceLine, format_duration, format_share, format_source


@rule("ST304", "recompilation", needs={Signal.STEP}, uses={Signal.COMPILATIONS, Signal.ACCOUNTS, Signal.LINES})
def recompilation(signals: Signals) -> Finding | None:
    """torch.compile compiles again in the middle of training

    What it means
        A guard of the compiled code failed (another shape, another Python value, another set of gradients), so the
        function is traced and compiled anew. After eight times it is given up and runs uncompiled.

    How we know
        TorchDynamo records each compilation with its time and the guard that failed. Those after the warm-up count,
        spread over the steps of the run; the time lies between or inside steps that statistics leave out. A bare trace
        shows the parts of a compilation as annotations: there the ledger's compile account is at stake.

    What helps
        Pad or bucket to a few shapes; torch._dynamo.mark_dynamic or dynamic=True for a dimension that varies; keep
        Python numbers that change (step counters, schedules) out of compiled code or make them tensors; drop_last=True.

    When to ignore it
        When it happens once per stage (first evaluation, last batch of an epoch) in a long run.
    """
    if not signals.has(Signal.COMPILATIONS):
        return _from_trace(signals) if signals.step.mode == "trace" else None
    again = [compilation for compilation in signals.compilations if compilation.after_warm_up]
    steps = max(1, signals.step.total - signals.step.warm_up)
    if not again:
        return None
    spent = sum(compilation.duration for compilation in again)
    worst = max(again, key=lambda compilation: compilation.duration)
    reasons = Counter(compilation.reason for compilation in again if compilation.reason)
    times = "once" if len(again) == 1 else f"{len(again)} times"
    source = _called(signals, worst.source)
    summary = f"Compiled again {times} after the warm-up, {format_duration(spent)} in all ({format_source(source)})"
    stake = modelled(spent / steps, 0.5 * spent / steps, spent / steps, steps)
    evidence = tuple(f"{count} x: {reason}" for reason, count in reasons.most_common(3))
    return recompilation.finding(summary, _advice(reasons), stake, source=source, evidence=evidence)


def _called(signals: Signals, compiled: SourceLine) -> SourceLine:
    """What was compiled; where that is torch's own code (a module of torch's was compiled), the line that called it."""
    forwards = [line for line in signals.lines if line.role == "forward"] if signals.has(Signal.LINES) else []
    if is_user_file(compiled.file) or not forwards:
        return compiled
    return max(forwards, key=lambda line: line.duration.value).source


def _from_trace(signals: Signals) -> Finding | None:
    account = named(signals.accounts, "compile")
    if account is None:
        return None
    share = format_share(ratio(account.duration.value, signals.step.duration.value))
    summary = (
        f"Compiling takes {format_duration(account.duration.value)} of a step ({share}), in steps that were traced"
    )
    advice = "If these are no first steps, look at the reasons: TORCH_LOGS=recompiles names the guard that failed."
    return recompilation.finding(summary, advice, account.recoverable, account="compile")


def _advice(reasons: Counter[str]) -> str:
    text = " ".join(reasons).lower()
    if "size mismatch" in text or "shape" in text or "stride" in text:
        return "Shapes vary: pad or bucket them, or compile with dynamic=True."
    return "Look at the guards that failed and keep what changes out of the compiled code."

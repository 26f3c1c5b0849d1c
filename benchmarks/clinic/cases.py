"""The cases of the clinic: which job shows which fault, in which style, and what a diagnosis should say of it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).parent / "jobs"
MARK = "# fault"


@dataclass(frozen=True)
class Case:
    """One job. cause: the planted fault in the field's words, "" when nothing in the step is to be blamed. rules: names
    of steptime's rules that say so, any of them. style: how the job is written. line: the fault has a line. most:
    largest amount that makes sense. needs: modules beyond torch. ranks: under torchrun."""

    job: str
    cause: str
    rules: tuple[str, ...] = ()
    style: str = "plain loop"
    line: bool = True
    most: int = 1 << 20
    needs: tuple[str, ...] = ()
    ranks: int = 1

    @property
    def script(self) -> Path:
        """Its file."""
        return JOBS / f"{self.job}.py"

    @property
    def marked(self) -> frozenset[int]:
        """Numbers of the lines that bear the fault: a call, or what it calls."""
        lines = self.script.read_text(encoding="utf-8").splitlines()
        return frozenset(number for number, line in enumerate(lines, 1) if MARK in line)

    @property
    def missing(self) -> tuple[str, ...]:
        """What it needs and this environment lacks."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


INPUT = ("input-wait", "too-few-workers")
"""Of slow items both say the truth: that a step waits for its items, and that more workers would help."""
CASES = (
    Case("per_sample_fetch", "per-sample fetch", ("per-sample-fetch", *INPUT), "loader"),
    Case("pandas_rows", "slow items", INPUT, "loader", needs=("pandas",)),
    Case("heavy_decode", "slow items", INPUT, "loader"),
    Case("next_by_hand", "slow items", INPUT, "iter and next by hand"),
    Case("slow_collate", "slow collate", ("slow-collate",), "loader"),
    Case("padding", "padding", ("padding",), "loader", most=64),
    Case("too_few_workers", "too few workers", ("too-few-workers", "input-wait"), "loader with workers"),
    Case("too_many_workers", "too many workers", ("too-many-workers",), "loader with workers", most=16),
    Case("workers_restarted", "workers restarted", ("workers-restarted",), "loader with workers", most=8),
    Case("list_of_arrays", "list conversion", ("list-conversion",), "no loader"),
    Case("own_batches", "batch preparation", ("batch-preparation", "python-time"), "no loader"),
    Case("logging_each_step", "logging", ("logging-in-step",), "no loader"),
    Case("printing_each_step", "logging", ("logging-in-step", "python-time"), "accumulation"),
    Case("metrics_each_step", "metrics", ("metrics-in-step", "dispatch-loop"), "accumulation"),
    Case("checkpoint_each_step", "checkpointing", ("checkpoint-in-step", "slow-checkpoint"), "no loader"),
    Case("collecting_each_step", "garbage collection", ("garbage-collection",), "no loader", most=32),
    Case("loop_loss", "Python loop", ("dispatch-loop",), "no loader", most=8),
    Case("averaged_weights", "Python loop", ("dispatch-loop", "python-time"), "no loader"),
    Case("recurrence", "Python loop", ("dispatch-loop", "indexing-in-loop"), "functional", most=32),
    Case("anomaly_detection", "anomaly detection", ("detect-anomaly",), "no loader", line=False, most=1),
    Case("deterministic", "deterministic", ("deterministic-left-on",), "no loader", line=False),
    Case("own_profiler", "profiler left on", ("profiler-left-on",), "no loader", line=False, most=1),
    Case("dense_embedding", "dense embedding gradient", ("dense-embedding-gradient",), "no loader"),
    Case("single_tensor_updates", "single-tensor optimizer", ("single-tensor-optimizer",), "no loader"),
    Case("pointwise_chain", "unfused pointwise", ("memory-bound-pointwise",), "no loader"),
    Case("naive_attention", "naive attention", ("unflashed-attention", "memory-bound-pointwise"), "no loader", most=4),
    Case("checkpointing_left_on", "recomputation", ("recompute",), "no loader", most=8),
    Case("casts", "casts", ("copies-and-casts",), "no loader"),
    Case("too_many_threads", "oversubscription", ("thread-oversubscription",), "no loader", line=False, most=16),
    Case("denormals", "denormals", ("slow-arithmetic",), "no loader"),
    Case("leaking_history", "leak", ("memory-leak",), "no loader", most=1),
    Case("recompiling_shapes", "recompilation", ("recompilation",), "compiled", line=False, most=24),
    Case("recompiling_constants", "recompilation", ("recompilation",), "compiled", line=False, most=24),
    Case("compiled_slow_input", "slow items", INPUT, "compiled"),
    Case("gan_slow_items", "slow items", INPUT, "two optimizers"),
    Case("rollouts", "list conversion", ("list-conversion", "batch-preparation"), "rollouts"),
    Case("closure_metrics", "metrics", ("metrics-in-step", "dispatch-loop", "python-time"), "closure"),
    Case("trainer_slow_collate", "slow collate", ("slow-collate",), "HF Trainer", needs=("transformers", "accelerate")),
    Case("lightning_slow_items", "slow items", INPUT, "Lightning", needs=("lightning",)),
    Case("accelerate_workers_restarted", "workers restarted", ("workers-restarted",), "Accelerate", most=8,
         needs=("accelerate",)),
    Case("ddp_late_rank", "straggler", ("straggler",), "DDP", ranks=2),
    Case("ddp_missing_no_sync", "missing no_sync", ("missing-no-sync",), "DDP", most=7, ranks=2),
    Case("ddp_slow_input", "slow items", INPUT, "DDP", ranks=2),
    Case("slow_validation", "", (), "loader", line=False),
    Case("slow_start", "", (), "no loader", line=False, most=4),
    Case("busy_neighbour", "", (), "no loader", line=False, most=4),
    Case("two_losses", "", (), "no loader", line=False, most=0),
)  # fmt: skip

"""Appliers by the kind of their change: the one table. "environment" and "preload" are made by the launch."""

from __future__ import annotations

from steptime.probe.changes.applier import Applier
from steptime.probe.changes.loading import BatchSize, CachedBatch, LoaderSettings, SharingStrategy
from steptime.probe.changes.models import (
    AttentionBackend,
    ChannelsLast,
    Checkpointing,
    Compile,
    CudnnBenchmark,
    DynamicShapes,
)
from steptime.probe.changes.precision import Autocast, MatmulPrecision
from steptime.probe.changes.process import (
    AnomalyOff,
    DeterministicOff,
    EnvironmentVariables,
    FlushDenormal,
    GarbageFreeze,
    Preloaded,
    ProfilerOff,
    ThreadCount,
)
from steptime.probe.changes.updates import (
    Accumulation,
    DistributedSettings,
    FewerExchanges,
    Optimizer8Bit,
    OptimizerVariant,
    ZeroGrad,
)

APPLIERS: dict[str, type[Applier]] = {
    "accumulation": Accumulation,
    "anomaly-off": AnomalyOff,
    "autocast": Autocast,
    "batch-size": BatchSize,
    "cached-batch": CachedBatch,
    "channels-last": ChannelsLast,
    "checkpointing": Checkpointing,
    "compile": Compile,
    "cudnn-benchmark": CudnnBenchmark,
    "ddp": DistributedSettings,
    "deterministic-off": DeterministicOff,
    "dynamic-shapes": DynamicShapes,
    "environment": EnvironmentVariables,
    "flush-denormal": FlushDenormal,
    "gc-freeze": GarbageFreeze,
    "loader": LoaderSettings,
    "matmul-precision": MatmulPrecision,
    "no-sync": FewerExchanges,
    "optimizer": OptimizerVariant,
    "optimizer-8bit": Optimizer8Bit,
    "preload": Preloaded,
    "profiler-off": ProfilerOff,
    "sdpa-backend": AttentionBackend,
    "sharing-strategy": SharingStrategy,
    "threads": ThreadCount,
    "zero-grad": ZeroGrad,
}

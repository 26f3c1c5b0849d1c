"""Appliers by the kind of their change: the one table. "environment" and "preload" are made by the launch."""

from __future__ import annotations

from steptime.capture.probe.changes.accumulation import Accumulation
from steptime.capture.probe.changes.applier import Applier
from steptime.capture.probe.changes.autocast import Autocast
from steptime.capture.probe.changes.backends import AttentionBackend, CudnnBenchmark
from steptime.capture.probe.changes.batch_size import BatchSize
from steptime.capture.probe.changes.before_start import EnvironmentVariables, Preloaded
from steptime.capture.probe.changes.cached_batch import CachedBatch
from steptime.capture.probe.changes.channels_last import ChannelsLast
from steptime.capture.probe.changes.checkpointing import Checkpointing
from steptime.capture.probe.changes.compiling import Compile
from steptime.capture.probe.changes.debug_switches import AnomalyOff, DeterministicOff
from steptime.capture.probe.changes.denormals import FlushDenormal
from steptime.capture.probe.changes.distributed import DistributedSettings
from steptime.capture.probe.changes.dynamic_shapes import DynamicShapes
from steptime.capture.probe.changes.exchanges import FewerExchanges
from steptime.capture.probe.changes.garbage_freeze import GarbageFreeze
from steptime.capture.probe.changes.loader import LoaderSettings
from steptime.capture.probe.changes.matmul_precision import MatmulPrecision
from steptime.capture.probe.changes.optimizer import OptimizerVariant
from steptime.capture.probe.changes.optimizer_8bit import Optimizer8Bit
from steptime.capture.probe.changes.profiler_off import ProfilerOff
from steptime.capture.probe.changes.sharing_strategy import SharingStrategy
from steptime.capture.probe.changes.threads import Threads
from steptime.capture.probe.changes.zero_grad import ZeroGrad

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
    "threads": Threads,
    "zero-grad": ZeroGrad,
}

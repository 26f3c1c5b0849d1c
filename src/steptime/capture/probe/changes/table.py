"""Appliers by the kind of their change: the one table."""

from __future__ import annotations

from steptime.capture.probe.changes.applier import Applier
from steptime.capture.probe.changes.autocast import Autocast
from steptime.capture.probe.changes.channels_last import ChannelsLast
from steptime.capture.probe.changes.compiling import Compile
from steptime.capture.probe.changes.loader import LoaderSettings
from steptime.capture.probe.changes.matmul_precision import MatmulPrecision
from steptime.capture.probe.changes.optimizer import OptimizerVariant
from steptime.capture.probe.changes.threads import Threads

APPLIERS: dict[str, type[Applier]] = {
    "autocast": Autocast,
    "channels-last": ChannelsLast,
    "compile": Compile,
    "loader": LoaderSettings,
    "matmul-precision": MatmulPrecision,
    "optimizer": OptimizerVariant,
    "threads": Threads,
}

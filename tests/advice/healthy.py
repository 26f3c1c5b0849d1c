"""A healthy case of a training step of 20 ms on a CPU, and the pieces that the cases of the rules are made of."""

from __future__ import annotations

from dataclasses import replace

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import Case, LineUse, OptimizerUse, SiteUse
from steptime.advice.run_uses import CategoryUse, Contention, GarbageUse, LoaderUse, SettingsUse, StepSummary
from steptime.analysis.lines import LineRoleName
from steptime.analysis.operators import OperatorUse
from steptime.quantities import Estimate, SourceLine

MS = 1e6
US = 1e3
STEP = 20 * MS


def about(value: float, spread: float = 0.03, samples: int = 60) -> Estimate:
    """A measured value with a symmetric interval."""
    return Estimate(value, value * (1 - spread), value * (1 + spread), samples)


def step(duration: float = STEP, device: str = "cpu", steady: int = 60) -> StepSummary:
    """A step summary."""
    return StepSummary(about(duration), steady + 15, steady, 5, "optimizer", device)


def categories(duration: float = STEP, **parts: float) -> tuple[CategoryUse, ...]:
    """Categories of a step in ns; what is not named is compute. Only the waste of compute is recoverable."""
    rest = duration - sum(parts.values())
    uses = [CategoryUse("compute", about(rest), about(0.2 * rest))]
    return (*uses, *(CategoryUse(name, about(value), about(value)) for name, value in parts.items()))


def phases(**parts: float) -> tuple[CategoryUse, ...]:
    """Phases of a step in ns."""
    return tuple(CategoryUse(name, about(value), about(value)) for name, value in parts.items())


def line(
    text: str, duration: float, host: float | None = None, role: LineRoleName = "python", calls: str = "", **more: float
) -> LineUse:
    """A line of the loop; number 40 to 99 by its text, so that different lines differ. calls: functions, with spaces
    between them."""
    number = 40 + sum(map(ord, text)) % 60
    source = SourceLine("train.py", number, "main", text)
    own = duration if host is None else host
    made = LineUse(source, role, about(duration), about(own), more.pop("hits", 1.0), calls=tuple(calls.split()))
    return replace(made, **more)  # type: ignore[arg-type]


def loader(wait: float, item: float, workers: int = 0, **more: object) -> LoaderUse:
    """A training loader; times in ns."""
    settings: dict[str, object] = {
        "dataset": "Images",
        "batch_size": 32,
        "usable_cpus": 8,
        "collate": about(300 * US),
        "collate_name": "torch.utils.data._utils.collate.default_collate",
        "site": SourceLine("train.py", 12, "main", "loader = DataLoader(images, batch_size=32)"),
        "item_site": SourceLine("data.py", 7, "__getitem__", "def __getitem__(self, index):"),
    }
    settings.update(more)
    return LoaderUse(workers=workers, wait=about(wait), item=about(item), **settings)  # type: ignore[arg-type]


def operator(
    name: str, calls: float, duration: float, bound: str, phase: str = "forward", **more: object
) -> OperatorUse:
    """A leaf operator; duration in ns per step."""
    return OperatorUse(f"aten::{name}", calls, duration, bound, phase, **more)  # type: ignore[arg-type]


def optimizer(duration: float, parameters: int = 12, elements: int = 200_000, **more: object) -> OptimizerUse:
    """An optimizer; duration in ns per step."""
    site = SourceLine("train.py", 20, "main", "optimizer = torch.optim.AdamW(model.parameters())")
    kind = str(more.pop("type", "AdamW"))
    return OptimizerUse(kind, about(duration), parameters, elements, site=site, **more)  # type: ignore[arg-type]


def contention(other: float = 0.05, job: float = 1.1, cpus: int = 8, **more: float) -> Contention:
    """Telemetry of a quiet machine unless told otherwise."""
    return Contention(other, job, cpus, more.pop("pressure", 1.0), more.pop("spread", 0.05), more.pop("drift", 0.0))


SETTINGS = SettingsUse(intra_op_threads=1, usable_cpus=8, logical_cpus=8)
MACHINE = MachineUse("cpu", True, 100e9, 12e9, 5 * US)
SITE = SiteUse("item", "cuda", 1.0, SourceLine("train.py", 55, "main", "total += loss.item()"))

HEALTHY = Case(
    step=step(),
    categories=categories(input=0.1 * MS, overhead=1.5 * MS, python=0.2 * MS),
    phases=phases(input=0.1 * MS, forward=8 * MS, backward=11 * MS, optimizer=0.7 * MS, rest=0.2 * MS),
    loader=loader(0.1 * MS, 100 * US, workers=2, persistent_workers=True, prefetch_factor=2),
    lines=(
        line("output = model(images)", 8 * MS, 0.05 * MS, role="forward"),
        line("loss.backward()", 11 * MS, 0.02 * MS, role="backward"),
        line("optimizer.step()", 0.7 * MS, 0.02 * MS, role="optimizer"),
        line("if number % 100 == 0:", 0.001 * MS),
    ),
    operators=(
        operator("addmm", 12, 12 * MS, "compute", flops=1.2e9, bytes=30e6),
        operator("relu", 11, 0.8 * MS, "memory", bytes=8e6),
        operator("_fused_adamw_", 1, 0.6 * MS, "memory", "optimizer", bytes=6e6),
    ),
    settings=SETTINGS,
    optimizers=(optimizer(0.7 * MS, fused=True),),
    garbage=GarbageUse(about(5 * US), 0.01),
    contention=contention(),
    machine=MACHINE,
)
"""Nothing is wrong here: two workers hide a cheap reading, the model computes."""

"""The planted case of each rule: `PLANTED[rule][name]`, names beginning with "fires" or "clean".

The clean ones hold the traps.
"""

from __future__ import annotations

from dataclasses import replace

from advice.healthy import (
    HEALTHY,
    MACHINE,
    MS,
    SETTINGS,
    SITE,
    US,
    about,
    categories,
    contention,
    line,
    loader,
    operator,
    optimizer,
    phases,
    step,
)
from advice.planted_traces import PLANTED_TRACES

from steptime.advice.device_uses import GapUse, GpuUse, MachineUse, RooflineUse
from steptime.advice.evidence import (
    Case,
    CompilationUse,
    LineUse,
    PathUse,
    RecomputeUse,
    RepeatedForward,
    RunUse,
    SiteUse,
    TopModuleUse,
)
from steptime.advice.run_uses import (
    CategoryUse,
    CaughtUse,
    GarbageUse,
    HolderUse,
    LengthUse,
    MemoryUse,
    NormUse,
    OutlierUse,
    PassUse,
    PeriodUse,
    RepeatUse,
    SegmentLine,
    SegmentUse,
    SettingsUse,
    ShapedUse,
    SmallBatches,
    SpreadUse,
    WorkUse,
)
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.step_patterns import LastingChange
from steptime.analysis.unused import PickedUse, UnreadUse, UnusedPass
from steptime.analysis.user_code import CallUse, FunctionUse
from steptime.quantities import Estimate, SourceLine
from steptime.recording.recording import PassFacts, PickedFacts, UnreadFacts
from steptime.recording.rule_facts import CalledFacts, FunctionText, PaddingFacts, TracerFacts

_DROPOUT = SourceLine("model.py", 57, "forward")
BASE = replace(HEALTHY, contention=contention(job=0.9))
HOT = GpuUse("GPU 3 (GPU-385e383e)", 30, 0.9, 0.0, 1200.0, 0.0, 1980.0, 290.0, 300.0, 16, 16, 4, 4)
"""A GPU that is too hot, on a whole link."""
PARSING = SourceLine("job.py", 15, "parse", "json.loads(row)")
ITEM = SourceLine("/home/ada/train.py", 13, "Images.__getitem__", "image = decode(path)")


def _parametrized(calls: float, of_model: float = 1.0) -> tuple[ModuleUse, ...]:
    weight = "Net.cell.rec.parametrizations.weight"
    return (
        ModuleUse("Net", "Net", 0, of_model, 10 * MS, 9 * MS, 0.9),
        ModuleUse(weight, "ParametrizationList", 4, calls, 7 * MS, 5 * MS, 0.6),
    )


AGAIN = RepeatUse(ITEM, about(8 * MS), 1.0, 1.0, 1, 4)
DOUBLE = WorkUse(ITEM, "double", "", about(6 * MS), 32.0, "input")
NEAREST = SourceLine("/job/train.py", 21, "Net.nearest", "return x.argsort()[:, :5]")
SORTS = replace(operator("argsort", 1, 5 * MS, "memory"), source=SourceLine("train.py", 20, "nearest"))
SORTED_FOR_FEW = replace(
    BASE,
    texts=(FunctionText("/job/train.py", "Net.nearest", 20, f"def nearest(x):\n    {NEAREST.text}\n"),),
    called=(CalledFacts("/job/train.py", 21, ("torch.Tensor.argsort",)),),
    paths=(PathUse(5 * MS, "forward", (NEAREST,)),),
    runs=(RunUse(NEAREST, "aten::argsort", 1.0, 5 * MS, 1.0, "[[256, 256], [], []]"),),
)
"""A part of a sort is a slow way of its own: the first five of 256 in each row."""
PAIRS = SpreadUse("distance", (128, 100, 64), 1.0, 5 * MS, ITEM)
UNIQUE_ROWS = ShapedUse(
    "unique_dim", ((12_000, 4),), ("long int",), ("", "0", "True", "True", "True"), 1.0, 8 * MS, source=ITEM
)
BILINEAR = ShapedUse(
    "bilinear", ((320, 64), (320, 64), (36, 64, 64), (36,)), ("float",) * 4, ("",) * 4, 1.0, 8 * MS, source=ITEM
)
LOOKUPS = ShapedUse(
    "embedding", ((600, 48), (600, 7)), ("float", "long int"), ("", "", "-1", "False", "True"), 6.0, 6 * MS
)
SPARSE_ADAM = optimizer(3 * MS, 1, 28_800, type="SparseAdam")


def _blur(size: int, channels: int = 3, side: int = 96) -> ShapedUse:
    """Pictures that a fixed window of so many numbers a side goes over."""
    shapes = ((4, channels, side, side), (channels, 1, size, size))
    settings = ("", "", "", "[1, 1]", "[0, 0]", "[1, 1]", str(channels))
    return ShapedUse("conv2d", shapes, ("float", "float"), settings, 5.0, 8 * MS, source=ITEM)


BLUR = _blur(21)
ENCODER = ModuleUse("Net.encoder", "Encoder", 1, 3.0, 6 * MS, 8 * MS, 0.7, None, 4096, 16384)
PASSES_APART = replace(
    BASE,
    operators=(operator("addmm", 600, 6 * MS, "latency"), operator("relu", 600, 4 * MS, "latency")),
    modules=(ENCODER,),
    texts=(
        FunctionText(
            "/job/train.py", "Net.forward", 30,
            "def forward(self, a, b, c):\n    a = self.encoder(a)\n    b = self.encoder(b)\n    c = self.encoder(c)\n",
        ),
    ),
    called=tuple(
        CalledFacts("/job/train.py", number, ("torch.nn.modules.module.Module._wrapped_call_impl",))
        for number in (31, 32, 33)
    ),
)  # fmt: skip
ONE_HOT = WorkUse(ITEM, "one-hot", "512 × 3000", about(2 * MS), 2.0)
LOOKUP = OperatorUse("aten::mm", 2.0, 4 * MS, "compute", "forward", source=ITEM)
LOOKED_UP = OperatorUse("aten::mm", 2.0, 6 * MS, "compute", "backward", source=ITEM)
GONE_THROUGH = WorkUse(ITEM, "container", "the list self.table (22,000 entries)", about(8 * MS), 32.0)
DISPATCHING = MachineUse("a machine", True, 1e11, 1e10, 1_000.0)
CHECKED = SiteUse("__bool__", "cpu", 120.0, ITEM, 240, ("torch.distributions.normal.Normal.__init__",))
IN_EACH_STEP = replace(
    loader(15 * MS, 20 * US), starts=30, steps_per_start=1.0, batches=4_688, length=600_000, iterated_at=ITEM
)
FEW_OF_EACH = replace(IN_EACH_STEP, steps_per_start=4.0)
GROUPED = replace(optimizer(8 * MS), fused=True, groups=324, distinct_groups=10)
SORTING = (*HEALTHY.operators, operator("sort", 10, 4 * MS, "memory"))
MAKING = line("optimizer = torch.optim.AdamW(model.parameters())", 3 * MS, 3 * MS)
_LAST = line("error.backward()", 6 * MS, 0.2 * MS, role="backward")
_PARSED = line("marks = torch.tensor([parse(each) for each in dates])", 8 * MS, role="input", calls="torch.tensor")
_SINGLE = RooflineUse(10 * MS, 6 * MS, 1 * MS, 0.0, 1.2e9, 60e6, "float32")
_DOUBLE = RooflineUse(10 * MS, 6 * MS, 1 * MS, 0.0, 1.2e9, 60e6, "float64")
_UNDETACHED = PassFacts(
    count=4,
    site=SourceLine("train.py", 40, "<module>", "errors.backward()"),
    visited=((0, 33),),
    nothing=((19, 33),),
    partly=((9, 9),),
    elements=90_000,
    shapes=((64, 64),),
    path="Painter",
    made=SourceLine("train.py", 37, "<module>", "images = painter(noise)"),
    passed=SourceLine("train.py", 39, "<module>", "errors = loss(critic(images), zeros)"),
)
_HEAD = PickedFacts(
    ((1, 4), (6, 10)), 0.15, "Net.head", SourceLine("model.py", 31, "forward", "logits = self.head(hidden)")
)
_WEIGHTS = UnreadFacts(
    "Net.attend",
    "MultiheadAttention",
    SourceLine("model.py", 14, "forward", "seen, _ = self.attend(x, x, x)"),
    (1,),
    4.0,
)
_READS = SourceLine("/home/me/train.py", 1, "main")


def _read(text: str, *operators: OperatorUse) -> Case:
    """A line of the forward pass that indexes a tensor by another."""
    return replace(BASE, lines=(line(text, 4 * MS, 0.0, role="forward"),), operators=(*HEALTHY.operators, *operators))


_EXPERT = SourceLine("/home/me/train.py", 1, "main")


def _experts(text: str) -> Case:
    """64 modules of one class that a line calls one by one."""
    return replace(
        BASE,
        phases=phases(forward=8 * MS, backward=9 * MS, optimizer=2 * MS, rest=1 * MS),
        categories=categories(overhead=0.5 * MS),
        lines=(line(text, 7 * MS, 0.0, role="forward", hits=64.0), line("x = self.norm(x)", 1 * MS, 0.0, "forward")),
        operators=(
            operator("addmm", 128, 1 * MS, "latency", flops=4e6, bytes=1.2e6, source=_EXPERT),
            operator("mm", 256, 2 * MS, "latency", "backward", flops=8e6, bytes=2.4e6, source=_EXPERT),
            operator("native_layer_norm_backward", 1, 0.2 * MS, "memory", "backward"),
        ),
        modules=tuple(ModuleUse(f"Net.experts.{i}", "Expert", 2, 1.0, 0.1 * MS, 0.1 * MS, 0.01) for i in range(64)),
        optimizers=(optimizer(2 * MS, 256, fused=True),),
    )


def _without_sources(case: Case) -> Case:
    """A case whose operators no profile with stacks has seen."""
    return replace(case, operators=tuple(replace(each, source=None) for each in case.operators))


_BY_HAND = replace(
    BASE,
    step=replace(step(), mode="backward"),
    phases=phases(input=0.1 * MS, forward=6 * MS, backward=9 * MS, rest=4.9 * MS),
    lines=(*BASE.lines, line("weight -= rate * weight.grad", 4.5 * MS, 0.1 * MS, hits=40.0)),
    operators=(
        *BASE.operators[:2],
        operator("mul", 40, 2 * MS, "memory", "optimizer", bytes=16e6),
        operator("sub_", 40, 2 * MS, "memory", "optimizer", bytes=24e6),
    ),
    optimizers=(),
    top_modules=(TopModuleUse("Net", 40, 8_000_000),),
)


def _waiting(wait: float, rest: float, **changes: object) -> Case:
    """A CPU-bound job with a step of wait + rest ns."""
    total = wait + rest
    case = replace(
        BASE, step=step(total), categories=categories(total, input=wait, overhead=0.05 * rest), contention=None
    )
    return replace(case, **changes)  # type: ignore[arg-type]


def _lines(*lines: LineUse, base: Case = BASE) -> Case:
    """More lines, and the phases that they make up."""
    spent = {role: sum(each.duration.value for each in lines if each.role == role) for role in ("input", "python")}
    grown = {"input": spent["input"], "rest": spent["python"]}
    uses = (
        CategoryUse(use.name, about(use.duration.value + grown.get(use.name, 0.0)), about(use.recoverable.value))
        for use in base.phases
    )
    return replace(base, lines=(*base.lines, *lines), phases=tuple(uses))


_CUDA = replace(
    BASE,
    step=step(device="cuda"),
    phases=phases(input=0.1 * MS, transfer=4 * MS, forward=6 * MS, backward=9 * MS, optimizer=1 * MS),
    categories=categories(copy=3.5 * MS, sync=4 * MS),
    operators=(),
    loader=loader(0.1 * MS, 100 * US, workers=2, persistent_workers=True),
)
_TRANSFER = line("images = images.to(device)", 4 * MS, 0.01 * MS, role="transfer")
_LISTS = line("extra = torch.tensor(table)", 7 * MS, calls="torch.tensor")
_LOOPING = SourceLine("train.py", 1, "main")
_CELL = SourceLine("model.py", 31, "forward")
_COMPILED = CompilationUse(SourceLine("model.py", 10, "forward"), 2_000_000_000, True, "size mismatch at index 0")
_HELD = SettingsUse(1, 8, 8, omp_num_threads="1")
_LEFT_ON = SettingsUse(1, 8, 8)
TRACED_MEMORY = TracerFacts("memory", "tracemalloc", SourceLine("train.py", 9, "", "tracemalloc.start(25)"))
IN_PYTHON = replace(BASE, categories=categories(python=8 * MS, overhead=3 * MS))
_INDEXING = PathUse(0.1 * MS, "input", (SourceLine("data.py", 7, "Images.__getitems__"),))
_ALONE = SettingsUse(1, 1, 8)

_ROUND, _PIXEL, _CALLER, RESAMPLED = (
    SourceLine("/home/ada/train.py", at, function, text)
    for at, function, text in (
        (24, "draw", "for x in range(left, right):"),
        (25, "draw", "heat[y, x] = max(heat[y, x], math.exp(-far))"),
        (50, "Poses.__getitem__", "draw(heat, *joint)"),
        (52, "Poses.__getitem__", "image = F.interpolate(image, SIZE)[None, crop]"),
    )
)
RESAMPLING = ("aten::upsample_bilinear2d", 0.9, 11 * MS, 32.0)
PIXELS = _waiting(
    15 * MS,
    5 * MS,
    loader=loader(15 * MS, 0.4 * MS),
    paths=(
        PathUse(2 * MS, "input", (_ROUND, _CALLER), 16_800.0),
        PathUse(10 * MS, "input", (_PIXEL, _CALLER), 16_123.0),
        PathUse(1 * MS, "input", (ITEM,), 32.0),
    ),
)
"""Items that draw their targets pixel by pixel."""

PLANTED: dict[str, dict[str, Case]] = {
    "input-wait": {
        "fires": _waiting(30 * MS, 10 * MS, loader=loader(30 * MS, 0.93 * MS, usable_cpus=1), settings=_ALONE),
        "fires-while-garbage-is-collected": _waiting(
            30 * MS,
            10 * MS,
            loader=loader(30 * MS, 0.7 * MS, usable_cpus=1, collector=7.3 * MS),
            settings=_ALONE,
        ),
        "fires-mostly-for-the-collector": _waiting(
            30 * MS,
            10 * MS,
            loader=loader(30 * MS, 0.2 * MS, usable_cpus=1, collector=23.3 * MS),
            settings=_ALONE,
        ),
        "fires-items-not-timed": _waiting(
            30 * MS, 10 * MS, loader=replace(loader(30 * MS, 1.0), item=None, collate=None, workers=4)
        ),
        "fires-workers-keep-up-yet-it-waits": _waiting(
            12 * MS, 10 * MS, loader=loader(12 * MS, 0.3 * MS, workers=8, usable_cpus=8, persistent_workers=True)
        ),
        "clean": BASE,
        "clean-a-batch-is-one-read-already": _waiting(
            0.9 * MS, 9 * MS, loader=loader(0.9 * MS, 10 * US, batched_fetch=True), paths=(_INDEXING,)
        ),
        "fires-on-own-code-beside-the-one-read": _waiting(
            0.9 * MS,
            9 * MS,
            loader=loader(0.9 * MS, 10 * US, batched_fetch=True),
            paths=(_INDEXING, PathUse(0.8 * MS, "input", (SourceLine("data.py", 9, "Order.__iter__"),))),
        ),
        "clean-wait-within-noise": _waiting(
            1 * MS, 19 * MS, loader=replace(loader(1 * MS, 20 * US, workers=1), wait=about(1 * MS, 1.2))
        ),
    },
    "too-few-workers": {
        "fires": _waiting(30 * MS, 10 * MS, loader=loader(30 * MS, 0.93 * MS)),
        "fires-one-is-not-enough": _waiting(
            20 * MS, 10 * MS, loader=loader(20 * MS, 0.93 * MS, workers=1, persistent_workers=True)
        ),
        "fires-sleeping-items-on-two-cpus": _waiting(
            30 * MS,
            10 * MS,
            loader=loader(30 * MS, 0.93 * MS, usable_cpus=2),
            contention=contention(job=0.3, cpus=2),
            settings=SettingsUse(2, 2, 2),
        ),
        "fires-items-that-wait-on-two-cpus": _waiting(
            163 * MS,
            7 * MS,
            loader=loader(163 * MS, 20 * MS, batch_size=8, usable_cpus=2, busy=0.02, batches=100),
            contention=contention(job=0.07, cpus=2),
            settings=SettingsUse(1, 2, 2),
        ),
        "fires-iterable": _waiting(30 * MS, 10 * MS, loader=loader(30 * MS, 0.93 * MS, iterable=True)),
        "clean": BASE,
        "clean-in-memory-tensors": _waiting(
            8 * MS, 10 * MS, loader=loader(8 * MS, 0.2 * MS, in_memory_tensors=True, dataset="TensorDataset")
        ),
        "clean-no-cpu-left": _waiting(
            30 * MS, 10 * MS, loader=loader(30 * MS, 0.93 * MS, usable_cpus=1), settings=_ALONE
        ),
        "clean-cheap-items": _waiting(0.9 * MS, 1 * MS, loader=loader(0.9 * MS, 18 * US)),
        "clean-all-cpus-busy": _waiting(
            20 * MS,
            20 * MS,
            loader=loader(20 * MS, 0.62 * MS, workers=1, usable_cpus=2),
            contention=contention(job=2.0, cpus=2),
        ),
    },
    "too-many-workers": {
        "fires": _waiting(
            4 * MS, 2 * MS, loader=loader(4 * MS, 5 * US, workers=2, persistent_workers=True), settings=SETTINGS
        ),
        "fires-more-than-cpus": _waiting(
            6 * MS,
            30 * MS,
            loader=loader(6 * MS, 0.7 * MS, workers=16, usable_cpus=4, persistent_workers=True),
        ),
        "fires-where-collating-was-timed-among-too-many": _waiting(
            1 * MS,
            2 * MS,
            loader=loader(
                1 * MS, 1 * US, workers=8, usable_cpus=2, batch_size=64, collate=about(0.7 * MS), in_memory_tensors=True
            ),
        ),
        "clean": BASE,
        "clean-items-that-wait": _waiting(
            4 * MS,
            7 * MS,
            loader=loader(4 * MS, 20 * MS, workers=22, batch_size=8, usable_cpus=2, busy=0.02, persistent_workers=True),
        ),
        "clean-workers-needed": _waiting(
            2 * MS, 10 * MS, loader=loader(2 * MS, 0.93 * MS, workers=3, persistent_workers=True)
        ),
        "clean-a-second-worker-brings-more": _waiting(
            2.32 * MS,
            0.55 * MS,
            loader=loader(2.32 * MS, 192 * US, workers=1, batch_size=8, collate=about(381 * US), usable_cpus=2),
            settings=SettingsUse(1, 2, 2),
            contention=contention(other=1.2, job=0.8, cpus=2),
        ),
        "clean-no-workers": _waiting(4 * MS, 10 * MS, loader=loader(4 * MS, 0.12 * MS)),
    },
    "workers-restarted": {
        "fires": replace(
            BASE,
            loader=loader(0.2 * MS, 0.5 * MS, workers=2, start=about(120 * MS), starts=5, steps_per_start=20.0),
        ),
        "clean": replace(
            BASE,
            loader=loader(0.2 * MS, 0.5 * MS, workers=2, start=about(120 * MS), starts=1, steps_per_start=4000.0),
        ),
        "fires-where-each-epoch-makes-a-loader": replace(
            BASE,
            loader=loader(
                0.2 * MS,
                0.5 * MS,
                workers=2,
                start=about(120 * MS),
                starts=5,
                steps_per_start=20.0,
                persistent_workers=True,
                made_anew=True,
            ),
        ),
        "clean-persistent": replace(
            BASE,
            loader=loader(
                0.2 * MS,
                0.5 * MS,
                workers=2,
                start=about(120 * MS),
                starts=5,
                steps_per_start=20.0,
                persistent_workers=True,
            ),
        ),
    },
    "per-sample-fetch": {
        "fires": _waiting(
            2 * MS,
            4 * MS,
            loader=loader(2 * MS, 6 * US, batch_size=256, in_memory_tensors=True, dataset="TensorDataset"),
        ),
        "fires-with-workers": _waiting(
            5 * MS,
            2 * MS,
            loader=loader(
                5 * MS,
                3 * US,
                workers=2,
                batch_size=64,
                in_memory_tensors=True,
                dataset="TensorDataset",
                collate=about(80 * US),
            ),
        ),
        "clean": BASE,
        "clean-batched": _waiting(
            2 * MS,
            4 * MS,
            loader=loader(2 * MS, 6 * US, batch_size=256, in_memory_tensors=True, batched_fetch=True),
        ),
        "clean-large-samples-are-all-copying": _waiting(
            2 * MS, 4 * MS, loader=loader(2 * MS, 2 * US, in_memory_tensors=True, collate=about(1.9 * MS))
        ),
    },
    "slow-collate": {
        "fires": _waiting(
            10 * MS, 10 * MS, loader=loader(10 * MS, 30 * US, collate=about(9 * MS), collate_name="__main__.pad_batch")
        ),
        "fires-default": _waiting(10 * MS, 10 * MS, loader=loader(10 * MS, 30 * US, collate=about(9 * MS))),
        "clean": _waiting(10 * MS, 10 * MS, loader=loader(10 * MS, 280 * US, collate=about(1 * MS))),
        "clean-hidden-by-workers": replace(
            BASE, loader=loader(0.1 * MS, 30 * US, workers=2, collate=about(9 * MS), collate_name="__main__.pad_batch")
        ),
    },
    "avoidable-item-work": {
        "fires": PIXELS,
        "fires-in-a-worker": replace(
            PIXELS, loader=loader(15 * MS, 0.4 * MS, workers=1, persistent_workers=True, collate=about(0.5 * MS))
        ),
        "fires-in-a-collate-function": replace(
            PIXELS,
            loader=loader(15 * MS, 30 * US, collate=about(14 * MS), collate_name="__main__.pad_batch"),
            paths=tuple(replace(path, lines=path.lines[:1]) for path in PIXELS.paths),
        ),
        "fires-on-a-small-function": replace(PIXELS, paths=(PIXELS.paths[1],)),
        "fires-on-a-call": replace(
            PIXELS, paths=(PathUse(12 * MS, "input", (RESAMPLED,)),), runs=(RunUse(RESAMPLED, *RESAMPLING),)
        ),
        "fires-on-one-of-two-calls": replace(
            PIXELS,
            paths=(PathUse(12 * MS, "input", (RESAMPLED,)),),
            runs=(
                RunUse(RESAMPLED, "aten::to", 0.5, 6 * MS, 32.0),
                RunUse(RESAMPLED, RESAMPLING[0], 0.45, 5 * MS, 32.0),
            ),
        ),
        "clean-each-round-takes-long": replace(
            PIXELS, paths=tuple(replace(path, ran=path.ran / 100) for path in PIXELS.paths)
        ),
        "clean-a-round-for-each-item": replace(PIXELS, loader=loader(15 * MS, 1 * US, batch_size=10_000)),
        "clean-kept-since": replace(PIXELS, loader=loader(15 * MS, 0.4 * MS, early=60 * MS)),
        "clean-a-part-of-an-item": replace(PIXELS, paths=(PIXELS.paths[0], PathUse(14 * MS, "input", (ITEM,)))),
        "clean-a-part-of-the-step": replace(
            _waiting(1.5 * MS, 18.5 * MS, loader=loader(1.5 * MS, 40 * US)), paths=PIXELS.paths
        ),
        "clean-decoding": replace(
            PIXELS,
            paths=(PathUse(14 * MS, "input", (ITEM,), 32.0),),
            runs=(RunUse(ITEM, "PIL.ImageFile.ImageFile.decode", 0.9, 12 * MS, 32.0),),
        ),
        "clean-in-a-sampler": replace(PIXELS, loader=loader(15 * MS, 1 * US, collate=about(2 * US))),
    },
    "large-part": {
        "fires": replace(BASE, optimizers=(GROUPED,), operators=SORTING),
        "fires-on-a-line": replace(
            BASE,
            step=replace(BASE.step, device="cuda"),
            lines=(line("torch.save(state, path)", 4 * MS, 0.1 * MS),),
            phases=phases(forward=7 * MS, backward=7 * MS, optimizer=MS, rest=5 * MS),
        ),
        "fires-on-a-rest": replace(
            BASE,
            categories=categories(overhead=1.5 * MS, python=3 * MS),
            lines=(line("rows = parse(text)", 0.3 * MS, 0.3 * MS),),
        ),
        "clean-named-by-another-note": replace(BASE, operators=SORTING),
        "clean-named-by-a-finding": replace(BASE, lines=(line("rows = parse(text)", 6 * MS, 6 * MS),)),
    },
    "computed-again": {
        "fires": replace(BASE, repeats=(AGAIN,)),
        "fires-in-items": _waiting(
            15 * MS,
            5 * MS,
            loader=loader(15 * MS, 0.4 * MS),
            repeats=(replace(AGAIN, part="input", evaluations=8.0, again=8.0, results=2),),
        ),
        "fires-on-weights": replace(
            BASE, repeats=(replace(AGAIN, evaluations=3.0, again=2.0, results=4, trained=True),)
        ),
        "clean-seldom": replace(BASE, repeats=(replace(AGAIN, duration=about(0.5 * MS)),)),
        "clean-on-a-device": replace(BASE, step=replace(BASE.step, device="cuda"), repeats=(AGAIN,)),
    },
    "goes-through-all": {
        "fires": replace(BASE, works=(GONE_THROUGH,)),
        "fires-in-items": _waiting(
            15 * MS,
            5 * MS,
            loader=loader(15 * MS, 0.4 * MS),
            works=(
                replace(GONE_THROUGH, part="input", kind="folder", what="pathlib.Path.glob"),
                replace(
                    GONE_THROUGH, part="input", kind="folder", what="pathlib.Path.glob", source=replace(ITEM, line=14)
                ),
            ),
        ),
        "fires-on-a-device-in-items": _waiting(
            15 * MS,
            5 * MS,
            step=replace(step(20 * MS), device="cuda"),
            works=(replace(GONE_THROUGH, part="input", kind="copy", what="copy.deepcopy", evaluations=1.0),),
        ),
        "fires-for-rows-of-other-workers": _waiting(
            15 * MS,
            5 * MS,
            works=(replace(GONE_THROUGH, part="input", kind="rows", what="one of 4 is taken"),),
        ),
        "clean-seldom": replace(BASE, works=(replace(GONE_THROUGH, duration=about(0.5 * MS)),)),
        "clean-on-a-device": replace(BASE, step=replace(BASE.step, device="cuda"), works=(GONE_THROUGH,)),
    },
    "double-precision-items": {
        "fires": _waiting(15 * MS, 5 * MS, works=(DOUBLE, replace(DOUBLE, source=replace(ITEM, line=14)))),
        "clean-seldom": replace(BASE, works=(replace(DOUBLE, duration=about(0.5 * MS)),)),
        "clean-on-a-device": replace(BASE, step=replace(BASE.step, device="cuda"), works=(replace(DOUBLE, part=""),)),
    },
    "argument-checks": {
        "fires": replace(BASE, sites=(CHECKED,), machine=DISPATCHING),
        "clean-few": replace(BASE, sites=(replace(CHECKED, calls=2.0),), machine=DISPATCHING),
        "clean-of-others": replace(
            BASE,
            sites=(replace(CHECKED, functions=("torch.isnan",)),),
            machine=DISPATCHING,
        ),
    },
    "slow-way": {
        "fires": replace(
            BASE,
            operators=(
                *HEALTHY.operators,
                operator("index", 2, 2 * MS, "unmodelled"),
                operator("_index_put_impl_", 2, 4 * MS, "memory", "backward"),
            ),
        ),
        "fires-on-a-convolution": replace(
            BASE, operators=(*HEALTHY.operators, operator("_slow_conv2d_forward", 8, 5 * MS, "compute"))
        ),
        "fires-on-rows-that-are-read": _read(
            "sent = h[source]", operator("index", 2, 4 * MS, "unmodelled", source=_READS)
        ),
        "clean-of-a-mask": _read(
            "kept = logits[valid]",
            operator("index", 2, 4 * MS, "unmodelled", source=_READS),
            operator("nonzero", 2, 0.1 * MS, "latency", source=_READS),
        ),
        "clean-of-two-indices": _read(
            "taken = table[row, column]", operator("index", 2, 4 * MS, "unmodelled", source=_READS)
        ),
        "clean-of-an-assignment": replace(
            BASE, operators=(*HEALTHY.operators, operator("_index_put_impl_", 2, 4 * MS, "memory", "forward"))
        ),
        "clean-small": replace(
            BASE, operators=(*HEALTHY.operators, operator("_index_put_impl_", 2, 0.3 * MS, "memory", "backward"))
        ),
    },
    "frozen-forward": {
        "fires": replace(BASE, frozen=RepeatedForward(about(6 * MS), 1.0, ITEM)),
        "fires-without-a-line": replace(BASE, frozen=RepeatedForward(about(6 * MS), 2.0)),
        "clean-an-evaluation-now-and-then": replace(BASE, frozen=RepeatedForward(about(6 * MS), 0.1, ITEM, 0.1)),
        "clean-small": replace(BASE, frozen=RepeatedForward(about(1 * MS), 1.0, ITEM)),
    },
    "iterator-in-step": {
        "fires": _waiting(15 * MS, 5 * MS, loader=IN_EACH_STEP),
        "fires-with-workers": _waiting(15 * MS, 5 * MS, loader=replace(IN_EACH_STEP, workers=2)),
        "fires-every-few-steps": replace(
            _waiting(15 * MS, 5 * MS, loader=FEW_OF_EACH),
            period=PeriodUse(4, 20, 40 * MS, about(10 * MS), "input", ITEM),
        ),
        "clean-every-few-steps-at-no-cost": _waiting(15 * MS, 5 * MS, loader=FEW_OF_EACH),
        "clean-slow-steps-of-another-period": replace(
            _waiting(15 * MS, 5 * MS, loader=FEW_OF_EACH),
            period=PeriodUse(10, 8, 40 * MS, about(4 * MS), "input", ITEM),
        ),
        "clean-each-epoch": _waiting(15 * MS, 5 * MS, loader=replace(IN_EACH_STEP, steps_per_start=80.0)),
        "clean-a-pass-in-each-step": _waiting(15 * MS, 5 * MS, loader=replace(IN_EACH_STEP, batches=4, demand=4.0)),
    },
    "optimizer-in-step": {
        "fires": replace(
            BASE,
            optimizers=(replace(optimizer(0.2 * MS), site=MAKING.source, made=32),),
            lines=(MAKING,),
            phases=phases(forward=7 * MS, backward=7 * MS, optimizer=MS, rest=5 * MS),
        ),
        "fires-where-the-line-was-not-timed": replace(BASE, optimizers=(optimizer(0.2 * MS, made=32),), lines=()),
        "clean-made-anew-twice": replace(BASE, optimizers=(optimizer(0.2 * MS, made=2),)),
    },
    "many-groups": {
        "fires": replace(BASE, optimizers=(GROUPED,)),
        "clean-all-different": replace(BASE, optimizers=(replace(GROUPED, distinct_groups=300),)),
        "clean-two-groups": replace(BASE, optimizers=(replace(GROUPED, groups=4, distinct_groups=2),)),
    },
    "slow-sampler": {
        "fires": _waiting(5 * MS, 2 * MS, loader=loader(5 * MS, 30 * US, collate=about(0.5 * MS))),
        "clean": _waiting(10 * MS, 10 * MS, loader=loader(10 * MS, 280 * US, collate=about(1 * MS))),
        "clean-a-stream-has-none": _waiting(
            5 * MS, 2 * MS, loader=loader(5 * MS, 30 * US, collate=about(0.5 * MS), iterable=True)
        ),
        "clean-workers-wait-for-other-things": _waiting(5 * MS, 2 * MS, loader=loader(5 * MS, 30 * US, workers=2)),
    },
    "padding": {
        "fires": replace(BASE, padding=PaddingFacts(0.56, 2), loader=loader(0.1 * MS, 30 * US)),
        "fires-without-a-loader": replace(BASE, padding=PaddingFacts(0.3, 1), loader=None),
        "fires-at-the-line-that-fills": replace(BASE, padding=PaddingFacts(0.6, 2, site=ITEM, beyond=0.4)),
        "clean": BASE,
        "clean-sorted-by-length": replace(BASE, padding=PaddingFacts(0.12, 2)),
        "clean-where-batches-are-packed": replace(
            BASE,
            padding=PaddingFacts(0.56, 2),
            operators=(*BASE.operators, operator("_pack_padded_sequence", 1, 0.2 * MS, "unmodelled")),
        ),
        "clean-where-updates-are-the-step": replace(
            BASE, padding=PaddingFacts(0.5, 2), phases=phases(forward=0.3 * MS, backward=0.3 * MS, optimizer=19 * MS)
        ),
    },
    "slow-transfer": {
        "fires": _lines(_TRANSFER, base=_CUDA),
        "fires-pinned": replace(
            _lines(_TRANSFER, base=_CUDA), loader=loader(0.1 * MS, 100 * US, workers=2, pin_memory=True)
        ),
        "clean": replace(_CUDA, categories=categories(copy=0.1 * MS)),
        "clean-on-the-cpu": replace(BASE, phases=phases(transfer=4 * MS, forward=16 * MS)),
    },
    "batch-preparation": {
        "fires": replace(
            _lines(line("inputs, targets = next_batch(step)", 9 * MS, role="input")),
            loader=None,
            categories=categories(input=9 * MS, overhead=0.5 * MS),
        ),
        "clean": replace(_lines(line("inputs, targets = next_batch(step)", 0.1 * MS, role="input")), loader=None),
        "clean-loader-line": _waiting(
            9 * MS,
            11 * MS,
            loader=loader(9 * MS, 0.27 * MS),
            lines=(line("for images, labels in loader:", 9 * MS, 0.0, role="input"),),
        ),
    },
    "python-time": {
        "fires": replace(
            _lines(line("weights = schedule(step, history)", 6 * MS)),
            categories=categories(python=6.2 * MS, overhead=0.5 * MS),
        ),
        "fires-with-what-its-call-frees": replace(
            _lines(
                LineUse(PARSING, "python", about(4 * MS), about(4 * MS), 1.0),
                line("parse(rows)", 2 * MS, calls="job.parse"),
                line("show(rows)", 0.1 * MS, calls="job.show"),
            ),
            categories=categories(python=6.2 * MS, overhead=0.5 * MS),
        ),
        "fires-in-a-hook": replace(
            BASE,
            lines=(
                *BASE.lines,
                line("counts = Counter(words)", 6 * MS, 0.0, role="forward", calls="collections.Counter"),
            ),
            categories=categories(python=6.2 * MS, overhead=0.5 * MS),
        ),
        "fires-in-a-function-that-a-step-with-stacks-saw-outside-of-operators": replace(
            BASE,
            lines=(
                line("accelerator.backward(loss)", 11 * MS, 0.0, role="backward", calls="accelerate.backward"),
                LineUse(PARSING, "forward", about(6 * MS), about(0.0), 1.0),
            ),
            functions=(
                FunctionUse(SourceLine("job.py", 14, "parse"), "forward", 9 * MS, 0.0),
                FunctionUse(SourceLine("job.py", 30, "forward"), "forward", 0.3 * MS, 7 * MS),
                FunctionUse(SourceLine("job.py", 30, "forward"), "backward", 0.0, 10 * MS),
            ),
            categories=categories(python=6.2 * MS, overhead=0.5 * MS),
        ),
        "clean-a-stall-between-operators": replace(BASE, categories=categories(python=4 * MS, overhead=0.5 * MS)),
        "fires-without-lines": replace(BASE, lines=(), categories=categories(python=6.2 * MS, overhead=0.5 * MS)),
        "clean": BASE,
        "clean-time-is-in-operators": _lines(line("output = model(images)", 15 * MS, 0.1 * MS, role="forward")),
        "clean-an-optimizers-own-python": replace(
            _lines(
                line("optimizer.step()", 7 * MS, 6 * MS, role="optimizer", calls="torch.optim.optimizer.Optimizer.step")
            ),
            categories=categories(python=6.2 * MS, overhead=0.5 * MS),
        ),
        "clean-freeing-the-graph-at-backward": replace(
            _lines(line("loss.mean().backward()", 14 * MS, 6 * MS, role="backward", calls="torch.Tensor.mean")),
            categories=categories(python=6.2 * MS, overhead=0.5 * MS),
        ),
    },
    "outside-model": {
        "fires-on-a-line-of-operators": replace(
            _lines(line("self.archive(batch)", 6 * MS, 0.1 * MS)),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
        "fires-on-a-loss-in-the-loop": replace(
            _lines(replace(line("loss = likelihood(output, y)", 6 * MS, 0.1 * MS), trained=True)),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
        "fires-on-a-line-of-the-loops-own-python": replace(
            _lines(line("self.archive(batch)", 6 * MS, 5.9 * MS)),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
        "fires-on-a-forward-that-is-called-by-its-name": replace(
            BASE,
            lines=(
                *BASE.lines,
                LineUse(
                    SourceLine("net.py", 9, "Net.forward", "spread = x.std(0)"),
                    "python",
                    about(6 * MS),
                    about(0.0),
                    1.0,
                ),
            ),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
        "fires-on-a-chain-in-a-loss-function": replace(
            BASE,
            lines=(
                *BASE.lines,
                *(
                    LineUse(SourceLine("loss.py", 8 + number, "loss", text), "python", about(2 * MS), about(0.0), 1.0)
                    for number, text in enumerate(("field = field * 1.5", "field = field.abs()", "return field"))
                ),
            ),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
        "fires-on-a-second-forward": replace(
            BASE,
            repeated=RepeatedForward(about(3 * MS), 2.0, SourceLine("train.py", 65, "main", "check = model(x)")),
        ),
        "clean": BASE,
        "clean-matmuls-of-a-forward-that-is-called-by-its-name": replace(
            BASE,
            lines=(
                *BASE.lines,
                LineUse(
                    SourceLine("net.py", 9, "Net.forward", "return x.mm(self.weight)"),
                    "python",
                    about(6 * MS),
                    about(0.0),
                    1.0,
                ),
            ),
            operators=(
                *BASE.operators,
                operator("mm", 1, 5.8 * MS, "compute", "rest", source=SourceLine("net.py", 8, "forward"), flops=9e9),
            ),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
        "clean-a-loss-of-torch": replace(
            BASE,
            lines=(
                *BASE.lines,
                LineUse(
                    SourceLine("loss.py", 9, "loss", "return F.cross_entropy(x, y)"),
                    "python",
                    about(4 * MS),
                    about(0.0),
                    1.0,
                ),
            ),
            operators=(
                *BASE.operators,
                operator(
                    "_log_softmax", 1, 3.5 * MS, "memory", "rest", source=SourceLine("loss.py", 8, "loss"), bytes=9e6
                ),
            ),
            phases=phases(input=0.1 * MS, forward=7 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=4.2 * MS),
        ),
        "clean-a-loss-of-torch-in-the-loop": replace(
            _lines(line("loss = F.cross_entropy(x, y)", 4 * MS, 0.1 * MS, calls="torch.nn.functional.cross_entropy")),
            operators=(
                *BASE.operators,
                operator("_log_softmax", 1, 3.5 * MS, "memory", "rest", bytes=9e6),
                operator("nll_loss_forward", 1, 0.1 * MS, "memory", "rest", bytes=1e3),
            ),
            phases=phases(input=0.1 * MS, forward=7 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=4.2 * MS),
        ),
        "fires-on-what-a-line-does-beside-its-loss": replace(
            _lines(line("loss = F.mse_loss(warp(x), y)", 6 * MS, 0.1 * MS, calls="torch.nn.functional.mse_loss")),
            operators=(
                *BASE.operators,
                operator("grid_sampler_2d", 1, 5 * MS, "memory", "rest", bytes=9e6),
                operator("mse_loss", 1, 0.2 * MS, "memory", "rest", bytes=1e3),
            ),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
        "clean-on-a-device-that-only-waits": replace(
            _lines(line("self.archive(batch)", 6 * MS, 0.1 * MS)),
            step=step(device="cuda"),
            phases=phases(input=0.1 * MS, forward=5 * MS, backward=8 * MS, optimizer=0.7 * MS, rest=6.2 * MS),
        ),
    },
    "garbage-collection": {
        "fires": replace(
            _lines(line("gc.collect()", 5 * MS, garbage=1.0, calls="gc.collect")),
            garbage=GarbageUse(about(4.9 * MS), 1.0),
            categories=categories(python=5.2 * MS),
        ),
        "fires-in-a-line-by-chance": replace(
            _lines(line("loss = criterion(output, y)", 0.4 * MS, 0.1 * MS, garbage=0.2)),
            garbage=GarbageUse(about(4.9 * MS), 0.01),
            categories=categories(python=5.2 * MS),
        ),
        "fires-hidden": replace(
            BASE, garbage=GarbageUse(about(3 * MS), 0.2), categories=categories(python=3.2 * MS), lines=BASE.lines
        ),
        "clean": BASE,
    },
    "logging-in-step": {
        "fires": replace(
            _lines(
                line(
                    'log.write(json.dumps({"loss": loss.item()}) + "\\n")',
                    4 * MS,
                    calls="torch.Tensor.item json.dumps _io.TextIOWrapper.write",
                )
            ),
            categories=categories(python=4.2 * MS),
        ),
        "fires-in-lightning": replace(
            _lines(line('self.log("loss", loss)', 4 * MS, calls="lightning.pytorch.core.module.LightningModule.log")),
            categories=categories(python=4.2 * MS),
        ),
        "clean": _lines(line("print(step, loss.item())", 0.01 * MS, calls="torch.Tensor.item builtins.print")),
        "clean-not-logging": replace(
            _lines(line("catalog = login(update)  # was: print(update)", 4 * MS, calls="catalog.login")),
            categories=categories(python=4.2 * MS),
        ),
    },
    "checkpoint-in-step": {
        "fires": replace(
            _lines(line("save(model, path)", 14 * MS, checkpoint=13.8 * MS)),
            segments=(SegmentUse("checkpoint", 30, 420_000_000, 0.25),),
        ),
        "fires-on-saves-that-grow": replace(
            _lines(line("save(model, path)", 14 * MS, checkpoint=13.8 * MS)),
            segments=(SegmentUse("checkpoint", 30, 420_000_000, 0.25, growth=(4.04 * MS, 23.1 * MS)),),
        ),
        "fires-in-every-step-which-makes-no-segment": replace(
            _lines(line("torch.save(model.state_dict(), path)", 14 * MS, checkpoint=13.8 * MS)),
            categories=categories(python=14.5 * MS),
            segments=(),
        ),
        "clean": replace(
            _lines(line("torch.save(model.state_dict(), path)", 0.01 * MS)),
            step=replace(step(), total=5000),
            segments=(SegmentUse("checkpoint", 3, 420_000_000, 0.25),),
        ),
    },
    "metrics-in-step": {
        "fires": replace(
            _lines(line("correct += accuracy(output, labels)", 3 * MS, calls="train.accuracy")),
            categories=categories(python=3.2 * MS),
        ),
        "fires-item-loop": replace(
            _lines(
                line(
                    "hits += sum(int(p.item() == t.item()) for p, t in pairs)",
                    5 * MS,
                    2 * MS,
                    calls="builtins.sum torch.Tensor.item",
                )
            ),
            categories=categories(python=2.2 * MS, overhead=3 * MS),
        ),
        "clean": _lines(line("total += loss.item()", 0.01 * MS, calls="torch.Tensor.item")),
        "clean-an-action-that-is-drawn": replace(
            _lines(
                line(
                    "a = Categorical(p).sample().item()",
                    3 * MS,
                    calls="torch.distributions.categorical.Categorical.sample torch.Tensor.item",
                )
            ),
            categories=categories(python=3.2 * MS),
        ),
        "clean-a-name-that-sounds-like-one": replace(
            _lines(line("loss = loss + symmetric_kl(output, labels)", 3 * MS, calls="torch_geometric.symmetric_kl")),
            categories=categories(python=3.2 * MS),
        ),
        "clean-evaluation": _lines(
            line("correct += accuracy(output, labels)", 3 * MS, role="evaluation", calls="train.accuracy")
        ),
    },
    "list-conversion": {
        "fires": replace(
            _lines(line("images = torch.tensor(rows)", 8 * MS, role="input", calls="torch.tensor")),
            loader=None,
            categories=categories(input=8.2 * MS),
        ),
        "fires-in-every-fourth-step": replace(
            _lines(_LISTS),
            period=PeriodUse(4, 80, 40 * MS, about(10 * MS), "rest", _LISTS.source, line_share=0.7),
        ),
        "fires-on-a-mask-in-forward": _lines(
            line(
                "mask = torch.tensor([[c <= r for c in span] for r in span])",
                4 * MS,
                role="forward",
                calls="torch.tensor",
            )
        ),
        "clean": _lines(line("scale = torch.tensor([0.5, 0.5])", 0.02 * MS, calls="torch.tensor")),
        "clean-where-the-elements-are-made": replace(
            _lines(_PARSED),
            paths=(
                PathUse(9.5 * MS, "input", (SourceLine("data.py", 30, "parse"), _PARSED.source)),
                PathUse(0.5 * MS, "input", (_PARSED.source,)),
            ),
            loader=None,
            categories=categories(input=8.2 * MS),
        ),
        "clean-one-array": replace(
            _lines(
                line("images = torch.tensor(np.stack(rows))", 8 * MS, role="input", calls="numpy.stack torch.tensor")
            ),
            loader=None,
            categories=categories(input=8.2 * MS),
        ),
    },
    "dispatch-loop": {
        "fires": replace(
            BASE,
            categories=categories(overhead=11 * MS),
            operators=(
                operator("addmm", 128, 1.2 * MS, "latency", source=_CELL),
                operator("tanh", 64, 0.3 * MS, "latency", source=_CELL),
                operator("mm", 128, 3 * MS, "latency", "backward"),
            ),
        ),
        "fires-on-a-recurrent-cell": replace(
            BASE,
            categories=categories(overhead=11 * MS),
            operators=(
                operator("addmm", 128, 1.2 * MS, "latency", source=_CELL),
                operator("tanh", 64, 0.3 * MS, "latency", source=_CELL),
            ),
            modules=(
                ModuleUse("RNN", "RNN", 0, 64.0, 9 * MS, 9 * MS, 0.5),
                ModuleUse("RNN.cell", "LSTMCell", 1, 64.0, 9 * MS, 9 * MS, 0.4),
            ),
        ),
        "clean": BASE,
        "clean-a-layer-in-each-micro-batch": replace(
            BASE,
            step=replace(BASE.step, micro_batches=16.0),
            categories=categories(overhead=11 * MS),
            lines=(
                *BASE.lines,
                LineUse(_CELL, "forward", about(9 * MS), about(0.0), 32.0),
            ),
            operators=(
                operator("addmm", 128, 1.2 * MS, "latency", source=_CELL),
                operator("tanh", 64, 0.3 * MS, "latency", source=_CELL),
            ),
        ),
        "clean-operators-of-the-loader": replace(
            BASE,
            categories=categories(overhead=11 * MS),
            operators=(operator("uniform_", 320, 1.5 * MS, "latency", "input", source=_CELL),),
        ),
        "clean-large-operators": replace(
            BASE,
            categories=categories(overhead=3 * MS),
            operators=(operator("mm", 150, 15 * MS, "compute", source=_CELL),),
        ),
        "fires-in-a-function-known-by-its-samples": replace(
            BASE,
            lines=(
                *BASE.lines,
                LineUse(
                    SourceLine("net.py", 40, "Net.forward", "x = layer(x)"), "forward", about(9 * MS), about(0.0), 2.0
                ),
            ),
            categories=categories(overhead=9 * MS),
            operators=(operator("mm", 400, 1.8 * MS, "latency", source=SourceLine("net.py", 15, "forward")),),
            paths=(
                PathUse(7 * MS, "forward", (SourceLine("net.py", 23, "Attention.forward", "scores.append(q @ k)"),)),
                PathUse(1 * MS, "forward", (SourceLine("net.py", 40, "Net.forward", "x = layer(x)"),)),
            ),
        ),
        "fires-by-a-timed-line-of-the-function": replace(
            BASE,
            lines=(
                line("hidden = self.cell(series[:, moment], hidden)", 9 * MS, 1 * MS, role="forward", hits=100.0),
                line("return self.output(hidden)", 0.5 * MS, 0.1 * MS, role="forward"),
                line("loss.backward()", 9 * MS, 0.1 * MS, role="backward"),
            ),
            categories=categories(overhead=9 * MS),
            operators=(
                operator("addmm", 200, 1.2 * MS, "latency", source=SourceLine("/home/me/train.py", 1, "main")),
                operator("tanh", 200, 0.6 * MS, "latency", source=SourceLine("/home/me/train.py", 1, "main")),
            ),
        ),
        "fires-on-modules-one-by-one": _experts("out = out + self.experts[i](x[i])"),
        "fires-on-modules-of-unknown-callers": _without_sources(_experts("out = out + self.experts[i](x[i])")),
        "fires-on-blocks-in-a-row": _experts("x = self.blocks[i](x)"),
        "fires-on-a-loop-over-parameters": replace(
            BASE,
            lines=(
                *BASE.lines,
                line("shadow.lerp_(value, 0.001)", 9 * MS, 3 * MS, role="python", hits=100.0),
            ),
            categories=categories(overhead=9 * MS),
            operators=(
                operator("lerp_", 200, 1.2 * MS, "latency", "rest", source=SourceLine("train.py", 1, "main")),
                operator("copy_", 100, 0.6 * MS, "latency", "rest", source=SourceLine("train.py", 1, "main")),
            ),
        ),
        "fires-with-small-products-far-from-the-rate": replace(
            BASE,
            lines=(line("hidden = self.cell(series[:, moment], hidden)", 9 * MS, 1 * MS, role="forward", hits=100.0),),
            categories=categories(overhead=2 * MS),
            operators=(
                operator("tanh", 200, 0.6 * MS, "latency", source=SourceLine("/home/me/train.py", 1, "main")),
                operator("mm", 100, 4 * MS, "memory", flops=1e8, source=SourceLine("/home/me/train.py", 1, "main")),
                operator("mm", 4, 4 * MS, "compute", flops=4e8, source=SourceLine("/home/me/train.py", 1, "main")),
            ),
            roofline=RooflineUse(5 * MS, 3 * MS, 1 * MS, 0.0, 5e8, 1e7, "float32", 1e11),
        ),
        "fires-beside-large-layers-of-the-same-function": replace(
            BASE,
            lines=(
                line("hidden = self.cell(series[:, moment], hidden)", 6 * MS, 1 * MS, role="forward", hits=100.0),
                line("return self.output(torch.relu(self.wide(hidden)))", 3 * MS, 0.1 * MS, role="forward"),
            ),
            categories=categories(overhead=5 * MS),
            operators=(
                operator("mm", 6, 12 * MS, "compute", source=SourceLine("/home/me/train.py", 1, "main")),
                operator("sigmoid", 400, 1.6 * MS, "latency", source=SourceLine("/home/me/train.py", 1, "main")),
            ),
        ),
        "fires-by-the-call-of-the-function": replace(
            BASE,
            lines=(*BASE.lines, line("update_averages(model)", 4 * MS, 1 * MS, calls="train.update_averages")),
            categories=categories(overhead=4 * MS),
            operators=(
                operator(
                    "mul_", 300, 0.9 * MS, "latency", source=SourceLine("/home/me/train.py", 9, "update_averages")
                ),
            ),
        ),
        "fires-in-a-function-that-the-optimizer-has-too": replace(
            BASE,
            lines=(*BASE.lines, line("optimizer.step(closure)", 4 * MS, 1 * MS, role="optimizer")),
            categories=categories(overhead=4 * MS),
            operators=(operator("mul_", 300, 0.9 * MS, "latency", source=SourceLine("/home/me/train.py", 9, "step")),),
        ),
        "clean-large-layers-in-a-loop": replace(
            BASE,
            lines=(line("hidden = block(hidden)", 14 * MS, 0.2 * MS, role="forward", hits=48.0),),
            categories=categories(overhead=3 * MS),
            operators=(
                operator("mm", 480, 12 * MS, "compute", source=SourceLine("/home/me/train.py", 1, "main")),
                operator("relu", 48, 0.4 * MS, "latency", source=SourceLine("/home/me/train.py", 1, "main")),
            ),
        ),
        "clean-one-call-of-a-deep-model": replace(
            _lines(line("output = model(images)", 15 * MS, 0.1 * MS, role="forward")),
            categories=categories(overhead=11 * MS),
            operators=(
                operator("addmm", 400, 2 * MS, "latency", source=SourceLine("train.py", 30, "main")),
                operator("relu", 400, 1 * MS, "latency", source=SourceLine("flat.py", 1, "<module>")),
                operator("mul", 400, 1 * MS, "latency", "optimizer", source=SourceLine("optim.py", 5, "update")),
            ),
        ),
        "clean-many-functions": replace(
            BASE,
            categories=categories(overhead=11 * MS),
            operators=tuple(
                operator("mul", 20, 0.1 * MS, "latency", source=SourceLine("model.py", number, "forward"))
                for number in range(40)
            ),
        ),
    },
    "indexing-in-loop": {
        "fires": replace(
            BASE,
            lines=(*BASE.lines, line("state = 0.9 * state + inputs[:, moment]", 4 * MS, MS, role="forward", hits=64.0)),
            operators=(
                *BASE.operators,
                operator("select_backward", 64, 0.5 * MS, "latency", "backward", source=_LOOPING),
                operator("fill_", 66, 1.5 * MS, "memory", "backward", source=_LOOPING),
                operator("add_", 70, 4 * MS, "memory", "backward", source=_LOOPING),
            ),
        ),
        "clean": BASE,
        "clean-few-slices": replace(
            BASE, operators=(*BASE.operators, operator("slice_backward", 3, 4 * MS, "memory", "backward"))
        ),
        "clean-where-a-recurrent-layer-of-torch-slices": replace(
            BASE,
            operators=(*BASE.operators, operator("slice_backward", 246, 12 * MS, "memory", "backward", recurrent=244)),
        ),
        "clean-on-a-device": replace(
            _CUDA, operators=(*_CUDA.operators, operator("select_backward", 64, 4 * MS, "memory", "backward"))
        ),
    },
    "overhead-bound": {
        "fires": replace(BASE, categories=categories(overhead=9 * MS)),
        "fires-in-recurrent-layers-of-torch": replace(
            BASE,
            categories=categories(overhead=9 * MS),
            operators=(
                operator("sigmoid_", 320, 3 * MS, "latency", recurrent=320),
                operator("mm", 42, 2 * MS, "compute"),
            ),
        ),
        "clean": BASE,
        "clean-beside-a-few-operators": replace(
            BASE, categories=categories(overhead=9 * MS), operators=(operator("addmm", 3, 11 * MS, "compute"),)
        ),
        "fires-on-many-micro-batches": replace(
            BASE, step=replace(BASE.step, micro_batches=16.0), categories=categories(overhead=9 * MS)
        ),
        "clean-dispatch-hidden": replace(
            BASE,
            categories=(
                *categories(device=0.0)[:1],
                replace(categories(overhead=9 * MS)[1], recoverable=about(0.5 * MS)),
            ),
        ),
    },
    "host-sync": {
        "fires": replace(_CUDA, sites=(SITE,)),
        "fires-with-the-gap-and-the-line": replace(
            _CUDA,
            sites=(SITE, replace(SITE, name="cpu")),
            gaps=(GapUse("sync", "aten::item", about(3.9 * MS), 1.0, 3_950_000),),
        ),
        "clean-without-sync": replace(_CUDA, categories=categories(), sites=(SITE,)),
        "clean-on-the-cpu": replace(BASE, sites=(SiteUse("item", "cpu", 1.0, SITE.source),)),
        "clean-copies-to-the-device": replace(_CUDA, sites=(replace(SITE, name="to"),)),
    },
    "recompilation": {
        "fires": replace(BASE, compilations=(_COMPILED, replace(_COMPILED, duration=1_500_000_000))),
        "fires-in-torchs-own-code": replace(
            BASE,
            compilations=(replace(_COMPILED, source=SourceLine("/lib/site-packages/torch/_dynamo/x.py", 67, "inner")),),
        ),
        "fires-in-the-warm-up": replace(
            BASE, step=replace(step(), run=30_000_000_000), compilations=8 * (replace(_COMPILED, after_warm_up=False),)
        ),
        "clean": replace(BASE, compilations=(replace(_COMPILED, after_warm_up=False, reason=""),)),
        "clean-a-small-part-of-the-run": replace(
            BASE,
            step=replace(step(), run=1_000_000_000_000),
            compilations=8 * (replace(_COMPILED, after_warm_up=False),),
        ),
    },
    "memory-bound-pointwise": {
        "fires": replace(
            BASE,
            operators=(
                operator("mul", 20, 5 * MS, "memory", bytes=60e6),
                operator("add_", 20, 4 * MS, "memory", "backward", bytes=50e6),
                operator("tanh", 4, 3 * MS, "memory", bytes=20e6),
                operator("addmm", 4, 6 * MS, "compute"),
            ),
        ),
        "fires-although-compiled": replace(
            BASE,
            operators=(operator("gelu", 8, 7 * MS, "memory", bytes=80e6),),
            compilations=(replace(_COMPILED, after_warm_up=False),),
        ),
        "clean": BASE,
        "clean-in-the-optimizer": replace(BASE, operators=(operator("addcdiv_", 20, 7 * MS, "memory", "optimizer"),)),
        "clean-in-the-cache": replace(BASE, operators=(operator("mul", 400, 7 * MS, "latency"),)),
        "clean-in-a-recurrent-layer-of-torch": replace(
            BASE,
            operators=(
                operator("add_", 240, 6 * MS, "memory", bytes=60e6, recurrent=240),
                operator("mul", 122, 6.1 * MS, "memory", "backward", bytes=60e6, recurrent=120),
            ),
        ),
        "clean-bound-by-their-arithmetic": replace(
            BASE, operators=(operator("tanh", 10, 9 * MS, "memory", bytes=9e6),)
        ),
        "clean-dropout-draws-its-numbers": replace(
            BASE,
            operators=(
                operator("bernoulli_", 14, 9 * MS, "memory", bytes=8e6),
                operator("mul", 28, 1 * MS, "memory", bytes=20e6),
            ),
        ),
    },
    "copies-and-casts": {
        "fires": replace(BASE, operators=(operator("copy_", 24, 5 * MS, "memory", bytes=60e6),)),
        "clean": replace(BASE, operators=(operator("copy_", 4, 0.5 * MS, "memory", bytes=6e6),)),
        "clean-in-the-optimizer": replace(BASE, operators=(operator("copy_", 24, 5 * MS, "memory", "optimizer"),)),
    },
    "dominant-operator": {
        "fires-on-a-processor": replace(
            BASE,
            categories=categories(input=12 * MS),
            operators=(operator("bernoulli_", 2, 6 * MS, "memory", bytes=2e6, source=_DROPOUT),),
        ),
        "clean-products": replace(
            BASE, operators=(operator("addmm", 2, 9 * MS, "compute", flops=2e9, bytes=2e6, source=_DROPOUT),)
        ),
    },
    "compute-share": {
        "fires-on-a-processor": BASE,
        "clean-a-step-of-input": replace(BASE, categories=categories(input=15 * MS)),
    },
    "slow-arithmetic": {
        "fires": replace(BASE, operators=(operator("sqrt", 4, 6 * MS, "memory", bytes=2e6),)),
        "fires-in-the-optimizer": replace(
            BASE, operators=(operator("_foreach_sqrt_", 1, 6 * MS, "memory", "optimizer", bytes=4e6),)
        ),
        "fires-with-a-line-of-the-loop": replace(
            _lines(
                line(
                    "spread = (faint * faint).sqrt().mean()",
                    6 * MS,
                    0.1 * MS,
                    calls="torch.Tensor.sqrt torch.Tensor.mean",
                )
            ),
            operators=(operator("sqrt", 4, 6 * MS, "memory", "rest", bytes=2e6),),
        ),
        "fires-denormals-flushed": replace(
            BASE,
            operators=(operator("add", 4, 6 * MS, "memory", bytes=2e6),),
            settings=replace(_LEFT_ON, denormals_flushed=True),
        ),
        "clean": replace(BASE, operators=(operator("sqrt", 4, 6 * MS, "memory", bytes=20e6),)),
        "clean-waits-for-processors": replace(
            BASE,
            operators=(operator("sqrt", 4, 6 * MS, "memory", bytes=2e6),),
            contention=contention(other=1.8, job=0.2, cpus=2, pressure=90.0),
        ),
        "clean-seldom-at-a-processor": replace(
            BASE,
            operators=(operator("sqrt", 4, 15 * MS, "memory", bytes=2e5),),
            contention=contention(other=1.8, job=0.2, cpus=2, pressure=99.0),
        ),
        "clean-two-threads-beside-another-program": replace(
            BASE,
            operators=(operator("_fused_adamw_", 1, 9 * MS, "memory", "optimizer", bytes=44e3),),
            settings=SettingsUse(2, 2, 2),
            contention=contention(other=1.2, job=0.8, cpus=2, pressure=96.0),
        ),
        "clean-many-small-tensors-in-a-call": replace(
            BASE,
            operators=(operator("_fused_adamw_", 1, 2 * MS, "memory", "optimizer", bytes=914e3),),
            optimizers=(optimizer(2 * MS, 100, 33_000, fused=True),),
        ),
        "clean-few-of-many-threads": replace(
            BASE,
            operators=(operator("sqrt", 100, 6 * MS, "memory", bytes=26e6),),
            settings=SettingsUse(64, 64, 64),
            machine=replace(MACHINE, copy_bytes=200e9),
        ),
        "clean-small-calls": replace(BASE, operators=(operator("sqrt", 400, 6 * MS, "latency", bytes=2e6),)),
        "clean-new-memory": replace(BASE, operators=(operator("mul", 1, 20 * MS, "memory", bytes=20e6),)),
        "clean-no-arithmetic": replace(BASE, operators=(operator("index_select", 4, 6 * MS, "memory", bytes=2e6),)),
        "fires-in-the-loss": replace(BASE, operators=(operator("sqrt", 4, 6 * MS, "memory", "rest", bytes=2e6),)),
        "clean-in-the-input": replace(BASE, operators=(operator("sqrt", 4, 6 * MS, "memory", "input", bytes=2e6),)),
    },
    "optimizer-share": {
        "fires-at-the-line-of-an-optimizer-of-the-job": replace(
            BASE,
            optimizers=(optimizer(8 * MS, type="Kron"),),
            paths=(PathUse(5 * MS, "optimizer", (SourceLine("kron.py", 6, "root", "torch.linalg.eigh(m)"),)),),
        ),
        "fires": replace(BASE, optimizers=(optimizer(8 * MS, elements=1_000_000, fused=True),)),
        "clean": BASE,
        "clean-already-at-the-bandwidth": replace(
            BASE, optimizers=(optimizer(8 * MS, elements=3_500_000, fused=True),)
        ),
        "clean-no-floor-is-known": replace(BASE, optimizers=(optimizer(8 * MS, elements=1_000_000, type="LBFGS"),)),
        "clean-the-lookups-decide": replace(
            BASE, optimizers=(optimizer(8 * MS, elements=1_000_000, type="SparseAdam"),)
        ),
    },
    "dense-embedding-gradient": {
        "fires": replace(
            BASE, optimizers=(optimizer(9 * MS, elements=2_600_000, dense_embedding_elements=2_500_000, fused=True),)
        ),
        "fires-with-what-backward-takes": replace(
            BASE,
            optimizers=(optimizer(3 * MS, elements=2_600_000, dense_embedding_elements=2_500_000, fused=True),),
            operators=(*BASE.operators, operator("fill_", 2, 4 * MS, "memory", "backward", bytes=1e7)),
        ),
        "clean": replace(
            BASE, optimizers=(optimizer(9 * MS, elements=2_600_000, dense_embedding_elements=100_000, fused=True),)
        ),
    },
    "single-tensor-optimizer": {
        "fires": replace(BASE, optimizers=(optimizer(5 * MS, parameters=160, operators=2000.0),)),
        "fires-on-cuda": replace(_CUDA, optimizers=(optimizer(5 * MS, parameters=160, foreach=False, type="RMSprop"),)),
        "fires-on-several-of-few-tensors": replace(
            BASE, optimizers=(optimizer(3 * MS, parameters=12), optimizer(2 * MS, parameters=8))
        ),
        "clean": replace(BASE, optimizers=(optimizer(5 * MS, parameters=160, fused=True),)),
        "clean-foreach-by-default-on-cuda": replace(_CUDA, optimizers=(optimizer(5 * MS, parameters=160),)),
        "clean-nothing-better-exists": replace(BASE, optimizers=(optimizer(5 * MS, parameters=160, type="LBFGS"),)),
        "clean-so-small-that-collecting-them-is-all": replace(
            BASE,
            step=step(2 * MS),
            optimizers=(optimizer(0.18 * MS, elements=10_000, parameters=98, type="SGD"),),
            machine=replace(MACHINE, dispatch=900.0, updates=((1 << 20, 150e9), (1 << 28, 40e9))),
        ),
    },
    "double-precision": {
        "fires": replace(BASE, roofline=_DOUBLE),
        "clean": replace(BASE, roofline=replace(_DOUBLE, dtype="float32")),
        "clean-of-small-operators": replace(BASE, roofline=replace(_DOUBLE, latency=500 * _DOUBLE.compute)),
        "clean-no-arithmetic": replace(BASE, roofline=replace(_DOUBLE, flops=0.0)),
    },
    "work-without-gradient": {
        "fires": replace(
            BASE,
            operators=(
                *BASE.operators,
                operator(
                    "mm", 8, 4 * MS, "compute", source=SourceLine("net.py", 32, "laplacian"), differentiated=False
                ),
                operator("cat", 2, 0.2 * MS, "memory", differentiated=False),
            ),
        ),
        "clean": BASE,
        "fires-on-a-call-for-a-metric": replace(
            BASE,
            operators=(*BASE.operators, operator("addmm", 12, 4 * MS, "compute", flops=1.2e9, differentiated=False)),
            modules=(ModuleUse("Net", "Net", 0, 2.0, 9 * MS, 11 * MS, 0.9, parameters=80_000),),
        ),
        "fires-on-a-head-that-no-loss-uses": replace(
            BASE,
            operators=(*BASE.operators, operator("mm", 4, 5 * MS, "compute", differentiated=False, unreached=4.8 * MS)),
        ),
        "clean-every-so-many-steps": replace(
            BASE,
            operators=(*BASE.operators, operator("histc", 4, 5 * MS, "unmodelled", differentiated=False)),
            period=PeriodUse(5, 20, 20 * MS, about(4 * MS), "forward", ITEM, alone=("aten::histc",)),
        ),
        "clean-a-mask": replace(
            BASE, operators=(*BASE.operators, operator("triu", 1, 0.2 * MS, "memory", differentiated=False))
        ),
    },
    "backward-again": {
        "fires": replace(
            BASE,
            backward_again=about(5 * MS),
            lines=(
                line("errors.backward(retain_graph=True)", 6 * MS, 0.2 * MS, role="backward"),
                replace(_LAST, source=replace(_LAST.source, line=99)),
            ),
        ),
        "clean-a-small-head-of-two-losses": replace(BASE, backward_again=about(0.2 * MS)),
    },
    "unused-rows": {
        "fires": replace(BASE, picked=(PickedUse(_HEAD, 0.4),)),
        "fires-outside-of-modules": replace(BASE, picked=(PickedUse(replace(_HEAD, path="", made=None), 0.4),)),
        "clean-a-norm-of-the-last-position": replace(BASE, picked=(PickedUse(replace(_HEAD, kept=0.02), 0.02),)),
    },
    "unread-result": {
        "fires-on-attention": replace(BASE, unread=(UnreadUse(_WEIGHTS, 0.3, 0.2),)),
        "fires-on-attention-that-drops": replace(
            BASE,
            unread=(UnreadUse(_WEIGHTS, 0.3, 0.2),),
            operators=(*BASE.operators, operator("bernoulli_", 2, 0.1 * MS, "memory", "forward")),
        ),
        "fires-on-another-module": replace(
            BASE, unread=(UnreadUse(replace(_WEIGHTS, type="Decoder", results=(2,)), 0.1, 0.0),)
        ),
        "clean-short-sequences": replace(BASE, unread=(UnreadUse(_WEIGHTS, 0.01, 0.05),)),
    },
    "parametrization-again": {
        "fires": replace(
            BASE,
            modules=_parametrized(48.0),
            lines=(
                *BASE.lines,
                line("z = self.inp(x) + self.rec(h)", 9 * MS, 0.2 * MS, role="forward", hits=48.0),
                line("h = self.cell(x[:, t], h)", 1 * MS, 0.2 * MS, role="forward", hits=48.0),
            ),
        ),
        "clean-once-a-forward": replace(BASE, modules=_parametrized(1.0)),
        "clean-once-for-each-of-several-batches": replace(BASE, modules=_parametrized(4.0, of_model=4.0)),
    },
    "gradients-for-nothing": {
        "fires-on-a-teacher": replace(
            BASE,
            modules=(
                ModuleUse("Distiller", "Distiller", 0, 1.0, 8 * MS, 11 * MS, 0.9, parameters=9000, without_update=8000),
                ModuleUse(
                    "Distiller.teacher", "Net", 1, 1.0, 5 * MS, 6 * MS, 0.5, parameters=8000, without_update=8000
                ),
                ModuleUse("Distiller.student", "Net", 1, 1.0, 3 * MS, 5 * MS, 0.4, parameters=1000),
            ),
        ),
        "fires-on-a-judge-behind-what-is-trained": replace(
            BASE,
            modules=(
                ModuleUse("Net", "Net", 0, 1.0, 3 * MS, 5 * MS, 0.4, parameters=1000),
                ModuleUse("Judge", "Judge", 0, 1.0, 5 * MS, 6 * MS, 0.5, parameters=8000, without_update=7900),
            ),
        ),
        "fires-on-images-that-are-not-detached": replace(BASE, dropped=(UnusedPass(_UNDETACHED, 0.4, 0.1),)),
        "fires-on-a-critic-in-the-generators-pass": replace(
            BASE, dropped=(UnusedPass(replace(_UNDETACHED, path="Critic", passed=None), 0.05, 0.4),)
        ),
        "fires-on-a-teacher-whose-pass-was-walked": replace(
            BASE, dropped=(UnusedPass(replace(_UNDETACHED, path="Net.teacher", unowned=True, passed=None), 0.4, 0.0),)
        ),
        "fires-on-gradients-of-a-call-that-reads-the-last-two": replace(
            BASE, dropped=(UnusedPass(PassFacts(30, ITEM, elements=9000, asked=8, read=(6, 7)), 0.6, 0.0),)
        ),
        "clean-a-small-critic": replace(BASE, dropped=(UnusedPass(replace(_UNDETACHED, path="Critic"), 0.0, 0.05),)),
        "clean": replace(BASE, modules=(ModuleUse("Net", "Net", 0, 1.0, 8 * MS, 11 * MS, 0.9, parameters=9000),)),
        "fires-on-a-backbone-below-a-small-head": replace(
            BASE,
            lines=(*BASE.lines, line("return self.head(self.backbone(rows))", 7 * MS, MS, role="forward")),
            modules=(
                ModuleUse("Probe", "Probe", 0, 1.0, 8 * MS, 11 * MS, 0.9, parameters=9000, without_update=8900),
                ModuleUse("Probe.backbone", "Net", 1, 1.0, 7 * MS, 9 * MS, 0.8, parameters=8900, without_update=8900),
                ModuleUse("Probe.head", "Linear", 1, 1.0, 1 * MS, 2 * MS, 0.1, parameters=100),
            ),
        ),
        "clean-a-small-part": replace(
            BASE,
            modules=(
                ModuleUse("Net", "Net", 0, 1.0, 8 * MS, 11 * MS, 0.9, parameters=9000, without_update=40),
                ModuleUse("Net.norm", "Norm", 1, 1.0, 0.2 * MS, 0.3 * MS, 0.02, parameters=40, without_update=40),
            ),
        ),
    },
    "update-by-hand": {
        "fires": _BY_HAND,
        "fires-on-some-frozen": replace(_BY_HAND, top_modules=(TopModuleUse("Net", 44, 9_000_000),)),
        "clean-an-optimizer-of-torch": replace(_BY_HAND, optimizers=(optimizer(0.7 * MS, fused=True),)),
        "clean-what-changes-in-place-is-no-model": replace(
            _BY_HAND, operators=tuple(replace(use, phase="rest") for use in _BY_HAND.operators)
        ),
        "clean-lines-of-one-call": replace(_BY_HAND, lines=BASE.lines),
    },
    "zeroed-gradients": {
        "fires": replace(
            BASE,
            optimizers=(optimizer(0.7 * MS, elements=2_000_000, fused=True),),
            operators=(
                *BASE.operators,
                operator("fill_", 12, 0.8 * MS, "memory", "optimizer", bytes=8e6),
                operator("add_", 12, 1.6 * MS, "memory", "backward", bytes=24e6),
            ),
            lines=(
                *BASE.lines,
                line(
                    "optimizer.zero_grad(set_to_none=False)",
                    0.8 * MS,
                    0.01 * MS,
                    calls="torch.optim.optimizer.Optimizer.zero_grad",
                ),
            ),
        ),
        "clean": BASE,
        "clean-zeros-of-a-loss-while-gradients-are-dropped": replace(
            BASE,
            optimizers=(optimizer(0.7 * MS, elements=2_000_000, fused=True),),
            operators=(*BASE.operators, operator("fill_", 12, 1.8 * MS, "memory", "rest", bytes=8e6)),
            lines=(
                *BASE.lines,
                line("optimizer.zero_grad()", 0.05 * MS, calls="torch.optim.optimizer.Optimizer.zero_grad"),
            ),
        ),
        "clean-zeros-of-the-model": replace(
            BASE,
            optimizers=(optimizer(0.7 * MS, elements=2_000_000, fused=True),),
            operators=(*BASE.operators, operator("fill_", 12, 1.8 * MS, "memory", "backward", bytes=8e6)),
        ),
        "clean-sums-of-a-loss": replace(
            BASE,
            optimizers=(optimizer(0.7 * MS, elements=200_000, fused=True),),
            operators=(
                *BASE.operators,
                operator("fill_", 4, 0.8 * MS, "memory", "rest", bytes=9e5),
                operator("fill_", 12, 0.8 * MS, "memory", "rest", bytes=9e6),
                operator("add_", 12, 1.6 * MS, "memory", "backward", bytes=24e6),
            ),
        ),
        "clean-a-few-bytes": replace(
            BASE,
            optimizers=(optimizer(0.7 * MS, elements=2_000_000, fused=True),),
            operators=(*BASE.operators, operator("fill_", 12, 1.8 * MS, "memory", "optimizer", bytes=1e5)),
        ),
    },
    "detect-anomaly": {
        "fires": replace(BASE, settings=replace(_LEFT_ON, detect_anomaly=True)),
        "clean": BASE,
    },
    "tracer-left-on": {
        "fires": replace(IN_PYTHON, tracers=(TRACED_MEMORY,)),
        "fires-under-a-debugger": replace(IN_PYTHON, tracers=(TracerFacts("trace", "pydevd"),)),
        "fires-under-cprofile": replace(IN_PYTHON, tracers=(TracerFacts("profile", "cProfile"),)),
        "fires-where-torch-has-the-python": replace(
            BASE, tracers=(TRACED_MEMORY,), categories=categories(overhead=9 * MS)
        ),
        "clean": IN_PYTHON,
        "fires-where-the-loop-makes-its-input": replace(
            BASE, tracers=(TRACED_MEMORY,), loader=None, categories=categories(input=9 * MS)
        ),
        "clean-operators-only": replace(BASE, tracers=(TRACED_MEMORY,), categories=categories(python=0.2 * MS)),
        "clean-a-loader-waits": replace(
            BASE, tracers=(TRACED_MEMORY,), loader=loader(9 * MS, 9 * MS), categories=categories(input=9 * MS)
        ),
        "clean-by-a-variable": replace(
            IN_PYTHON,
            tracers=(TRACED_MEMORY,),
            settings=replace(_LEFT_ON, debug_switches=(("PYTHONTRACEMALLOC", "1"),)),
        ),
        "clean-of-a-later-version": replace(IN_PYTHON, tracers=(TracerFacts("telepathy", "?"),)),
    },
    "profiler-left-on": {
        "fires": replace(BASE, settings=replace(_LEFT_ON, profiler=True), operators=()),
        "clean": BASE,
    },
    "deterministic-left-on": {
        "fires": replace(
            BASE,
            settings=replace(_LEFT_ON, deterministic=True),
            operators=(operator("index_put_", 2, 4 * MS, "memory"), operator("fill_", 40, 1 * MS, "memory")),
        ),
        "fires-as-a-note": replace(BASE, settings=replace(_LEFT_ON, deterministic=True)),
        "clean": BASE,
    },
    "accumulated-loss": {
        "fires": replace(BASE, step=replace(step(), micro_batches=4.0, loss_divided=False)),
        "fires-for-batch-normalisation": replace(
            BASE,
            step=replace(step(), micro_batches=4.0, loss_divided=True),
            operators=(*BASE.operators, operator("native_batch_norm", 8, 1 * MS, "memory", "forward")),
        ),
        "clean-divided": replace(BASE, step=replace(step(), micro_batches=4.0, loss_divided=True)),
        "clean-compiled": replace(BASE, step=replace(step(), micro_batches=4.0)),
        "clean-one-batch": replace(
            BASE,
            step=replace(step(), loss_divided=False),
            operators=(*BASE.operators, operator("native_batch_norm", 8, 1 * MS, "memory", "forward")),
        ),
    },
    "debug-switch": {
        "fires": replace(BASE, settings=replace(_LEFT_ON, debug_switches=(("PYTHONDEVMODE", "1"),))),
        "fires-with-others": replace(
            BASE,
            settings=replace(
                _LEFT_ON,
                debug_switches=(("TORCH_DISTRIBUTED_DEBUG", "DETAIL"), ("ONEDNN_VERBOSE", "1")),
                distributed_backend="gloo",
            ),
        ),
        "clean": BASE,
        "clean-where-it-does-not-act": replace(
            BASE,
            settings=replace(
                _LEFT_ON,
                debug_switches=(
                    ("CUDA_LAUNCH_BLOCKING", "1"),
                    ("NCCL_P2P_DISABLE", "1"),
                    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
                ),
            ),
        ),
    },
    "recompute": {
        "fires": replace(BASE, recompute=RecomputeUse(about(4 * MS), 0.3)),
        "clean-gradients-of-gradients": replace(BASE, second_order=True, recompute=RecomputeUse(about(4 * MS), 0.3)),
        "fires-by-the-line": replace(
            _lines(
                line(
                    "x = x + checkpoint(block, x)",
                    9 * MS,
                    0.1 * MS,
                    role="forward",
                    calls="torch.utils.checkpoint.checkpoint",
                ),
                line("load_checkpoint(path)", 10 * MS, 0.1 * MS, role="forward"),
            ),
            recompute=RecomputeUse(about(4 * MS)),
        ),
        "fires-memory-unknown": replace(BASE, recompute=RecomputeUse(about(4 * MS))),
        "clean": replace(BASE, recompute=RecomputeUse(about(4 * MS), 0.92)),
    },
    "thread-oversubscription": {
        "fires": replace(
            BASE,
            settings=SettingsUse(8, 2, 2, omp_num_threads="8"),
            contention=contention(job=2.0, cpus=2, pressure=60.0, spread=0.2),
        ),
        "fires-on-what-others-leave": replace(
            BASE,
            settings=SettingsUse(8, 2, 2),
            contention=contention(other=0.9, job=1.0, cpus=2, pressure=8.0),
        ),
        "fires-with-doubt": replace(
            BASE,
            settings=SettingsUse(2, 2, 2, trainers_on_host=2),
            contention=contention(job=1.9, cpus=2, pressure=60.0, spread=0.6),
        ),
        "clean": BASE,
        "clean-workers-that-wait": replace(
            BASE,
            loader=loader(4 * MS, 20 * MS, workers=22, batch_size=8, usable_cpus=2, busy=0.02, persistent_workers=True),
            settings=SettingsUse(1, 2, 2),
            contention=contention(job=1.9, cpus=2, pressure=30.0),
        ),
        "clean-workers-that-rest": replace(
            BASE,
            loader=loader(1 * MS, 30 * US, workers=2, usable_cpus=2, busy=1.0),
            settings=SettingsUse(2, 2, 2),
            contention=contention(job=1.9, cpus=2, pressure=30.0),
        ),
        "fires-on-workers-that-never-rest": replace(
            BASE,
            loader=loader(1 * MS, 2 * MS, workers=4, usable_cpus=2, busy=1.0, persistent_workers=True),
            settings=SettingsUse(2, 2, 2),
            contention=contention(job=1.9, cpus=2, pressure=30.0),
        ),
        "clean-threads-that-sleep": replace(
            BASE, settings=SettingsUse(8, 2, 2), contention=contention(job=0.6, cpus=2, pressure=2.0)
        ),
    },
    "too-few-threads": {
        "fires": replace(BASE, settings=_HELD),
        "fires-two-trainers-of-eight-cpus": replace(BASE, settings=replace(_HELD, trainers_on_host=2)),
        "clean": BASE,
        "clean-cpus-in-use": replace(BASE, settings=_HELD, contention=contention(other=6.9, job=1.0)),
        "clean-one-cpu-each": replace(BASE, settings=replace(_HELD, trainers_on_host=8)),
        "clean-job-sets-its-own": replace(BASE, settings=replace(_HELD, omp_num_threads="4")),
        "clean-job-calls-it-itself": replace(BASE, settings=replace(_HELD, threads_site=ITEM)),
        "clean-calls-too-small": replace(
            BASE, settings=_HELD, operators=(operator("add", 1200, 12 * MS, "memory", bytes=1200 * 4_000.0),)
        ),
        "clean-on-a-device": replace(BASE, settings=_HELD, step=step(device="cuda")),
        "clean-operators-too-small": replace(
            BASE, settings=_HELD, operators=(operator("addmm", 1200, 12 * MS, "latency"),)
        ),
    },
    "background-load": {
        "fires": replace(BASE, contention=contention(other=0.9, job=1.1, cpus=2, pressure=45.0, spread=0.4)),
        "clean": BASE,
        "clean-cpus-to-spare": replace(BASE, contention=contention(other=2.0, job=1.1, cpus=16, pressure=0.5)),
    },
    "unstable-steps": {
        "fires": replace(BASE, contention=contention(spread=0.5)),
        "fires-drift": replace(BASE, contention=contention(drift=0.4)),
        "fires-with-the-lengths": replace(BASE, contention=contention(spread=0.5), lengths=LengthUse(32, 320, 7)),
        "clean": BASE,
        "clean-beside-other-load": replace(
            BASE, contention=contention(other=0.9, job=1.1, cpus=2, pressure=45.0, spread=0.5)
        ),
    },
    "overflow-skipped": {
        "fires": replace(BASE, step=replace(step(), scaled=200, skipped=12)),
        "clean": replace(BASE, step=replace(step(), scaled=4000, skipped=2)),
        "clean-one-batch": replace(BASE, step=replace(step(), scaled=40, skipped=1)),
    },
    "exploding-gradient": {
        "fires": replace(BASE, step=replace(step(), norm=NormUse(2.0, 6e5, 40, 4000, 60))),
        "fires-not-finite": replace(BASE, step=replace(step(), norm=NormUse(2.0, 3.0, 40, 4000, 60, 5, 3600))),
        "clean": replace(BASE, step=replace(step(), norm=NormUse(2.0, 30.0, 40, 4000, 60))),
        "clean-one-batch": replace(BASE, step=replace(step(), norm=NormUse(2.0, 3.0, 40, 4000, 60, 1, 4000))),
        "clean-few-samples": replace(BASE, step=replace(step(), norm=NormUse(2.0, 6e5, 40, 80, 6))),
    },
    "few-steps": {"fires": replace(BASE, step=step(steady=5)), "clean": BASE},
    "memory-leak": {
        "fires": replace(
            BASE,
            memory=MemoryUse(
                "cpu",
                2 << 30,
                growth=Estimate(140e3, 138e3, 141e3, 90, "bytes"),
                grows=True,
                grown=176 << 20,
                holders=(HolderUse("list", "losses", 2.0, 131072.0, True, SourceLine("train.py", 8, "<module>")),),
            ),
        ),
        "fires-on-graphs-that-are-kept-in-a-short-run": replace(
            BASE,
            memory=MemoryUse(
                "cpu",
                2 << 30,
                holders=(HolderUse("list", "losses", 6.0, 163844.0, True, SourceLine("train.py", 8, "<module>")),),
            ),
        ),
        "clean-on-graphs-of-an-evaluation-in-a-run-without-a-slope": replace(
            BASE, memory=MemoryUse("cpu", 2 << 30, holders=(HolderUse("list", "outputs", 0.02, 4096.0, True),))
        ),
        "clean-on-tensors-that-are-kept-in-a-short-run": replace(
            BASE, memory=MemoryUse("cpu", 2 << 30, holders=(HolderUse("list", "outputs", 6.0, 163844.0),))
        ),
        "fires-without-a-keeper": replace(
            BASE,
            memory=MemoryUse(
                "cuda", 2 << 30, 80 << 30, 1 << 30, 0.0, Estimate(9e6, 8e6, 1e7, 90, "bytes"), True, 5 << 28
            ),
        ),
        "clean": replace(
            BASE, memory=MemoryUse("cpu", 2 << 30, growth=Estimate(10.0, -2e3, 2e3, 90, "bytes"), grown=1 << 10)
        ),
    },
    "memory-fragmentation": {
        "fires": replace(BASE, memory=MemoryUse("cuda", 60 << 30, 80 << 30, 35 << 30)),
        "clean": replace(BASE, memory=MemoryUse("cuda", 60 << 30, 80 << 30, 55 << 30)),
        "clean-on-a-cpu": replace(BASE, memory=MemoryUse("cpu", 60 << 30, 80 << 30)),
    },
    "memory-near-capacity": {
        "fires": replace(BASE, memory=MemoryUse("cuda", 76 << 30, 80 << 30, 74 << 30)),
        "clean": replace(BASE, memory=MemoryUse("cuda", 60 << 30, 80 << 30, 58 << 30)),
    },
    "allocator-retries": {
        "fires": replace(BASE, memory=MemoryUse("cuda", 70 << 30, 80 << 30, 68 << 30, 0.4)),
        "clean": replace(BASE, memory=MemoryUse("cuda", 70 << 30, 80 << 30, 68 << 30, 0.0)),
    },
    "optimizer-memory": {
        "fires": replace(BASE, memory=MemoryUse("cuda", 7 << 30, 80 << 30, 6 << 30, optimizer_state=3 << 30)),
        "clean": replace(BASE, memory=MemoryUse("cuda", 12 << 30, 80 << 30, 11 << 30, optimizer_state=3 << 30)),
    },
    "slow-evaluation": {
        "fires-with-gradients-on": replace(
            BASE, segments=(SegmentUse("evaluation", 3, 4_000_000_000, 0.4, graphs=1.0),)
        ),
        "fires": replace(BASE, segments=(SegmentUse("evaluation", 3, 4_000_000_000, 0.4),)),
        "fires-at-the-loops-line": replace(
            BASE, segments=(SegmentUse("evaluation", 3, 4_000_000_000, 0.4, asked=ITEM),)
        ),
        "fires-on-single-rows-by-hand": replace(
            BASE,
            segments=(
                SegmentUse(
                    "evaluation", 3, 4_000_000_000, 0.4, small=SmallBatches(1, 32, 400.0, 1_200_000_000, 60_000_000)
                ),
            ),
        ),
        "clean": replace(BASE, segments=(SegmentUse("evaluation", 3, 100_000_000, 0.01),)),
    },
    "slow-checkpoint": {
        "fires": replace(
            BASE, step=replace(step(), total=5000), segments=(SegmentUse("checkpoint", 4, 1_000_000_000, 0.1),)
        ),
        "clean": replace(
            BASE, step=replace(step(), total=5000), segments=(SegmentUse("checkpoint", 1, 100_000_000, 0.01),)
        ),
    },
    "rollout-share": {
        "fires": replace(BASE, segments=(SegmentUse("rollout", 10, 9_000_000_000, 0.8),)),
        "fires-on-calls-alone": replace(
            BASE, segments=(SegmentUse("rollout", 548, 9_000_000_000, 0.8, 0.99, (SegmentLine(ITEM, 0.97),)),)
        ),
        "fires for a line in which nothing acts": replace(
            BASE,
            segments=(
                SegmentUse("rollout", 99, 9_000_000_000, 0.8, 0.1, (SegmentLine(ITEM, 0.66, acts=False),), 1, 1.3),
            ),
        ),
        "fires-for-two-lines-that-make-a-batch": replace(
            BASE,
            segments=(
                SegmentUse(
                    "rollout",
                    99,
                    9_000_000_000,
                    0.8,
                    0.1,
                    (SegmentLine(ITEM, 0.4, acts=False), SegmentLine(replace(ITEM, line=14), 0.39, acts=False)),
                    1,
                    1.3,
                ),
            ),
        ),
        "fires-on-checks-of-arguments": replace(
            BASE, sites=(CHECKED,), segments=(SegmentUse("rollout", 100, 900_000_000, 0.8, every=4.0),)
        ),
        "clean": replace(BASE, segments=(SegmentUse("rollout", 10, 900_000_000, 0.1),)),
    },
    "steps-changed": {
        "fires-where-a-graph-is-carried-along": replace(
            BASE,
            change=LastingChange(
                12, 60, None, "backward", 60 * MS, 190 * MS, 130 * MS, 0.5, ITEM, 0.0, True, 3 * MS, carried="state"
            ),
        ),
        "fires": replace(
            BASE, change=LastingChange(151, 250, 3, "forward", 60 * MS, 90 * MS, 30 * MS, 0.4, ITEM, 28 * MS)
        ),
        "fires-bit-by-bit": replace(
            BASE,
            change=LastingChange(
                75, 220, 4, "forward", 60 * MS, 190 * MS, 130 * MS, 0.5, ITEM, 90 * MS, gradual=True, by_step=0.6 * MS
            ),
        ),
        "fires-with-the-list-that-gets-longer": replace(
            BASE,
            change=LastingChange(
                75,
                220,
                4,
                "rest",
                60 * MS,
                190 * MS,
                130 * MS,
                0.5,
                ITEM,
                90 * MS,
                gradual=True,
                by_step=0.6 * MS,
                longer="the list Metric.scores",
                entries=1.0,
                filled=SourceLine("train.py", 23, "update", "self.scores.append(scores)"),
            ),
        ),
        "fires-while-others-use-the-cpus": replace(
            BASE,
            change=LastingChange(57, 79, 2, "backward", 157 * MS, 228 * MS, 43 * MS, 0.4),
            contention=contention(other=6.5, job=1.2, pressure=89.0),
        ),
        "clean": replace(BASE, change=None),
    },
    "periodic-steps": {
        "fires": replace(BASE, period=PeriodUse(25, 12, 250 * MS, about(10 * MS), "rest", ITEM)),
        "fires-and-grows": replace(
            BASE,
            period=PeriodUse(
                16, 40, 110 * MS, about(10 * MS), "rest", ITEM, line_share=0.6, growth=(40.4 * MS, 181 * MS)
            ),
        ),
        "fires-with-the-part-of-a-line": replace(
            BASE, period=PeriodUse(4, 80, 40 * MS, about(10 * MS), "rest", ITEM, line_share=0.6)
        ),
        "fires-with-what-slow-steps-alone-run": replace(
            BASE,
            period=PeriodUse(
                4, 80, 40 * MS, about(10 * MS), "backward", ITEM, extras=(CallUse("aten::histc", 12.0, 30 * MS),)
            ),
        ),
        "fires-once-per-epoch": replace(
            BASE,
            period=PeriodUse(25, 12, 250 * MS, about(10 * MS), "rest"),
            loader=loader(0.1 * MS, 30 * US, batches=25),
        ),
        "clean when it hardly matters": replace(BASE, period=PeriodUse(25, 12, 2 * MS, about(0.08 * MS), "rest")),
    },
    "gpu-slowed": {
        "fires": replace(BASE, gpus=(HOT,)),
        "clean-now-and-then": replace(BASE, gpus=(replace(HOT, slowed=0.1),)),
        "clean-near-its-highest-clock": replace(BASE, gpus=(replace(HOT, slowed_clock=1900.0),)),
    },
    "gpu-power-capped": {
        "fires": replace(BASE, gpus=(replace(HOT, slowed=0.0, capped=0.8, capped_clock=1410.0),)),
        "clean": replace(BASE, gpus=(HOT,)),
        "fires-for-one-of-two": replace(
            BASE, gpus=(HOT, replace(HOT, name="GPU 5 (GPU-585e383e)", slowed=0.0, capped=0.8, capped_clock=1410.0))
        ),
    },
    "narrow-link": {
        "fires": replace(BASE, gpus=(replace(HOT, slowed=0.0, width=4),), categories=categories(copy=4 * MS)),
        "fires-as-a-note": replace(BASE, gpus=(replace(HOT, slowed=0.0, generation=3),)),
        "clean": replace(BASE, gpus=(replace(HOT, slowed=0.0),)),
        "clean-not-told": replace(BASE, gpus=(replace(HOT, slowed=0.0, width=None, generation=3),)),
    },
    "passes-through-one-graph": {
        "fires": replace(BASE, passes=PassUse(ITEM, 64.0, about(9 * MS), shared=True)),
        "clean-micro-batches": replace(BASE, passes=PassUse(ITEM, 64.0, about(9 * MS), shared=False)),
        "clean-short-ones": replace(BASE, passes=PassUse(ITEM, 64.0, about(0.2 * MS), shared=True)),
    },
    "better-way": {
        "fires": SORTED_FOR_FEW,
        "fires-in-operators": replace(SORTED_FOR_FEW, operators=(SORTS,), paths=()),
        "clean-few-of-a-short-one": replace(
            SORTED_FOR_FEW, runs=tuple(replace(each, shapes="[[4096, 8], [], []]") for each in SORTED_FOR_FEW.runs)
        ),
        "clean-rows-of-a-larger-one": replace(
            SORTED_FOR_FEW, runs=tuple(replace(each, shapes="[[8, 64, 64], []]") for each in SORTED_FOR_FEW.runs)
        ),
        "clean-of-a-list": replace(SORTED_FOR_FEW, called=()),
        "clean-short": replace(SORTED_FOR_FEW, paths=(PathUse(0.1 * MS, "forward", (NEAREST,)),)),
    },
    "all-pairs": {
        "fires": replace(BASE, spread=(PAIRS,)),
        "fires-on-products": replace(BASE, spread=(replace(PAIRS, kind="product"),)),
        "fires-where-stacks-are-missing": replace(BASE, spread=(replace(PAIRS, source=None),)),
        "clean": replace(BASE, spread=(replace(PAIRS, duration=0.5 * MS),)),
        "clean-on-cuda": replace(_CUDA, spread=(PAIRS,)),
    },
    "slow-operator": {
        "fires": replace(BASE, shaped=(UNIQUE_ROWS,)),
        "fires-on-runs": replace(
            BASE,
            shaped=(replace(UNIQUE_ROWS, name="unique_consecutive", settings=("", "True", "True", "0")),),
        ),
        "fires-on-bilinear": replace(BASE, shaped=(BILINEAR,)),
        "fires-on-a-window": replace(BASE, shaped=(BLUR,)),
        "fires-on-a-window-of-one-channel": replace(BASE, shaped=(_blur(7, channels=1),)),
        "fires-at-a-timed-line": replace(
            BASE,
            shaped=(replace(UNIQUE_ROWS, source=None),),
            lines=(*HEALTHY.lines, line("cells, index = torch.unique(places, dim=0)", 8 * MS)),
        ),
        "clean-of-a-window-of-nobodys": replace(BASE, shaped=(replace(BLUR, source=None),)),
        "clean-of-points": replace(BASE, shaped=(replace(UNIQUE_ROWS, dtypes=("float",)),)),
        "clean-of-long-rows": replace(BASE, shaped=(replace(UNIQUE_ROWS, shapes=((12_000, 64),)),)),
        "clean-of-columns": replace(BASE, shaped=(replace(UNIQUE_ROWS, settings=("", "1", "True", "True", "True")),)),
        "clean-of-numbers-in-runs": replace(
            BASE,
            shaped=(replace(UNIQUE_ROWS, name="unique_consecutive", settings=("", "True", "True", "")),),
        ),
        "clean-of-few-rows": replace(BASE, shaped=(replace(UNIQUE_ROWS, calls=200.0),)),
        "clean-short": replace(BASE, shaped=(replace(BILINEAR, duration=0.5 * MS),)),
        "clean-of-a-window-that-is-trained": replace(BASE, shaped=(replace(BLUR, trains=True),)),
        "clean-of-a-layer-that-is-frozen": replace(BASE, shaped=(replace(BLUR, module="FrozenConv"),)),
        "clean-of-a-small-window": replace(BASE, shaped=(_blur(7),)),
        "clean-of-a-small-picture": replace(BASE, shaped=(_blur(21, side=24),)),
        "clean-of-large-pictures": replace(BASE, shaped=(_blur(11, side=512),)),
    },
    "sparse-gradient-of-all-rows": {
        "fires": replace(BASE, shaped=(LOOKUPS,), optimizers=(SPARSE_ADAM,)),
        "clean-few-rows": replace(
            BASE, shaped=(replace(LOOKUPS, shapes=((90_000, 48), (600, 7))),), optimizers=(SPARSE_ADAM,)
        ),
        "clean-one-of-two-tables": replace(
            BASE, shaped=(replace(LOOKUPS, calls=0.2),), optimizers=(replace(SPARSE_ADAM, parameters=2),)
        ),
        "clean-another-optimizer": replace(
            BASE, shaped=(LOOKUPS,), optimizers=(replace(SPARSE_ADAM, type="SGD", fused=True),)
        ),
    },
    "passes-apart": {
        "fires": PASSES_APART,
        "clean-large-operators": replace(PASSES_APART, operators=(operator("addmm", 12, 18 * MS, "compute"),)),
        "clean-no-module": replace(PASSES_APART, called=()),
        "clean-once": replace(PASSES_APART, modules=(replace(ENCODER, calls=1.0),)),
    },
    "one-hot-product": {
        "fires": replace(BASE, works=(ONE_HOT,), operators=(LOOKUP, LOOKED_UP)),
        "clean-no-product": replace(BASE, works=(ONE_HOT,), operators=(replace(LOOKUP, name="aten::mul"),)),
        "clean-elsewhere": replace(
            BASE, works=(ONE_HOT,), operators=(replace(LOOKUP, source=replace(ITEM, function="other")),)
        ),
        "clean-one-of-many-products": replace(
            BASE, works=(ONE_HOT,), operators=(replace(LOOKUP, calls=400.0, duration=4 * MS),)
        ),
    },
    "outlier-steps": {
        "fires": replace(BASE, outliers=OutlierUse(3, 22, 1000 * MS, 100 * MS, "rest", 890 * MS, 0.6, 3, (5, 12, 19))),
        "fires-while-others-use-the-cpus": replace(
            BASE,
            outliers=OutlierUse(3, 22, 1000 * MS, 100 * MS, "backward", 890 * MS, 0.6, 3, (5, 12, 19)),
            contention=contention(other=6.5, job=1.2, pressure=89.0),
        ),
        "fires-on-saves-that-grow": replace(
            BASE,
            outliers=OutlierUse(
                38, 800, 351 * MS, 8.23 * MS, "", 340 * MS, 0.6, 38, (5, 12, 19), rise=(131 * MS, 520 * MS), line=ITEM
            ),
        ),
        "fires-with-many-passes": replace(
            BASE,
            outliers=OutlierUse(
                3,
                22,
                1000 * MS,
                100 * MS,
                "backward",
                890 * MS,
                0.6,
                3,
                (5, 12, 19),
                passes=PassUse(ITEM, 385.0, about(880 * MS), shared=True),
            ),
        ),
        "clean when it hardly matters": replace(
            BASE, outliers=OutlierUse(1, 900, 1000 * MS, 100 * MS, "rest", 890 * MS, 0.01, 1, (5,))
        ),
        "clean-where-they-waited-less": replace(
            BASE, outliers=OutlierUse(5, 79, 104 * MS, 100 * MS, "backward", 40 * MS, 0.07, 5, (5, 9, 12))
        ),
    },
    "caught-steps": {
        "fires": replace(
            BASE,
            caught=CaughtUse(
                3,
                1200 * MS,
                52 * MS,
                (100, 200, 300),
                100,
                (
                    SegmentLine(SourceLine("train.py", 55, "save", "torch.save(model.state_dict(), path)"), 0.9),
                    SegmentLine(SourceLine("train.py", 57, "save", "os.fsync(file)"), 0.1),
                ),
                profiled=(500, 600),
                as_usual=(700,),
            ),
        ),
        "fires-on-steps-by-number-without-lines": replace(BASE, caught=CaughtUse(1, 50 * MS, 52 * MS, (64,), 0, ())),
        "clean": BASE,
    },
}

for _rule, _cases in PLANTED_TRACES.items():
    PLANTED.setdefault(_rule, {}).update(_cases)

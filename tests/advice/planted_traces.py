"""The planted cases of what only a trace of a device shows: kernels, gaps, copies, collectives, several ranks.

They are no recordings: no loader, lines, settings or phases, as from a file of torch's profiler alone.
"""

from __future__ import annotations

from dataclasses import replace

from advice.healthy import MS, US, about, categories, line

from steptime.advice.device_uses import (
    AllocationUse,
    ChainUse,
    CollectiveUse,
    CopyUse,
    GapUse,
    GradientUse,
    MachineUse,
    RankUse,
    RooflineUse,
    ScalingUse,
    WrittenNormUse,
)
from steptime.advice.evidence import Case, CompilationUse, CompilerUse, OptimizerUse, SiteUse
from steptime.advice.run_uses import GarbageUse, MemoryUse, StepSummary
from steptime.analysis.graph_launches import EagerUse, GraphUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.stragglers.comparison import Straggler
from steptime.quantities import Estimate, SourceLine
from steptime.trace.compile_logs import CompilerEvent
from steptime.trace.vendors import BUCKET_TO_GRADIENT

STEP = 20 * MS
NOTHING = Estimate(0.0, 0.0, 0.0, 5)
LINE = SourceLine("model.py", 31, "forward")
A100 = MachineUse(
    "NVIDIA A100-SXM4-80GB",
    False,
    19.5e12,
    2.039e12,
    None,
    (("float32", 19.5e12), ("tf32", 156e12), ("float16", 312e12), ("bfloat16", 312e12)),
    "NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM",
)
V100 = replace(
    A100, name="Tesla V100", matrix_flops=15.7e12, rates=(("float32", 15.7e12), ("float16", 125e12)), copy_bytes=0.9e12
)


def kernel(operator: str, calls: float, duration: float, bound: str = "compute", **more: object) -> KernelUse:
    """Kernels of one operator; duration in ns per step."""
    name = str(more.pop("name", f"{operator}_kernel"))
    return KernelUse(name, f"aten::{operator}", calls, duration, bound, **more)  # type: ignore[arg-type]


def gap(category: str, cause: str, duration: float, count: float = 1.0, **more: object) -> GapUse:
    """Idle time of a device; duration in ns per step."""
    return GapUse(category, cause, about(duration), count, int(duration / count), **more)  # type: ignore[arg-type]


def copy(kind: str, memory: str, duration: float, exposed: float, **more: object) -> CopyUse:
    """Copies; ns per step."""
    return CopyUse(kind, memory, 2.0, about(duration), about(exposed), 12e6 * duration / MS, **more)  # type: ignore[arg-type]


def rank(number: int, waiting: float, last: float) -> RankUse:
    """A rank; waiting in ns per step."""
    return RankUse(number, STEP, 1 * MS + waiting, waiting, last, 15 * MS - waiting)


HALF_PRODUCTS = kernel(
    "mm",
    48,
    12 * MS,
    dtype="bfloat16",
    flops=3e12,
    bytes=4e9,
    at_roofline=9.7 * MS,
    tensor_cores=True,
    name="ampere_bf16_s16816gemm_bf16_128x128",
    shapes="[[4096, 4096], [4096, 4096]]",
)
NORMS = kernel("native_layer_norm", 24, 1.5 * MS, "memory", bytes=2.6e9, at_roofline=1.3 * MS)
HEALTHY = Case(
    step=StepSummary(about(STEP), 5, 5, 0, "trace", "cuda", how="ProfilerStep#"),
    categories=categories(overhead=1.0 * MS, copy=0.1 * MS),
    operators=(OperatorUse("aten::mm", 48, 12 * MS, "compute"),),
    kernels=(HALF_PRODUCTS, NORMS),
    gaps=(gap("overhead", "aten::mm", 1.0 * MS, 40.0),),
    copies=(copy("HtoD", "pinned", 0.4 * MS, 0.05 * MS, operator="aten::copy_"),),
    machine=A100,
)
"""A transformer in bfloat16 whose device is busy: nothing is wrong."""


def _more(*kernels: KernelUse, base: Case = HEALTHY) -> Case:
    return replace(base, kernels=(*kernels, *base.kernels))


_FULL = kernel(
    "addmm",
    24,
    9 * MS,
    dtype="float32",
    flops=0.15e12,
    bytes=1e9,
    at_roofline=7.7 * MS,
    tensor_cores=False,
    name="ampere_sgemm_128x64_tn",
    source=LINE,
)
_TF32 = kernel(
    "cudnn_convolution",
    53,
    8 * MS,
    dtype="float32",
    flops=0.9e12,
    bytes=5e9,
    at_roofline=5.9 * MS,
    tensor_cores=True,
    name="sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x32",
    source=LINE,
)
_NORMS_OF_IMAGES = kernel("cudnn_batch_norm", 53, 4 * MS, "memory", dtype="float32", bytes=7e9, at_roofline=3.5 * MS)
_ODD = kernel(
    "mm",
    2,
    6 * MS,
    dtype="bfloat16",
    flops=0.4e12,
    bytes=1e9,
    at_roofline=1.3 * MS,
    tensor_cores=True,
    dimensions=("n = 50257",),
    shapes="[[8192, 768], [768, 50257]]",
)
_SCORES = "[[16, 12, 512, 512]]"
_BMM = kernel("bmm", 24, 2 * MS, shapes="[[192, 512, 64], [192, 64, 512]]", tensor_cores=True)
_ATTENTION = (
    _BMM,
    kernel("_softmax", 12, 3 * MS, "memory", shapes="[[16, 12, 512, 512], [], []]", source=LINE),
    kernel("div", 12, 2 * MS, "memory", shapes="[[16, 12, 512, 512], []]"),
)
_CLASSIFIER = (
    kernel("bmm", 24, 2 * MS, shapes="[[192, 512, 64], [192, 64, 512]]", tensor_cores=True),
    kernel("_softmax", 2, 3 * MS, "memory", shapes="[[8192, 50304], [], []]"),
    kernel("mul", 12, 2 * MS, "memory", shapes="[[16, 512, 768], []]"),
)
_CRUMBS = tuple(kernel(name, 600, 2.4 * MS, "latency") for name in ("add_", "mul", "copy_"))
_CHAIN = ChainUse(("aten::mul", "aten::add", "aten::tanh", "aten::mul"), 24, 96, 5 * MS, 8e9, 6e9, LINE)
_ADAM = OptimizerUse("Adam", about(4 * MS), 160, 25_000_000, False, False, 1900.0, kernels=1900.0)
_RANKS = (rank(0, 4 * MS, 0.0), rank(1, 0.2 * MS, 0.9), rank(2, 3.8 * MS, 0.05), rank(3, 4.1 * MS, 0.05))
_LATE = Straggler(
    ranks=(1,),
    host="node7",
    waiting=4 * MS,
    share=0.9,
    category="input",
    excess=3.8 * MS,
    excesses=(("input", 3.8 * MS), ("python", 0.1 * MS)),
    gain=about(3.6 * MS),
    since=120,
    steadiness=0.98,
    source=SourceLine("train.py", 20, "__getitem__"),
)
_NODE = replace(_LATE, ranks=(1, 2), category="compute", excess=3.5 * MS, arithmetic=1.0, source=None)
_UNEVEN = replace(_LATE, category="compute", arithmetic=2.0)
_EXPOSED = CollectiveUse("all_reduce", "0", 12, about(7 * MS), about(5 * MS), 100e6)
_NETWORK = replace(HEALTHY, categories=categories(communication=5 * MS, overhead=1 * MS), collectives=(_EXPOSED,))
_STALL = AllocationUse("cudaFree", 3.0, about(4 * MS), about(3 * MS), LINE, (("overhead", about(3 * MS)),))
_SHORT = replace(_STALL, idle=about(0.02 * MS), within=(("overhead", about(0.02 * MS)),))
_IDLE = gap("sync", "aten::item", 4 * MS, 2.0, source=SourceLine("train.py", 55, "main"))
_LOADER = gap("input", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 6 * MS)

_TO = line("x = batch.to(device)", 15 * MS, 0.1 * MS)
_CAST = line("y = model.norm.weight.to(torch.float32)", 16 * MS, 0.1 * MS)
_PAGEABLE = replace(
    HEALTHY,
    step=replace(HEALTHY.step, mode="optimizer"),
    categories=categories(copy=13 * MS, sync=3 * MS, overhead=1 * MS),
    gaps=(gap("sync", "aten::to", 6 * MS), gap("sync", "aten::item", 2 * MS)),
    copies=(
        copy("HtoD", "pageable", 15 * MS, 15 * MS, operator="aten::to"),
        copy("DtoD", "", 1 * MS, 1 * MS, operator="aten::clone"),
    ),
    lines=(_TO, _CAST),
    sites=(SiteUse("to", "cpu", 1.0, _TO.source), SiteUse("to", "cuda", 1.0, _CAST.source)),
)
"""Of a run whose profiled steps took longer than others: copies and the waits for them took more than a usual step."""

_GUARD = CompilerEvent(SourceLine("train.py", 11, "forward"), "tensor 'x' size mismatch at index 0", 3)
_NVJET = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
_WRITTEN_NORM = WrittenNormUse(
    "RMS norm",
    (16, 559, 1024),
    49,
    784,
    3 * MS,
    3.6e9 / 4,
    ("copy", "pow", "mean", "add", "rsqrt", "mul", "copy", "mul"),
)
_SCALING = ScalingUse(about(0.1 * MS), about(0.4 * MS), about(1.5 * MS))
_CLIPPED = (
    kernel("linalg_vector_norm", 290, 0.9 * MS, "latency", at_roofline=0.1 * MS),
    kernel("mul_", 290, 0.8 * MS, "latency", at_roofline=0.2 * MS),
)
_COMPUTING = RooflineUse(14 * MS, 3 * MS, 1 * MS, 0, 3e12, 4e9)
_LATENT = replace(HEALTHY, roofline=RooflineUse(2 * MS, 3 * MS, 13 * MS, 0, 3e11, 4e8))


def _flash(size: int, duration: float, name: str) -> KernelUse:
    shapes = f"[[8, 2048, 16, {size}], [8, 2048, 16, {size}], [8, 2048, 16, {size}]]"
    return kernel("_flash_attention_forward", 24, duration, at_roofline=duration / 2, shapes=shapes, name=name)


_GRAPHS = GraphUse(2, 0, 222, 0.82, 0, 0, 14, (EagerUse("AccumulateGrad", 51, 0.5 * MS), EagerUse("AdamW.step", 1, MS)))
_BREAK = CompilerEvent(SourceLine("train.py", 14), "Unsupported Tensor.item()", 2, "Set capture_scalar_outputs.")

PLANTED_TRACES: dict[str, dict[str, Case]] = {
    "input-wait": {
        "fires-from-a-trace": replace(
            HEALTHY, categories=categories(input=6 * MS, overhead=1 * MS), gaps=(_LOADER, *HEALTHY.gaps)
        ),
        "fires-from-a-trace-of-a-cpu": Case(
            step=StepSummary(about(STEP), 5, 5, 0, "trace", "cpu"), categories=categories(input=6 * MS, overhead=1 * MS)
        ),
        "clean-in-a-trace": HEALTHY,
    },
    "host-sync": {
        "fires-from-a-trace": replace(HEALTHY, categories=categories(sync=4 * MS), gaps=(_IDLE,)),
        "clean-pageable-batch": replace(
            HEALTHY,
            categories=categories(sync=3 * MS, copy=1 * MS),
            gaps=(gap("sync", "aten::copy_", 3 * MS),),
            copies=(copy("HtoD", "pageable", 1.5 * MS, 1 * MS, operator="aten::copy_"),),
        ),
    },
    "slow-transfer": {
        "fires-from-a-trace": replace(
            HEALTHY,
            categories=categories(sync=3 * MS, copy=1 * MS),
            gaps=(gap("sync", "aten::copy_", 3 * MS),),
            copies=(copy("HtoD", "pageable", 1.5 * MS, 1 * MS, operator="aten::copy_", source=LINE),),
        ),
        "fires-pinned-from-a-trace": replace(
            HEALTHY, categories=categories(copy=2 * MS), copies=(copy("HtoD", "pinned", 2.2 * MS, 2 * MS),)
        ),
        "fires-in-a-run-on-a-line-of-no-role": _PAGEABLE,
        "fires-in-a-run-on-a-line-that-was-seen-to-call": replace(
            _PAGEABLE, sites=(), lines=(line("x = batch.to(device)", 15 * MS, 0.1 * MS, calls="torch.Tensor.to"),)
        ),
        "fires-in-a-run-whose-lines-were-not-timed": replace(_PAGEABLE, lines=()),
        "clean-hidden": replace(HEALTHY, copies=(copy("HtoD", "pinned", 4 * MS, 0.1 * MS),)),
        "clean-in-steps-without-a-copy": replace(_PAGEABLE, categories=categories(overhead=1.0 * MS, python=8 * MS)),
    },
    "overhead-bound": {
        "fires-on-a-device": replace(
            HEALTHY,
            categories=categories(overhead=11 * MS),
            kernels=(kernel("add_", 1800, 3 * MS, "latency"), kernel("mm", 300, 2 * MS, "latency")),
            gaps=(gap("overhead", "aten::add_", 8 * MS, 1500.0, source=LINE), gap("overhead", "", 3 * MS, 200.0)),
        ),
        "fires-where-breaks-are-known": replace(
            HEALTHY,
            categories=categories(overhead=11 * MS),
            kernels=(kernel("add_", 1800, 3 * MS, "latency"),),
            step=replace(HEALTHY.step, compiled=True),
            compiler=CompilerUse("compiled", breaks=(_BREAK,)),
        ),
        "fires-beside-graphs": replace(
            HEALTHY,
            categories=categories(overhead=11 * MS),
            kernels=(kernel("mm", 222, 3 * MS, "latency"), kernel("nll_loss_forward", 14, 1 * MS, "latency")),
            step=replace(HEALTHY.step, compiled=True, graphs=_GRAPHS),
        ),
        "fires-beside-free-memory": replace(
            HEALTHY,
            categories=categories(overhead=11 * MS),
            kernels=(kernel("add_", 1800, 3 * MS, "latency"),),
            memory=MemoryUse("cuda", 2 << 30, 80 << 30),
        ),
        "fires-on-one-stall": replace(
            HEALTHY,
            step=replace(HEALTHY.step, duration=about(400 * MS)),
            categories=categories(400 * MS, overhead=380 * MS),
            gaps=(gap("overhead", "cudaMalloc", 375 * MS),),
        ),
        "fires-on-several-stalls": replace(
            HEALTHY,
            step=replace(HEALTHY.step, duration=about(400 * MS)),
            categories=categories(400 * MS, overhead=380 * MS),
            gaps=(gap("overhead", "aten::mm", 130 * MS), gap("overhead", "aten::conv2d", 110 * MS)),
        ),
        "clean-a-few-kernels": replace(
            HEALTHY, categories=categories(overhead=11 * MS), kernels=(replace(_FULL, calls=4.0),), machine=None
        ),
        "clean-on-a-device": HEALTHY,
    },
    "recompilation": {
        "fires-from-a-trace": replace(HEALTHY, categories=categories(compile=8 * MS)),
        "fires-with-the-guards": replace(
            HEALTHY, categories=categories(compile=8 * MS), compiler=CompilerUse("compiled", recompilations=(_GUARD,))
        ),
        "clean-without-a-record": replace(
            HEALTHY, step=replace(HEALTHY.step, mode="optimizer"), categories=categories(compile=8 * MS)
        ),
        "clean-compiled-once": replace(HEALTHY, compilations=(CompilationUse(LINE, 10**9, False),)),
    },
    "graph-break": {
        "fires": replace(HEALTHY, compiler=CompilerUse("compiled", breaks=(_BREAK,))),
        "clean": replace(HEALTHY, compiler=CompilerUse("compiled", recompilations=(_GUARD,))),
        "clean-in-torchs-own-code": replace(
            HEALTHY,
            compiler=CompilerUse(
                "compiled", breaks=(replace(_BREAK, source=SourceLine("/lib/site-packages/torch/_dynamo/x.py", 67)),)
            ),
        ),
    },
    "recompile-limit": {
        "fires": replace(
            HEALTHY,
            compiler=CompilerUse(
                "compiled",
                recompilations=(_GUARD,),
                limits=(replace(_GUARD, reason="Dynamo recompile limit exceeded"),),
            ),
        ),
        "clean": replace(HEALTHY, compiler=CompilerUse("compiled", recompilations=(_GUARD,))),
    },
    "tiny-kernels": {
        "fires": replace(HEALTHY, kernels=_CRUMBS, gaps=()),
        "clean": HEALTHY,
        "clean-the-host-is-slower": replace(HEALTHY, kernels=_CRUMBS, categories=categories(overhead=11 * MS)),
        "clean-beside-large-ones": _more(kernel("add_", 150, 0.5 * MS, "latency")),
    },
    "allocator-stalls": {
        "fires": replace(HEALTHY, categories=categories(overhead=3.5 * MS), allocations=(_STALL,)),
        "clean": replace(HEALTHY, allocations=(_SHORT,)),
    },
    "memory-bound-pointwise": {
        "fires-in-chains": replace(_more(kernel("mul", 48, 3 * MS, "memory")), chains=(_CHAIN,)),
        "clean-short-chains": replace(
            _more(), chains=(replace(_CHAIN, duration=0.2 * MS, saved=4e6, bytes=16e6, calls=1.0),)
        ),
    },
    "copies-and-casts": {
        "fires-casts-on-a-device": _more(
            kernel("copy_", 200, 4 * MS, "memory", name="at::native::bfloat16_copy_kernel_cuda", bytes=6e9)
        ),
        "clean-on-a-device": _more(kernel("copy_", 4, 0.3 * MS, "memory")),
    },
    "tensor-cores-unused": {
        "fires": _more(_FULL),
        "fires-without-tf32": _more(_FULL, base=replace(HEALTHY, machine=V100)),
        "clean": HEALTHY,
        "clean-name-does-not-tell": _more(replace(_FULL, tensor_cores=None)),
        "clean-no-matrix-units": _more(_FULL, base=replace(HEALTHY, machine=replace(A100, rates=A100.rates[:1]))),
        "clean-as-many-bytes-as-it-can": _more(replace(_FULL, bytes=18e9)),
    },
    "single-precision": {
        "fires": _more(_TF32, _NORMS_OF_IMAGES),
        "fires-in-tf32-by-the-names-of-kernels": _more(replace(_TF32, dtype="tf32"), _NORMS_OF_IMAGES),
        "fires-where-bytes-bound-it": _more(replace(_TF32, bytes=15e9)),
        "clean": HEALTHY,
        "clean-in-bfloat16": _more(replace(_TF32, dtype="bfloat16"), replace(_NORMS_OF_IMAGES, dtype="bfloat16")),
        "clean-no-units-used": _more(_FULL),
        "clean-without-bfloat16": _more(_TF32, base=replace(HEALTHY, machine=V100)),
        "clean-nothing-multiplies": _more(_NORMS_OF_IMAGES),
        "clean-a-small-part": _more(replace(_TF32, duration=0.5 * MS), replace(_NORMS_OF_IMAGES, duration=0.4 * MS)),
    },
    "awkward-dimensions": {
        "fires": _more(_ODD),
        "clean": HEALTHY,
        "clean-near-its-upper bound": _more(replace(_ODD, at_roofline=5.9 * MS)),
        "clean-in-float32": _more(replace(_ODD, dtype="float32", tensor_cores=False)),
    },
    "unflashed-attention": {
        "fires": _more(*_ATTENTION),
        "clean": HEALTHY,
        "clean-softmax-of-a-classifier": _more(*_CLASSIFIER),
        "clean-without-shapes": _more(*(replace(use, shapes="") for use in _ATTENTION)),
    },
    "exposed-copies": {
        "fires": replace(
            HEALTHY,
            categories=categories(copy=2 * MS),
            copies=(copy("DtoH", "pageable", 2.2 * MS, 2 * MS, operator="aten::copy_"),),
        ),
        "fires-within-the-device": replace(
            HEALTHY, categories=categories(copy=2 * MS), copies=(copy("DtoD", "", 2.2 * MS, 2 * MS),)
        ),
        "fires-out-of-buckets": replace(
            HEALTHY,
            categories=categories(copy=2 * MS),
            copies=(copy("DtoD", "", 2.2 * MS, 2 * MS, operator=BUCKET_TO_GRADIENT),),
        ),
        "fires-on-launches-out-of-buckets": replace(
            HEALTHY,
            categories=categories(overhead=3 * MS, copy=0.1 * MS),
            copies=(copy("DtoD", "", 0.2 * MS, 0.1 * MS, operator=BUCKET_TO_GRADIENT),),
            gaps=(gap("overhead", BUCKET_TO_GRADIENT, 2.5 * MS, 160.0),),
        ),
        "clean": replace(HEALTHY, copies=(copy("DtoH", "pinned", 2 * MS, 0.01 * MS),)),
    },
    "dominant-operator": {
        "fires": replace(
            HEALTHY,
            kernels=(kernel("index_put_", 4, 12 * MS, "memory", at_roofline=1 * MS, bytes=2e9, source=LINE), NORMS),
        ),
        "fires-as-a-note": replace(
            HEALTHY,
            categories=categories(overhead=12 * MS),
            kernels=(kernel("my_op", 4, 6 * MS, "unmodelled"), NORMS),
        ),
        "clean": replace(
            HEALTHY, kernels=(replace(HALF_PRODUCTS, duration=2 * MS, at_roofline=1.8 * MS), *_CLASSIFIER)
        ),
        "clean-idle-device": replace(HEALTHY, kernels=(kernel("my_op", 4, 2 * MS, "unmodelled"),)),
        "clean-a-compiled-region": replace(
            HEALTHY, kernels=(KernelUse("gemm", "## Call CompiledFxGraph f2d ##", 90, 14 * MS, "unmodelled"), NORMS)
        ),
    },
    "compute-share": {
        "fires": HEALTHY,
        "fires-on-convolutions": replace(
            HEALTHY,
            kernels=(
                kernel("cudnn_convolution", 53, 8 * MS, name="implicit_convolve_sgemm", source=LINE),
                kernel("convolution_backward", 53, 6 * MS, name="cudnn::cnn::wgrad_alg0_engine_NCHW"),
                NORMS,
            ),
            machine=V100,
        ),
        "fires-in-half-by-the-names-of-kernels": replace(
            HEALTHY, kernels=(kernel("cudnn_convolution", 53, 14 * MS, name="ampere_fp16_s16816fprop_nhwc"), NORMS)
        ),
        "clean-an-idle-device": replace(HEALTHY, categories=categories(overhead=12 * MS)),
        "clean-no-kernel-of-it": replace(HEALTHY, kernels=(), operators=()),
    },
    "single-tensor-optimizer": {
        "fires-from-a-trace": replace(HEALTHY, optimizers=(_ADAM,)),
        "clean-foreach-in-a-trace": replace(HEALTHY, optimizers=(replace(_ADAM, foreach=True, kernels=40.0),)),
        "clean-a-trace-that-does-not-tell": replace(HEALTHY, optimizers=(replace(_ADAM, foreach=None),)),
    },
    "optimizer-share": {
        "clean-unknown-size": replace(
            HEALTHY, optimizers=(replace(_ADAM, foreach=True, elements=0, parameters=0, kernels=40.0),)
        ),
    },
    "garbage-collection": {
        "fires-from-a-trace": replace(
            HEALTHY, categories=categories(python=3.2 * MS), garbage=GarbageUse(about(3 * MS), 0.4)
        ),
    },
    "exposed-communication": {
        "fires-on-a-cpu": replace(_NETWORK, collectives=()),
        "fires-on-a-line-that-exchanges-by-itself": replace(
            _NETWORK,
            collectives=(),
            step=replace(_NETWORK.step, device="cpu"),
            lines=(
                line(
                    "dist.all_reduce(metric)",
                    3 * MS,
                    0.1 * MS,
                    hits=200.0,
                    calls="torch.zeros torch.distributed.distributed_c10d.all_reduce",
                ),
            ),
        ),
        "fires": _NETWORK,
        "clean": replace(_NETWORK, categories=categories(communication=0.1 * MS, overhead=1 * MS)),
    },
    "straggler": {
        "fires": replace(_NETWORK, ranks=_RANKS, rank=0, straggler=_LATE),
        "fires-where-profiled-steps-were-slower": replace(
            _NETWORK, ranks=_RANKS, rank=0, straggler=replace(_LATE, waiting=30 * MS, gain=about(29 * MS))
        ),
        "fires-for-a-node": replace(_NETWORK, ranks=_RANKS, rank=0, straggler=_NODE),
        "fires-for-an-uneven-batch": replace(_NETWORK, ranks=_RANKS, rank=1, straggler=_UNEVEN),
        "clean": replace(HEALTHY, ranks=tuple(rank(number, 0.3 * MS, 0.25) for number in range(4))),
        "clean-late-in-turns": replace(HEALTHY, ranks=tuple(rank(number, 4 * MS, 0.25) for number in range(4))),
        "clean-one-of-two-by-chance": replace(HEALTHY, ranks=(rank(0, 3 * MS, 0.4), rank(1, 1 * MS, 0.6))),
        "clean-last-but-nobody-waits": replace(
            HEALTHY, ranks=(rank(0, 40 * US, 0.02), rank(1, 1 * US, 0.95), rank(2, 40 * US, 0.03))
        ),
    },
    "missing-no-sync": {
        "fires": replace(_NETWORK, gradients=GradientUse(4.0, 4.0, 5.0, 25e6, NOTHING)),
        "fires-with-the-line-of-backward": replace(
            _NETWORK,
            gradients=GradientUse(4.0, 4.0, 5.0, 25e6, NOTHING),
            lines=(
                line(
                    "loss(model(batch)).backward()",
                    9 * MS,
                    0.1 * MS,
                    role="forward",
                    calls="torch._tensor.Tensor.backward",
                ),
            ),
        ),
        "clean-with-no-sync": replace(_NETWORK, gradients=GradientUse(4.0, 1.0, 5.0, 25e6, NOTHING)),
        "clean-with-no-sync-of-two": replace(_NETWORK, gradients=GradientUse(2.0, 1.0, 5.0, 25e6, NOTHING)),
        "fires-for-most-of-them": replace(_NETWORK, gradients=GradientUse(8.0, 5.0, 5.0, 25e6, NOTHING)),
        "clean-without-accumulation": replace(_NETWORK, gradients=GradientUse(1.0, 1.0, 5.0, 25e6, NOTHING)),
    },
    "small-buckets": {
        "fires": replace(_NETWORK, gradients=GradientUse(1.0, 1.0, 60.0, 12e6, NOTHING)),
        "clean-usual-buckets": replace(_NETWORK, gradients=GradientUse(1.0, 1.0, 9.0, 50e6, NOTHING)),
        "clean-shapes-not-recorded": replace(_NETWORK, gradients=GradientUse(1.0, 1.0, 60.0, 0.0, NOTHING)),
    },
    "unused-parameter-search": {
        "fires": replace(HEALTHY, gradients=GradientUse(1.0, 1.0, 5.0, 25e6, about(1.5 * MS))),
        "clean": replace(HEALTHY, gradients=GradientUse(1.0, 1.0, 5.0, 25e6, NOTHING)),
        "clean-a-small-graph": replace(HEALTHY, gradients=GradientUse(1.0, 1.0, 5.0, 25e6, about(0.1 * MS))),
    },
    "rank-imbalance": {
        "fires": replace(_NETWORK, ranks=tuple(rank(number, 4 * MS, 0.25) for number in range(4)), rank=0),
        "clean-a-straggler": replace(_NETWORK, ranks=_RANKS, rank=0, straggler=_LATE),
        "clean-one-rank-while-profiled": replace(
            _NETWORK, ranks=(rank(0, 6 * MS, 0.02), rank(1, 0.5 * MS, 0.98)), rank=0
        ),
        "clean-little-waiting": replace(_NETWORK, ranks=tuple(rank(number, 1 * MS, 0.25) for number in range(4))),
    },
    "pipeline-bubble": {
        "fires": replace(
            _NETWORK, collectives=(CollectiveUse("recv 0<-1", "pp", 16, about(5 * MS), about(4 * MS), 8e6, size=4),)
        ),
        "clean-hidden": replace(
            _NETWORK, collectives=(CollectiveUse("recv 0<-1", "pp", 16, about(5 * MS), about(0.1 * MS), 8e6),)
        ),
        "clean-no-stages": _NETWORK,
        "clean-sends-of-an-all-to-all": replace(
            _NETWORK, collectives=(CollectiveUse("SendRecv", "", 16, about(5 * MS), about(4 * MS)),)
        ),
    },
    "device-not-traced": {
        "fires": Case(
            step=StepSummary(about(STEP), 5, 5, 0, "trace", "cpu", untraced=821.0),
            categories=categories(overhead=6 * MS),
        ),
        "clean": HEALTHY,
        "clean-cpu": Case(
            step=StepSummary(about(STEP), 5, 5, 0, "trace", "cpu"), categories=categories(overhead=1 * MS)
        ),
    },
    "few-tiles": {
        "fires": _more(kernel("mm", 10, 6 * MS, waves=8 / 132, at_roofline=0.4 * MS)),
        "fires-a-little-over-a-wave": _more(kernel("mm", 10, 9 * MS, waves=1.1, at_roofline=3 * MS, name=_NVJET)),
        "clean-blocks-that-overlap": _more(kernel("mm", 10, 6 * MS, waves=1.1, at_roofline=3 * MS)),
        "clean-near-its-peak": _more(kernel("mm", 10, 6 * MS, waves=0.7, at_roofline=5.5 * MS)),
        "clean-full-waves": _more(kernel("mm", 10, 6 * MS, waves=3.9, at_roofline=3 * MS, name=_NVJET)),
        "clean": HEALTHY,
    },
    "padded-heads": {
        "fires": _more(_flash(80, 6 * MS, name="void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4> >")),
        "fires-without-a-name": replace(
            _more(_flash(192, 9 * MS, name="attn_fwd.kd")), machine=replace(A100, name="AMD Instinct MI300X")
        ),
        "clean-fits": _more(
            _flash(128, 6 * MS, name="void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4> >")
        ),
        "clean-name-does-not-tell": _more(_flash(80, 6 * MS, name="cudnn_sdpa")),
        "clean": HEALTHY,
    },
    "written-out-norm": {
        "fires": replace(HEALTHY, written_norms=(_WRITTEN_NORM,)),
        "fires-with-a-line": replace(HEALTHY, written_norms=(replace(_WRITTEN_NORM, source=LINE),)),
        "clean": HEALTHY,
        "clean-little-work": replace(HEALTHY, written_norms=(replace(_WRITTEN_NORM, duration=0.2 * MS),)),
    },
    "room-for-batch": {
        "fires": replace(
            _LATENT, memory=MemoryUse("cuda", 2 << 30, 80 << 30), categories=categories(overhead=1.0 * MS)
        ),
        "clean-memory-is-used": replace(_LATENT, memory=MemoryUse("cuda", 60 << 30, 80 << 30)),
        "clean-large-kernels": replace(HEALTHY, memory=MemoryUse("cuda", 2 << 30, 80 << 30), roofline=_COMPUTING),
        "clean": HEALTHY,
    },
    "loss-scaling": {
        "fires": replace(HEALTHY, scaling=_SCALING, categories=categories(sync=2 * MS, overhead=1.0 * MS)),
        "fires-with-lost-updates": replace(
            HEALTHY,
            scaling=_SCALING,
            step=replace(HEALTHY.step, scaled=100, skipped=3),
            categories=categories(sync=2 * MS, overhead=1.0 * MS),
        ),
        "clean-without-units-for-bfloat16": replace(
            HEALTHY, scaling=_SCALING, machine=replace(A100, rates=(("float32", 15e12), ("float16", 125e12)))
        ),
        "clean": HEALTHY,
    },
    "single-tensor-clipping": {
        "fires": replace(
            HEALTHY,
            categories=categories(overhead=2.5 * MS),
            kernels=(*_CLIPPED, *HEALTHY.kernels),
            gaps=(
                gap("overhead", "aten::linalg_vector_norm", 1.5 * MS, 290.0),
                gap("overhead", "aten::mul_", 1.0 * MS, 290.0),
            ),
        ),
        "clean": HEALTHY,
        "clean-batched": _more(
            kernel("_foreach_norm", 8, 1 * MS, "latency"), kernel("linalg_vector_norm", 1, 0.01 * MS)
        ),
    },
    "unrecorded-work": {
        "fires": replace(HEALTHY, categories=categories(unrecorded=9 * MS)),
        "clean": HEALTHY,
        "clean-a-little": replace(HEALTHY, categories=categories(unrecorded=0.5 * MS)),
    },
    "graph-capture": {
        "fires": replace(HEALTHY, step=replace(HEALTHY.step, graphs=GraphUse(0, 0, 0, 0, 1, 0.9 * STEP))),
        "clean": HEALTHY,
        "clean-short": replace(HEALTHY, step=replace(HEALTHY.step, graphs=GraphUse(0, 0, 0, 0, 1, 0.01 * STEP))),
    },
    "graph-launches": {
        "fires": replace(HEALTHY, step=replace(HEALTHY.step, graphs=GraphUse(25, 0, 425, 0.96, 0, 0))),
        "fires-without-kernels": replace(HEALTHY, step=replace(HEALTHY.step, graphs=GraphUse(14, 14, 0, 0, 0, 0))),
        "clean": HEALTHY,
        "clean-few-kernels": replace(HEALTHY, step=replace(HEALTHY.step, graphs=GraphUse(1, 0, 3, 0.01, 0, 0))),
    },
    "few-steps": {
        "fires-one-step-of-a-trace": replace(
            HEALTHY, step=replace(HEALTHY.step, steady=1, total=1), categories=categories(overhead=1 * MS)
        ),
        "clean-in-a-trace": HEALTHY,
    },
}
"""By rule, then by name, as `planted.PLANTED`."""

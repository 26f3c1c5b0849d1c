"""Meaning of kernel names for how a kernel computes.

Vendors' names follow habits, not a grammar: None means that the name does not say."""

from __future__ import annotations

import re

import numpy as np

from steptime.analysis.op_cost.call import Call, OpCost, parse
from steptime.analysis.op_cost.layers import from_output
from steptime.analysis.op_cost.op_cost import Modelled
from steptime.arrays import Few, Int64, Numbers, distinct
from steptime.trace.links import UNKNOWN, Links
from steptime.trace.table import ABSENT, Trace
from steptime.trace.vendors import matching

TENSOR_CORES = re.compile(
    r"tensorop|[shid](884|1688|16816|161616|16832|8816|32816)(gemm|cudnn|fprop|dgrad|wgrad|_|$)"
    r"|hmma|imma|wgmma|tcgen05|TmaGmma|MmaTensorOp|xmma_.*(tf32|bf16|f16|i8|e4m3|e5m2)|nvjet_|flash_(fwd|bwd|attn)|FlashAttn"
    r"|fmha_cutlass[FB]_(f16|bf16)|fmha_v\d|fmhaSm\d|sdpa_sm\d+_flash|native_sdpa"
    r"|Cijk_.*_MI(4|16|32)x|mfma|xdl|igemm_\w*gtcx|wmma|ck_tile.*Fmha"
)
"""NVIDIA: instructions of Tensor Cores (s1688, h16816 …) and libraries that use nothing else (nvjet, flash attention).
AMD: Tensile's matrix instruction (MI16x16), composable kernel's "xdl", MIOpen's "gtcx" (x: with xdlops)."""
VECTOR_UNIT = re.compile(
    r"simt|(maxwell|volta|turing|ampere)_(sgemm|dgemm|cgemm|gcgemm|scudnn|dcudnn)|xmma_.*f32f32_f32f32_f32"
    r"|convolve_sgemm|sgemm_largek|gem[mv]SN_|gemvNSP|gemv2|gemvx|gemmk1_|\bdot_kernel|winograd|Winograd|fft[12]d|FFT"
    r"|wgrad_alg0_engine|dgrad_engine|dgrad2d|conv_depthwise|DepthwiseConv|depthwise|Cijk_|miopenSp3|_gtc_|sgemm_32x32"
)
"""Kernels of the same families that compute on the ordinary units."""
MATMULS = re.compile(
    r"(?<!fb)gemm|gemv|xmma|nvjet|cutlass(?!::(bfloat|half))|fprop|wgrad|dgrad|conv(olve|olution|2d|3d|_|\d)|Conv(?!ert)|scudnn|winograd|flash|fmha|sdpa"
    r"|attn|attention|Cijk_|mfma|xdl|miopenSp3|dot_kernel|^bmm|matmul|triton_tem|RNN|LSTM|elemWiseRNN|depthwise"
)
HELPING = re.compile(
    r"[Rr]educ|[Ss]plit[Kk]\w*[Rr]educe|compute\w*Offsets|ToN[hc][wh]|n[ch][hw][wc]To|im2col|col2im|[Tt]ranspos"
    r"|winograd(Forward|Wgrad)(Data|Filter|Output|Delta)|generateWinograd|scalePackedTensor|SubTensorOp|convert_dq"
    r"|dot_do_o|elementwise|epilogue::impl|memset|fillBuffer|convert_|ReduceSplitK"
)
"""Kernels that help such operators (layout, gather, sum) while another one multiplies. Matched against the function's
name only, since template arguments of multiplying kernels contain layouts and epilogues too."""
FUNCTION = re.compile(r"[^<(]*(<[^<]*ReduceSplitK)?")
TF32 = re.compile(r"tf32", re.IGNORECASE)
AMD = re.compile(r"Cijk_|xdl|gtcx|mfma|ck_tile|miopen")
ELEMENT = re.compile(r"OpaqueType<(\d+)|\b(c10::)?(BFloat16|Half|double|float|__nv_bfloat16|__half|bool|long|int)\b")
ITEMS = {"BFloat16": 2, "Half": 2, "__nv_bfloat16": 2, "__half": 2, "double": 8, "float": 4, "bool": 1, "long": 8}


def tensor_cores(name: str) -> bool | None:
    """True if a kernel multiplies on Tensor Cores or matrix cores, False if on ordinary units; None if its name does
    not say."""
    if TENSOR_CORES.search(name):
        return True
    return False if VECTOR_UNIT.search(name) else None


def multiplies(name: str) -> bool:
    """True for a kernel that does the FLOPs of a matmul, a convolution or attention."""
    function = FUNCTION.match(name.replace("(anonymous namespace)", ""))
    return MATMULS.search(name) is not None and HELPING.search(function[0] if function else name) is None


def dtype(name: str, of_inputs: str) -> str:
    """dtype in which a kernel multiplies, by its name. of_inputs: the inputs' dtype (NVIDIA rounds float32 to TF32)."""
    if of_inputs != "float32" or AMD.search(name):
        return of_inputs
    return "tf32" if TF32.search(name) or tensor_cores(name) else of_inputs


def list_item(name: str) -> int:
    """Bytes per element of the tensors in a kernel over tensor lists; 4 if its name does not say."""
    found = ELEMENT.search(name)
    if found is None:
        return 4
    return int(found[1]) if found[1] else ITEMS.get(found[3], 4)


FORWARD = {f"aten::{name}" for name in ("cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "convolution")}
GRADIENT_AT = {"aten::convolution_backward": 0, "aten::cudnn_convolution_backward": 1}
"""Position of the output's gradient among an operator's arguments."""
WEIGHT_GRADIENT = "aten::cudnn_convolution_backward_weight"
WITHOUT_SETTINGS = {*FORWARD, WEIGHT_GRADIENT}
DEPTH = 4
"""Levels of nesting: conv2d, convolution, _convolution, cudnn_convolution. Backward may belong to the outermost."""


def complete(trace: Trace, links: Links, operator: Numbers, modelled: Modelled) -> Modelled:
    """Costs of calls, completed for convolutions of which the trace holds shapes but no settings (before torch 2.1).
    Without strides the output's shape is unknown, but the gradient in backward has it; a weight's gradient takes its
    shapes from the forward operator. operator: row of the call for each entry of `modelled`, -1 for none."""
    missing = np.array([work is None for work in modelled.works], np.bool_)[modelled.kind] & (operator >= 0)
    convolving = matching(trace, WITHOUT_SETTINGS.__contains__)
    open_ended = np.flatnonzero(missing & np.append(convolving, False)[operator])
    if not len(open_ended):
        return modelled
    rows = operator[open_ended]
    partner = np.where(
        matching(trace, WEIGHT_GRADIENT.__eq__)[rows], links.forward[rows], _backwards(trace, links, rows)
    )
    known = partner != UNKNOWN
    rows, partner, open_ended = rows[known], partner[known].astype(np.int64), open_ended[known]
    events = trace.events
    first, kind = distinct(events.name[rows], events.shapes[rows], events.shapes[partner])
    works = tuple(_work(trace, int(rows[one]), int(partner[one])) for one in first)
    kinds = modelled.kind.copy()
    kinds[open_ended] = len(modelled.works) + kind
    return Modelled((*modelled.works, *works), kinds)


def _backwards(trace: Trace, links: Links, rows: Numbers) -> Int64:
    """Backward operator of the convolution around each row; UNKNOWN if there is none."""
    backward = np.flatnonzero(matching(trace, GRADIENT_AT.__contains__))
    backward = backward[links.forward[backward] != UNKNOWN]
    forward = links.forward[backward]
    order = np.argsort(forward, kind="stable")
    last = np.ones(len(order), np.bool_)  # of several backwards of one
    last[:-1] = np.diff(forward[order]) != 0
    chosen = order[last]
    of_forward = Few(len(trace.events), UNKNOWN, forward[chosen], backward[chosen])
    found, around = of_forward[rows], rows
    for _ in range(DEPTH):
        around = np.where(around == UNKNOWN, UNKNOWN, links.parent[around])
        found = np.where((found == UNKNOWN) & (around != UNKNOWN), of_forward[around], found)
    return found


def _work(trace: Trace, row: int, partner: int) -> OpCost | None:
    """Cost of an operator with the shapes of its partner in the other direction; None if they do not fit."""
    name = trace.symbols[trace.events.name[row]]
    try:
        own, other = _call(trace, row), _call(trace, partner)
        if name == WEIGHT_GRADIENT:
            return from_output(other.tensor(0), other.tensor(1), own.tensor(1))
        gradient = other.tensor(GRADIENT_AT[trace.symbols[trace.events.name[partner]]])
        return from_output(own.tensor(0), own.tensor(1), gradient)
    except (LookupError, ValueError, TypeError, ZeroDivisionError):
        return None


def _call(trace: Trace, row: int) -> Call:
    shapes, types = int(trace.events.shapes[row]), int(trace.events.dtypes[row])
    if ABSENT in (shapes, types):
        raise LookupError("no shapes")
    return parse(trace.shapes[shapes], trace.dtypes[types], "")

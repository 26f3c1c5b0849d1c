"""RM308: attention in a fused kernel."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

HALF = frozenset({"float16", "bfloat16", "half"})
"""Formats that the flash kernel takes; the memory-efficient one takes float32, too."""
PINNED = """from torch.nn.attention import SDPBackend, sdpa_kernel

with sdpa_kernel(SDPBackend.{backend}):
    output = model(batch)"""
WRITTEN = """# softmax(q @ k.transpose(-2, -1) / sqrt(d) + mask) @ v  ->
torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)"""
BACKENDS = {"efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION"}


@remedy("RM308", "attention-backend", addresses={"ST405"}, promise=Promise.SAME_CURVE, risk=3, low_precision=True)
def attention_backend(case: Case) -> Iterator[Option]:
    """Attention in a fused kernel

    What it changes
        scaled_dot_product_attention may use one fused kernel only (memory-efficient; flash where the job computes in
        half precision), instead of choosing, which ends at the slow path when an argument does not fit. Where the
        attention is written out (a product, a softmax, a product), only you can replace it by that function.

    What it promises
        A curve as another seed would give: sums are taken in another order, and dropout masks land elsewhere.

    What it should gain
        Most of the passes over the weights, which the finding has as its time at stake; it is not predicted closer.

    When to leave it
        When the weights themselves are needed. When the kernel refuses an argument (a mask of its own, a head size),
        the trial fails and says so.
    """
    if not case.step.device.startswith("cuda"):
        return
    formats = {use.number_format for use in case.kernels}
    for backend in ("efficient", *(["flash"] if formats & HALF else [])):
        change = Change("sdpa-backend", arguments=(("backend", backend),))
        snippet = Snippet(PINNED.format(backend=BACKENDS[backend]))
        yield Option(f"attention by the {backend} kernel", (change,), None, snippet, "where dropout masks land")
    advice = "Where attention is written out, call scaled_dot_product_attention."
    yield Option("scaled_dot_product_attention", edit=Snippet(WRITTEN), advice=advice)

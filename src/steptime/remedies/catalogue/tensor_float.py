"""RM302: TensorFloat-32 for float32 products."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled, named
from steptime.remedies.remedy import Option, Promise, StatementEdit, remedy

LIKELY, SURE = 0.5, 0.1
"""As for bfloat16: products reach less of a higher ceiling."""


@remedy("RM302", "tensor-float", addresses={"ST403"}, promise=Promise.SAME_CURVE, risk=1, low_precision=True)
def tensor_float(case: Case) -> Option | None:
    """TensorFloat-32 for products in float32

    What it changes
        torch.set_float32_matmul_precision("high") before training: matrix units take float32 products with 10 bits of
        mantissa. CUDA devices from Ampere on.

    What it promises
        A curve as another seed would give: range and storage stay those of float32, products lose bits.

    What it should gain
        The compute account by the ratio of the two rates of the device; half of that is likely.

    When to leave it
        When products must be exact to float32 (physics, solvers).
    """
    if not case.step.device.startswith("cuda"):
        return None
    if case.settings is not None and case.settings.matmul_precision != "highest":
        return None
    rates = dict(case.machine.rates) if case.machine is not None else {}
    fast, full = rates.get("tf32"), rates.get("float32")
    compute = named(case.accounts, "compute")
    gain = compute.duration.value * (1 - full / fast) if compute and fast and full and fast > full else None
    saving = modelled(LIKELY * gain, SURE * gain, gain, case.step.steady) if gain is not None else None
    statement = 'torch.set_float32_matmul_precision("high")'
    change = Change("matmul-precision", arguments=(("precision", "high"),))
    return Option(statement.removeprefix("torch."), (change,), saving, StatementEdit(statement, "torch"))

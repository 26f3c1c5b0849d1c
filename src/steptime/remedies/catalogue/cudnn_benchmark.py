"""RM404: convolutions by the algorithm that is fastest here."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import Option, Promise, StatementEdit, remedy

LEAST_SHARE = 0.2
"""Of the step in convolutions."""
LIKELY, MOST = 0.1, 0.4
"""Of their time: the heuristic is mostly right, and now and then far off."""


@remedy("RM404", "cudnn-benchmark", addresses={"ST402", "ST403", "ST404", "ST407"}, promise=Promise.SAME_CURVE, risk=1)
def cudnn_benchmark(case: Case) -> Option | None:
    """Convolutions by the algorithm that is fastest here

    What it changes
        torch.backends.cudnn.benchmark = True: cuDNN tries its algorithms for every new shape and keeps the fastest,
        instead of choosing by a rule. CUDA devices only.

    What it promises
        A curve as another seed would give: algorithms sum in different orders, and the choice may differ from run to
        run.

    What it should gain
        A tenth of the time of convolutions is likely; the first steps become slower.

    When to leave it
        When shapes change from step to step: each new one is tried out, which takes longer than a step.
    """
    settings = case.settings
    if not case.step.device.startswith("cuda") or settings is None or settings.cudnn_benchmark:
        return None
    if settings.deterministic:
        return None
    device = sum(use.duration for use in case.kernels if "convol" in use.operator)
    spent = device or sum(use.duration for use in case.operators if "convol" in use.name)
    if spent < LEAST_SHARE * case.step.duration.value:
        return None
    statement = "torch.backends.cudnn.benchmark = True"
    saving = modelled(LIKELY * spent, 0.0, MOST * spent, case.step.steady)
    return Option("cudnn.benchmark", (Change("cudnn-benchmark"),), saving, StatementEdit(statement, "torch"))

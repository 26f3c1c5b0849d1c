"""RM501: without anomaly detection."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, SwitchEdit, remedy


@remedy("RM501", "no-anomaly-detection", addresses={"ST601"}, promise=Promise.SAME_BITS, risk=1)
def no_anomaly_detection(case: Case) -> Option | None:
    """Autograd's anomaly detection switched off

    What it changes
        torch.autograd.set_detect_anomaly(True) and the context manager of that name switch nothing on.

    What it promises
        Equal losses: it only watches.

    What it should gain
        Half to nine tenths of the step, on models of many small operators; it is not predicted closer than the finding
        does.

    When to leave it
        While you are hunting a NaN.
    """
    if case.settings is None or not case.settings.detect_anomaly:
        return None
    edit = SwitchEdit("set_detect_anomaly", "torch.autograd.set_detect_anomaly(False)", others=("detect_anomaly",))
    return Option("no anomaly detection", (Change("anomaly-off"),), None, edit)

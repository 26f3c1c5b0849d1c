"""RM502: without deterministic algorithms."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, SwitchEdit, remedy


@remedy("RM502", "not-deterministic", addresses={"ST603"}, promise=Promise.SAME_CURVE, risk=2)
def not_deterministic(case: Case) -> Option | None:
    """Deterministic algorithms switched off

    What it changes
        Requests for torch.use_deterministic_algorithms and cudnn.deterministic are passed over.

    What it promises
        A curve as another seed would give: sums are taken in another order, which may differ from run to run.

    What it should gain
        Part of the time of the operators that take a slower way under it; the finding names them.

    When to leave it
        When the run must repeat bit by bit.
    """
    if case.settings is None or not case.settings.deterministic:
        return None
    name = "use_deterministic_algorithms"
    others = ("set_deterministic_debug_mode",)
    edit = SwitchEdit(name, f"torch.{name}(False)", assigned="cudnn.deterministic", others=others)
    return Option("not deterministic", (Change("deterministic-off"),), None, edit)

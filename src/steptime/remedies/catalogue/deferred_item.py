"""RM106: values read from the device less often (advice)."""

from __future__ import annotations

from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

EXAMPLE = """total = torch.zeros((), device=device)
for step, (images, labels) in enumerate(loader):
    ...
    total += loss.detach()          # stays on the device
    if step % 50 == 0:
        print(total.item() / 50)    # one wait in 50 steps
        total.zero_()"""


@remedy("RM106", "deferred-item", addresses={"ST303"}, promise=Promise.SAME_BITS, risk=2)
def deferred_item(case: Case) -> Option | None:
    """Values read from the device less often

    What it changes
        Nothing by itself: only you know what the value is needed for. Add it up on the device and read it every so many
        steps.

    What it promises
        Equal losses.

    What it should gain
        At most the idle time of the device that the call caused: the finding states it.

    When to leave it
        When a decision of the next step depends on the value (skipping a step, a search).
    """
    waiting = [site for site in case.sites if site.device != "cpu"]
    if not waiting:
        return None
    site = max(waiting, key=lambda each: each.idle or each.calls)
    advice = f"Keep the value of {site.name}() on the device and read it every so many steps."
    return Option(f"{site.name}() deferred", edit=Snippet(EXAMPLE, site.source), advice=advice)

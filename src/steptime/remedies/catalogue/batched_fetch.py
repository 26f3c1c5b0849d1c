"""RM105: a batch fetched at once (advice)."""

from __future__ import annotations

from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

EXAMPLE = """def __getitems__(self, indices: list[int]):
    return [(self.images[i], self.labels[i]) for i in indices]  # one vectorised read for the whole batch"""


@remedy("RM105", "batched-fetch", addresses={"ST105"}, promise=Promise.SAME_BITS, risk=3)
def batched_fetch(case: Case) -> Option | None:
    """A batch that is fetched at once

    What it changes
        Nothing by itself: only you know how your dataset reads many items together. torch calls a dataset's
        `__getitems__(indices)` once for a batch where there is one, instead of `__getitem__` for every item.

    What it promises
        Equal losses, as long as it returns the items that `__getitem__` would.

    What it should gain
        At most the time of the items that is not the reading itself: the finding states it as its time at stake.

    When to leave it
        When items are files of their own and reading them dominates: workers help there.
    """
    loader = case.loader
    if loader is None or loader.batched_fetch:
        return None
    advice = "Give the dataset a __getitems__ that reads the whole batch."
    return Option("__getitems__", edit=Snippet(EXAMPLE, loader.item_site), advice=advice)

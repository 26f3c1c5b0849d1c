"""RM108: one operator on the whole tensor instead of a loop over its elements (advice)."""

from __future__ import annotations

from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

EXAMPLE = """# for i in range(len(x)): y[i] = x[i] @ w          ->  y = x @ w
# for t in range(T): h = cell(x[:, t], h)          ->  y, h = torch.nn.GRU(…, batch_first=True)(x)
# sum(int(p[i] == t[i]) for i in range(n))         ->  (p == t).sum()
# for t in range(T): h = step(x[:, t], h)          ->  for part in x.unbind(1): h = step(part, h)
# torch.tensor([row.tolist() for row in rows])     ->  torch.stack(rows), torch.from_numpy(numpy.stack(rows))
# [[table[c] for c in text] for text in batch]     ->  table_tensor[codes]  (an index of a whole batch)"""


@remedy(
    "RM108",
    "whole-tensor",
    addresses={"ST108", "ST205", "ST206", "ST301", "ST307"},
    promise=Promise.SAME_CURVE,
    risk=3,
)
def whole_tensor(case: Case) -> Option:
    """One operator on the whole tensor instead of a loop over its elements

    What it changes
        Nothing by itself: only you know what the loop means. Each round of a Python loop costs microseconds whatever it
        computes; one operator on the whole tensor (a product, an index, a comparison and a sum, torch.stack,
        torch.nn.GRU in place of a loop over cells) pays them once.

            # for i in range(len(x)): y[i] = x[i] @ w      ->  y = x @ w
            # for t in range(T): h = cell(x[:, t], h)      ->  y, h = torch.nn.GRU(…, batch_first=True)(x)
            # sum(int(p[i] == t[i]) for i in range(n))     ->  (p == t).sum()
            # for t in range(T): h = step(x[:, t], h)      ->  for part in x.unbind(1): h = step(part, h)

    What it promises
        A curve as another seed would give: sums may be taken in another order.

    What it should gain
        At most the time at stake of the finding, which is told with the advice
        (Amdahl's ceiling).

    When to leave it
        When each round needs a decision that Python took on the result of the last.
    """
    return Option("one operator for the loop", edit=Snippet(EXAMPLE), advice="Replace the loop by one operator.")

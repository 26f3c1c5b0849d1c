"""RM304: images with their channels innermost."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import Option, Promise, remedy
from steptime.remedies.training_lines import model_edit

LIKELY = 0.2
"""Of the convolutions' time: 14 to 25 % were measured on networks of images on CPUs."""
LEAST_SHARE = 0.2
"""Of the step: with fewer convolutions the layout does not matter."""
STATEMENT = "{model} = {model}.to(memory_format={torch}.channels_last)"
BATCH = "{batch} = {batch}.to(memory_format={torch}.channels_last)"
EXAMPLE = "model = model.to(memory_format=torch.channels_last)"
IMAGES = "images = images.to(memory_format=torch.channels_last)"


@remedy("RM304", "channels-last", addresses={"ST402", "ST403", "ST407"}, promise=Promise.SAME_CURVE, risk=2)
def channels_last(case: Case) -> Option | None:
    """Images with their channels innermost in memory

    What it changes
        Weights of 2-D convolutions and the batches that enter the model are stored as channels_last; parameters stay
        the same objects, shapes stay what they are.

    What it promises
        A curve as another seed would give: sums are taken in another order, dropout masks land on other elements.

    What it should gain
        About a fifth of the time of convolutions, as measured on CPUs; more with half precision on an accelerator.

    When to leave it
        When the model reshapes its features with view(), which asks for the usual order.
    """
    spent = sum(use.duration for use in case.operators if "convolution" in use.name or "conv2d" in use.name)
    if spent < LEAST_SHARE * case.step.duration.value:
        return None
    saving = modelled(LIKELY * spent, 0.0, 2 * LIKELY * spent, case.step.steady)
    edit = model_edit(case, STATEMENT, f"{EXAMPLE}\n{IMAGES}", BATCH)
    return Option("channels_last", (Change("channels-last"),), saving, edit, "where dropout masks land")

"""RM307: the model's kernels launched as one graph."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled, named
from steptime.quantities import Estimate
from steptime.remedies.remedy import Option, Promise, remedy
from steptime.remedies.training_lines import model_edit

LIKELY, SURE = 0.6, 0.0
"""Of what a step in one launch would save by the replay: the optimiser and the loss stay outside."""
STATEMENT = '{model} = {torch}.compile({model}, mode="reduce-overhead")'
IN_PLACE = '{model}.compile(mode="reduce-overhead")'


@remedy("RM307", "cuda-graphs", addresses={"ST301", "ST302", "ST305"}, promise=Promise.SAME_CURVE, risk=5)
def cuda_graphs(case: Case) -> Option | None:
    """The model's kernels launched as one graph

    What it changes
        The module that your loop calls is compiled with mode="reduce-overhead": forward and backward are recorded as
        CUDA graphs and launched by one call each. The compiler decides what can be recorded, and keeps to plain
        launches where it cannot (changing shapes, copies to the host).

    What it promises
        A curve as another seed would give: dropout masks come from another generator. Gradients of the first step are
        compared parameter by parameter.

    What it should gain
        Of the time in which the device waits for launches, what the replay of the step as one launch saves; three
        fifths of that are likely, because optimiser and loss stay outside.

    When to leave it
        When memory is short (graphs keep their own), when shapes change, or when outputs of a step are kept beyond the
        next one without a copy.
    """
    if not case.step.device.startswith("cuda") or case.compilations or any(root.compiled for root in case.roots):
        return None
    gain = _gain(case)
    saving = modelled(LIKELY * gain.value, SURE * gain.low, gain.high, case.step.steady) if gain is not None else None
    change = Change("compile", arguments=(("mode", "reduce-overhead"),))
    example = 'model = torch.compile(model, mode="reduce-overhead")'
    edit = model_edit(case, STATEMENT, example, in_place=IN_PLACE)
    return Option(example.partition("= ")[2], (change,), saving, edit, "dropout masks")


def _gain(case: Case) -> Estimate | None:
    """By the replay where there is one, else the launch account."""
    predictions = case.replay.predictions if case.replay is not None else ()
    replayed = next((each.saved for each in predictions if each.change == "one launch"), None)
    launch = named(case.accounts, "launch")
    return replayed or (launch.duration if launch is not None else None)

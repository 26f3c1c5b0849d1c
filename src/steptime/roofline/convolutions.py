"""Convolutions of traces that hold shapes but no settings (before torch 2.1): without strides a shape does not tell the
output's, but the gradient that arrives in backward does, and the forward operator tells what its gradient lacks."""

from __future__ import annotations

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.kineto.table import ABSENT, Trace
from steptime.links.links import UNKNOWN, Links
from steptime.work.arguments import Call, parse
from steptime.work.calls import Modelled, distinct
from steptime.work.convolution import from_output
from steptime.work.model import Work

FORWARD = {f"aten::{name}" for name in ("cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "convolution")}
GRADIENT_AT = {"aten::convolution_backward": 0, "aten::cudnn_convolution_backward": 1}
"""Where these have the gradient of the output."""
WEIGHT_GRADIENT = "aten::cudnn_convolution_backward_weight"
DEPTH = 4
"""conv2d, convolution, _convolution, cudnn_convolution: the outermost of them may be the one that backward knows."""


def complete(trace: Trace, links: Links, operator: Int64, modelled: Modelled) -> Modelled:
    """The same work, with that of convolutions without settings. operator: rows that `modelled` is of, -1 for none."""
    missing = np.array([work is None for work in modelled.works], np.bool_)[modelled.kind] & (operator >= 0)
    names = np.fromiter((name in FORWARD or name == WEIGHT_GRADIENT for name in trace.symbols), np.bool_)
    open_ended = np.flatnonzero(missing)
    open_ended = open_ended[names[trace.events.name[operator[open_ended]]]]
    if not len(open_ended):
        return modelled
    rows = operator[open_ended]
    partner = np.where(_named(trace, rows, WEIGHT_GRADIENT), links.forward[rows], _backwards(trace, links, rows))
    known = partner != UNKNOWN
    rows, partner, open_ended = rows[known], partner[known].astype(np.int64), open_ended[known]
    events = trace.events
    first, kind = distinct(events.name[rows], events.shapes[rows], events.shapes[partner])
    works = tuple(_work(trace, int(rows[one]), int(partner[one])) for one in first)
    kinds = modelled.kind.copy()
    kinds[open_ended] = len(modelled.works) + kind
    return Modelled((*modelled.works, *works), kinds)


def _backwards(trace: Trace, links: Links, rows: Int64) -> Int64:
    """For each row the backward operator of the convolution that it is part of; UNKNOWN where none is."""
    backward = np.flatnonzero(np.isin(trace.events.name, [_number(trace, name) for name in GRADIENT_AT]))
    backward = backward[links.forward[backward] != UNKNOWN]
    of_forward = np.full(len(trace.events), UNKNOWN, np.int64)
    of_forward[links.forward[backward]] = backward
    found, around = of_forward[rows], rows
    for _ in range(DEPTH):
        around = np.where(around == UNKNOWN, UNKNOWN, links.parent[around])
        found = np.where((found == UNKNOWN) & (around != UNKNOWN), of_forward[around], found)
    return found


def _work(trace: Trace, row: int, partner: int) -> Work | None:
    """From an operator and its partner in the other direction."""
    name = trace.symbols[trace.events.name[row]]
    try:
        own, other = _call(trace, row), _call(trace, partner)
        if name == WEIGHT_GRADIENT:
            return from_output(other.tensor(0), other.tensor(1), own.tensor(1))
        gradient = other.tensor(GRADIENT_AT[trace.symbols[trace.events.name[partner]]])
        return from_output(own.tensor(0), own.tensor(1), gradient)
    except (LookupError, ValueError, TypeError, ZeroDivisionError):
        return None


def _call(trace: Trace, row: int) -> Call:
    shapes, types = int(trace.events.shapes[row]), int(trace.events.dtypes[row])
    if ABSENT in (shapes, types):
        raise LookupError("no shapes")
    return parse(trace.shapes[shapes], trace.dtypes[types], "")


def _named(trace: Trace, rows: Int64, name: str) -> Bool:
    named: Bool = trace.events.name[rows] == _number(trace, name)
    return named


def _number(trace: Trace, name: str) -> int:
    return trace.symbols.index(name) if name in trace.symbols else UNKNOWN

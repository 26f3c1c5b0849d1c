"""Accounts of training on an accelerator: what the device did and, while it idled, why.

What a thread was doing that ends an idle stretch explains it: *input* (in the loader's next(), or batch preparation
that the caller knows of), *sync* (the device ran dry inside a call that waits for it, a blocking copy among them: all
of the idle time up to the launch, because without the wait the queue would not have been empty; or the host is in such
a call, or in a copy that is staged, for longer than launching takes while the device is idle), *compile*, *launch*
(inside operators and runtime calls, in gaps at the cadence of dispatching, and from the launch to the start of the
activity), *host* (everything else of that thread). Streams and devices of one process count as one: idle means that all
of them are.
"""

from __future__ import annotations

from steptime.intervals import Intervals
from steptime.kineto.table import Trace
from steptime.ledger.activities import device_time
from steptime.ledger.idle import idle_claims, idle_of
from steptime.ledger.ledger import Account
from steptime.ledger.processor import Claims


def claims_on_accelerator(trace: Trace, lane: int | None, input_ranges: Intervals, compile_ranges: Intervals) -> Claims:
    """Who claims which time. lane: the training thread, for idle time that no launch ends."""
    spent = device_time(trace)
    return (
        (Account.COMPUTE, spent.compute),
        (Account.COMMUNICATION, spent.communication),
        (Account.COPY, spent.copies),
        *idle_claims(trace, idle_of(trace, spent.busy, lane), input_ranges, compile_ranges),
    )

"""What an event is, from the name of its category, of whatever year and maker of device.

Names that the table knows are taken from it. Makers of other devices have names of their own, built alike
("privateuse1_runtime", "mtia_runtime"): their endings decide. What is still unknown and says on which stream of which
device it ran is work of that device: a kernel, or a copy or memset by its own name.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from steptime.arrays import Int64
from steptime.kineto.events import Event
from steptime.kineto.table import ABSENT, CATEGORY_NAMES, MARKER_NAMES, Category

DEVICE_WORK = 254
"""Not in the table of events: which work of the device it is, the event's name says."""
UNKNOWN = 255
"""Neither: work of a device if it says where it ran, else OTHER."""
ENDINGS = {
    "_runtime": Category.RUNTIME,
    "_driver": Category.RUNTIME,
    "_memcpy": Category.MEMCPY,
    "_memset": Category.MEMSET,
    "_user_annotation": Category.DEVICE_ANNOTATION,
    "_sync": Category.SYNC,
    "_kernel": Category.KERNEL,
}
DEVICE_WORK_NAMES = ("mtia_ccp_events", "mtia_workloadd", "hpu_op")
"""From libkineto's ActivityType.cpp: what MTIA's and Gaudi's devices executed, copies among them."""


class CategoryCodes:
    """The categories of events, as numbers of `Category`."""

    def __init__(self) -> None:
        self._codes = _Codes()

    def of(self, events: list[Event], streams: Int64 | None, devices: Int64 | None) -> npt.NDArray[np.uint8]:
        """streams, devices: of these events, None where none has one."""
        packed = list(map(self._codes.__getitem__, [event.cat for event in events]))
        codes = np.frombuffer(struct.pack(f"{len(packed)}B", *packed), np.uint8)
        if codes.max() < DEVICE_WORK:
            return codes
        codes = codes.copy()
        work = codes == DEVICE_WORK
        if streams is not None and devices is not None:
            work |= (codes == UNKNOWN) & (streams != ABSENT) & (devices != ABSENT) & (devices >= 0)
        for row in np.flatnonzero(work).tolist():
            codes[row] = work_named(events[row].name)
        codes[codes == UNKNOWN] = Category.OTHER
        return codes


def work_named(name: str) -> Category:
    """Which work of a device an event of this name is."""
    lowered = name.lower()
    if "memcpy" in lowered:
        return Category.MEMCPY
    return Category.MEMSET if "memset" in lowered else Category.KERNEL


class _Codes(dict[str, int]):
    def __init__(self) -> None:
        super().__init__({name: int(category) for name, category in CATEGORY_NAMES.items()})
        self |= dict.fromkeys(MARKER_NAMES, int(Category.OTHER))
        self |= dict.fromkeys(DEVICE_WORK_NAMES, DEVICE_WORK)

    def __missing__(self, key: str) -> int:
        endings = (category for ending, category in ENDINGS.items() if key.lower().endswith(ending))
        code = self[key] = int(next(endings, UNKNOWN))
        return code

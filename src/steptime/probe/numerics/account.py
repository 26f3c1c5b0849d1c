"""What was found in this process, as numerics.json in its folder: written whole, each time anew."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from steptime.probe import identity
from steptime.probe.notice import switched_off

NAME = "numerics.json"


class GrowingNumerics:
    """`ProcessNumerics` while it grows. The folder is made at the first sign of training."""

    def __init__(self, recording: str, mode: str) -> None:
        self.recording = recording
        self.folder = ""
        self.facts: dict[str, Any] = {"mode": mode, "steps": 0, "notes": []}

    def open(self) -> None:
        """Raises OSError where the recording cannot be written."""
        if not self.folder:
            self.folder = identity.make_folder(self.recording, os.getpid())
            identity.write_process(self.folder, device="cpu", device_name="")
            self.facts["pid"], self.facts["rank"] = os.getpid(), _rank()

    def write(self) -> None:
        """Writes what is known, if the process has trained. Raises OSError."""
        if self.folder:
            path = os.path.join(self.folder, NAME)
            with open(path + ".partial", "w", encoding="utf-8") as file:
                json.dump(self.facts, file, default=str)
            os.replace(path + ".partial", path)

    def note(self, text: str) -> None:
        """A sentence for the user."""
        if text not in self.facts["notes"]:
            self.facts["notes"].append(text)

    def give_up(self, what: str, error: Exception) -> None:
        """Tells the user, and writes what is known as far as that can be done. Raises nothing: it is called from inside
        the job."""
        reason = f"{type(error).__name__}: {error}"
        switched_off(reason)
        self.note(f"{what}: {reason}")
        with contextlib.suppress(OSError, TypeError, ValueError):
            self.write()

    def forget(self) -> None:
        """In a forked child: it gets a folder of its own when it trains."""
        self.folder = ""
        self.facts = {"mode": self.facts["mode"], "steps": 0, "notes": []}


def _rank() -> int | None:
    value = os.environ.get("RANK", "")
    return int(value) if value.isdigit() else _initialized_rank()


def _initialized_rank() -> int | None:
    """Of a process that was started without a launcher (mp.spawn)."""
    import torch

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return None

"""The changes "environment" and "preload": made by the launch before the interpreter starts, looked at here."""

from __future__ import annotations

import os

from steptime.capture.probe.changes.applier import Applier


class EnvironmentVariables(Applier):
    """arguments: names and values."""

    def install(self) -> None:
        """Looks whether they are there."""
        self.applied = self.exercised = True
        self.detail = "in force since the process started"
        for name, value in self.arguments.items():
            if os.environ.get(name) != str(value):
                self.applied = False
                self.refused(f"{name} is {os.environ.get(name, 'not set')}: a script on the way has set it")


class Preloaded(Applier):
    """target: what the library is called (jemalloc, tcmalloc), or its path."""

    def install(self) -> None:
        """Looks whether the dynamic loader has loaded it."""
        if not self.target:
            self.refused("no library is named")
            return
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            self.applied = self.exercised = os.path.basename(self.target) in maps.read()
        self.detail = "loaded" if self.applied else f"no library {self.target} was found, or it was not loaded"

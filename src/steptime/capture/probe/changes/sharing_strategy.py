"""The change "sharing-strategy": how the workers of a loader hand their tensors over."""

from __future__ import annotations

from torch import multiprocessing

from steptime.capture.probe.changes.loaders import Arguments, LoaderChange


class SharingStrategy(LoaderChange):
    """arguments: strategy ("file_system", "file_descriptor"), and `site`, see LoaderChange. In force for all tensors
    that this process and those forked from it share; exercised once a training loader with workers is read under it."""

    def install(self) -> None:
        """Sets it; the job may set it again."""
        self._strategy, before = str(self.arguments["strategy"]), multiprocessing.get_sharing_strategy()
        self._set = before != self._strategy
        if not self._set:
            self.refused(f"tensors are shared by {before} already")
            return
        multiprocessing.set_sharing_strategy(self._strategy)
        super().install()

    def decide(self, arguments: Arguments) -> str:
        """See LoaderChange: the construction stays as it is."""
        return "" if arguments["num_workers"] else "the loader has no workers"

    def border(self, steps: int) -> None:
        """See LoaderChange; and looks whether it still holds."""
        if not self._set:
            return
        super().border(steps)
        if multiprocessing.get_sharing_strategy() != self._strategy:
            self.exercised = False
            self.detail = "the job has set another strategy"

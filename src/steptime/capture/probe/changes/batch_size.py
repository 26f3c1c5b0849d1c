"""The change "batch-size": other batches of the training loader. The training is another one; what counts is speed."""

from __future__ import annotations

from typing import Any

from steptime.capture.probe.changes.loaders import Arguments, LoaderChange


class BatchSize(LoaderChange):
    """arguments: factor (of the job's own size), or size."""

    def __init__(self, target: str, arguments: dict[str, Any]) -> None:
        super().__init__(target, arguments)
        self._sizes: dict[int, tuple[Any, int]] = {}

    def decide(self, arguments: Arguments) -> str:
        """See LoaderChange. A loader that a framework makes anew from a changed one has its size already."""
        holder = arguments["batch_sampler"]
        before = getattr(holder, "batch_size", None) if holder is not None else arguments["batch_size"]
        if not isinstance(before, int):
            return "the loader makes no batches, or by a sampler that tells no size"
        dataset = arguments["dataset"]
        if id(dataset) in self._sizes and self._sizes[id(dataset)][1] == before:
            return ""
        wanted = self.arguments.get("size")
        size = int(wanted) if wanted is not None else max(1, round(before * float(self.arguments["factor"])))
        if size == before:
            return f"the batches have {size} items already"
        length = getattr(dataset, "__len__", None)
        if length is not None and length() < size:
            return f"the dataset has only {length()} items, less than a batch of {size}"
        if holder is not None:
            holder.batch_size = size
        else:
            arguments["batch_size"] = size
        self._sizes[id(dataset)] = (dataset, size)
        return ""

"""RM11x: items of a dataset that are made once and kept."""

from __future__ import annotations

from dataclasses import replace

from steptime.advice.evidence import Case
from steptime.advice.fix import ArgumentEdit, Edit, Option, Promise, Snippet, fix
from steptime.advice.loader_model import supply
from steptime.advice.run_uses import LoaderUse, MemoryUse, StepSummary
from steptime.advice.savings import partly
from steptime.changes import Change
from steptime.quantities import Estimate, format_bytes, format_duration

LIKELY, SURE = 0.95, 0.5
"""Fraction of the making of items: looking one up in a list takes a tenth of a microsecond, and its numbers come out of
memory instead of a cache."""
LOOKED_UP = 1_000.0
"""ns of an item that is there: an index into a list, and a tensor's first touch."""
DEAR = 20_000.0
"""ns of an item from which on it may be worth keeping: below, what makes it is an index itself."""
MEMORY = 0.5
"""Fraction of the memory that was to be had when training began: the rest is for what training itself holds later."""
LONGEST = 60e9
"""ns of making all items in which a trial can still be taken: each of its processes makes them again."""
PLAIN = "[{value}[index] for index in range(len({value}))]"
ONCE = "[samples[index] for samples in [{value}] for index in range(len(samples))]"
"""The dataset itself is made once."""
ASKED = ("dataset",)
"""`loader.dataset`: who asks it for more than an item would find a list."""
EXAMPLE = "DataLoader([dataset[index] for index in range(len(dataset))], …)  # the items, made once"
ON_DISK = '''class Kept(torch.utils.data.Dataset):
    """The items of a dataset, each made once and then read from a file."""

    def __init__(self, dataset, folder):
        self.dataset, self.folder = dataset, folder
        os.makedirs(folder, exist_ok=True)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        path = f"{self.folder}/{index}.pt"
        if not os.path.exists(path):
            torch.save(self.dataset[index], f"{path}.{os.getpid()}")
            os.replace(f"{path}.{os.getpid()}", path)  # workers and ranks may be at the same item
        return torch.load(path)'''


@fix("RM110", "cached-items", addresses={"ST101", "ST102", "ST111"}, promise=Promise.SAME_BITS, risk=3)
def cached_items(step: StepSummary, loader: LoaderUse, case: Case) -> Option | None:
    """Items that are made once and kept in memory

    What it changes: The training DataLoader gets a list of all items instead of the dataset: each is made once, before
    training starts. In the source: DataLoader([dataset[index] for index in range(len(dataset))], …).

    What it promises: Equal losses, as long as an item is always the same. The fix is not proposed if the first
    batches drew random numbers of torch, numpy or Python to make their items (augmentation). The trial makes some
    items a second time and compares them: once after the job's own collate function has seen a batch of them, and
    again some steps later. If an item differs, the fix is not adopted. The trial does not see changes that come later
    in the run (a curriculum); a dataset that has set_epoch is therefore left alone.

    What it should gain: The time for making items, without collating, as far as the workers do not hide it. All items
    are made before the first epoch, so the fix pays from the second epoch on. The cost is memory: the measured bytes
    of an item times the length of the dataset, for each training process of the host. steptime does not try the fix
    if that is more than half of the free memory, or if making all items takes over a minute. The advice then says
    what it would take, and how to keep the items on disk instead.

    When to leave it: When a run goes through the dataset less than twice. When workers are spawned instead of
    forked: each gets a copy of the list.
    """
    if loader.item is None or loader.length is None or loader.iterable or loader.items is None:
        return None
    if loader.in_memory_tensors or loader.batched_fetch or loader.item.value < DEAR:
        return None
    if loader.items.drawn or loader.items.bytes is None:
        return None
    trainers = case.settings.trainers_on_host if case.settings is not None else 1
    needed, filling = trainers * loader.length * loader.items.bytes, loader.length * loader.item.value
    reported = f"{format_bytes(needed)}, made in {format_duration(filling)} before the first step"
    room = _room(step, case.memory, loader.items.available)
    fits = room is not None and needed <= MEMORY * room
    saving, label = _saving(case, loader), f"{loader.length:,} items kept in memory"
    if fits and filling <= LONGEST:
        place = (("site", f"{loader.site.file}:{loader.site.line}"),) if loader.site is not None else ()
        change = Change("cached-items", arguments=place)
        return Option(f"{label} ({reported})", (change,), saving, _edit(loader))
    if fits:
        advice = f"Make the items once and keep them: {reported}, which is too long for a trial here."
        return Option(label, edit=Snippet(EXAMPLE, loader.site), advice=advice)
    had = (
        f"half of the {format_bytes(room)} that were free"
        if room is not None
        else "the memory that is known to be free"
    )
    advice = f"Make each item once and cache it on disk: all of them take {format_bytes(needed)}, more than {had}."
    return Option("items cached on disk", edit=Snippet(ON_DISK, loader.item_site or loader.site), advice=advice)


def _room(step: StepSummary, memory: MemoryUse | None, available: int | None) -> float | None:
    """Bytes of the host's memory that a list may come to share; None where nothing shows. On a CPU the limit of a
    container counts, too."""
    left = [float(available)] if available is not None else []
    if step.device == "cpu" and memory is not None and memory.capacity:
        left.append(float(max(0, memory.capacity - memory.peak)))
    return min(left, default=None)


def _saving(case: Case, loader: LoaderUse) -> Estimate | None:
    """ns per step, by the model of the loader: the step with items that are there."""
    now = supply(case, loader)
    there = replace(loader, item=Estimate(LOOKED_UP, LOOKED_UP, LOOKED_UP, loader.item.samples if loader.item else 1))
    kept = supply(case, there)
    if now is None or kept is None:
        return None
    alone = now.production - kept.production
    gain = min(case.step.duration.value - kept.step(loader.workers) if loader.workers else alone, loader.wait.value)
    return partly(gain, LIKELY, SURE, case.step) if gain > 0 else None


def _edit(loader: LoaderUse) -> Edit:
    if loader.site is None:
        return Snippet(EXAMPLE)
    return ArgumentEdit("DataLoader", "dataset", PLAIN, ONCE, loader.site, ASKED)

"""Energies of molecules on a slab: pairs of neighbouring atoms are kept, those inside the slab are left out."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
ATOMS, SLAB, CUTOFF, STRUCTURES, BATCH, EPOCHS, WIDTH = 48, 32, 1.6, 96, 4, 10, 48


def neighbours(item):
    distances = torch.cdist(item["places"], item["places"])
    item["i"], item["j"] = ((distances < CUTOFF) & (distances > 0)).nonzero(as_tuple=True)
    return item


def without_slab(item):
    """Leave out the pairs of which both atoms belong to the slab."""
    slab = item["slab"].tolist()
    kept = []
    for pair in range(len(item["i"])):  # culprit-too
        i, j = item["i"][pair].item(), item["j"][pair].item()  # culprit
        if i not in slab or j not in slab:  # culprit
            kept.append(pair)
    return {**item, "i": item["i"][kept], "j": item["j"][kept]}  # culprit-too


class Structures(Dataset):
    """Random molecules over a slab; the pairs of each are kept after the first time."""

    def __init__(self, first, later):
        self.first, self.later, self.kept = first, later, {}
        self.places = torch.rand(STRUCTURES, ATOMS, 3) * 3
        self.kinds = torch.randint(0, 6, (STRUCTURES, ATOMS))

    def __len__(self):
        return STRUCTURES

    def __getitem__(self, index):
        if index not in self.kept:
            item = {"places": self.places[index], "kinds": self.kinds[index], "slab": torch.arange(SLAB)}
            for transform in self.first:
                item = transform(item)
            self.kept[index] = item
        item = self.kept[index]
        for transform in self.later:
            item = transform(item)  # culprit
        return item


def collate(items):
    shift = torch.arange(len(items)) * ATOMS
    return {
        "places": torch.cat([each["places"] for each in items]),
        "kinds": torch.cat([each["kinds"] for each in items]),
        "i": torch.cat([each["i"] + more for each, more in zip(items, shift)]),
        "j": torch.cat([each["j"] + more for each, more in zip(items, shift)]),
    }


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, WIDTH)
        self.filters = nn.ModuleList(nn.Linear(16, WIDTH) for _ in range(3))
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.read = nn.Linear(WIDTH, 1)

    def forward(self, batch):
        i, j, places = batch["i"], batch["j"], batch["places"]
        far = (places[i] - places[j]).norm(dim=1, keepdim=True)
        waves = torch.exp(-10 * (far - torch.linspace(0, CUTOFF, 16)) ** 2)
        x = self.embed(batch["kinds"])
        for filters, mix in zip(self.filters, self.mix):
            x = x + F.silu(mix(torch.zeros_like(x).index_add(0, i, x[j] * filters(waves))))
        return self.read(x).view(-1, ATOMS).sum(1)


loader = DataLoader(Structures([neighbours], [without_slab]), BATCH, shuffle=True, collate_fn=collate)  # culprit-too
model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
steps, start = 0, time.perf_counter()
for epoch in range(EPOCHS):
    for batch in loader:  # culprit-too
        goal = batch["places"].view(-1, ATOMS, 3)[:, SLAB:].sum((1, 2)) / 10
        loss = (model(batch) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    if epoch % 2 == 1:
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")

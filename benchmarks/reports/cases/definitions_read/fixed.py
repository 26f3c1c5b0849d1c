"""Boiling points of molecules, which are described by the groups of atoms that a file of definitions names."""

import re
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
MOLECULES, PARTS, BATCH, STEPS = 3000, ("C", "O", "N", "CC", "C=O", "C=C", "CO", "CN", "Cl", "C#N", "S", "F"), 64, 500
FAMILIES = ("Donor", "Acceptor", "Positive", "Negative", "Aromatic", "Hydrophobe")


def write_definitions(path):
    """A file in the style of chemistry toolkits: comments, families, patterns, weights, a few symmetric variants."""
    rng, lines = np.random.default_rng(2), ["# groups of atoms", ""]
    for number in range(40):
        pattern = "".join(rng.choice(PARTS, 2))
        lines += [f"DefineFeature Group{number} [{pattern}]", f"  Family {FAMILIES[number % 6]}  # of six"]
        lines += ["  Weights " + ",".join(f"{w:.2f}" for w in rng.uniform(0, 1, 4)), "EndFeature", ""]
    path.write_text("\n".join(lines))


class Featurizer:
    """Counts, for each family, the weighted places at which one of its groups occurs."""

    def __init__(self, path):
        self.path = path
        self.groups = self.build()

    def build(self):
        groups, current = [], None
        for line in self.path.read_text().splitlines():
            line = line.split("#")[0].strip() if line.startswith(("#", "  Family")) else line.strip()
            if line.startswith("DefineFeature"):
                current = {"pattern": re.compile(re.escape(line.split("[", 1)[1][:-1]))}
            elif line.startswith("Family"):
                current["family"] = FAMILIES.index(line.split()[1])
            elif line.startswith("Weights"):
                current["weight"] = sum(float(w) for w in line.split()[1].split(",")) / 4
            elif line == "EndFeature":
                groups.append((current["pattern"], current["family"], current["weight"]))
        return groups

    def __call__(self, molecule):
        features = np.zeros(len(FAMILIES) + len(PARTS), np.float32)
        for pattern, family, weight in self.groups:
            features[family] += weight * len(pattern.findall(molecule))
        features[len(FAMILIES) :] = [molecule.count(part) for part in PARTS]
        return features


class Molecules(Dataset):
    def __init__(self, featurize):
        rng = np.random.default_rng(0)
        self.featurize = featurize
        self.molecules = ["".join(rng.choice(PARTS, rng.integers(4, 12))) for _ in range(MOLECULES)]

    def __len__(self):
        return MOLECULES

    def __getitem__(self, i):
        molecule = self.molecules[i]
        features = self.featurize(molecule)
        boiling = 20.0 * len(molecule) + 40 * molecule.count("O") + 15 * molecule.count("N")
        return torch.from_numpy(features), torch.tensor([boiling / 300])


def network(width=512):
    return nn.Sequential(
        nn.Linear(len(FAMILIES) + len(PARTS), width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
        nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1),
    )  # fmt: skip


def batches(dataset):
    while True:
        yield from DataLoader(dataset, BATCH, shuffle=True, drop_last=True)


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "groups.fdef"
    write_definitions(path)
    loader = batches(Molecules(Featurizer(path)))
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        features, boiling = next(loader)
        loss = nn.functional.mse_loss(model(features), boiling)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")

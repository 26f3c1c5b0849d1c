"""Embeddings of a knowledge graph, trained against statements in which one end was exchanged."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
ENTITIES, RELATIONS, FACTS, WIDTH, WRONG, BATCH, STEPS = 3000, 20, 40_000, 64, 8, 256, 450


class Corruptor:
    """Copies of statements with another head or another tail, half of each."""

    def __init__(self, number):
        self.number, self.generator = number, torch.Generator().manual_seed(1)

    def __call__(self, facts):
        wrong = facts[:, None].repeat(1, self.number, 1)
        other = torch.randint(ENTITIES, (len(facts), self.number), generator=self.generator)
        wrong[:, 0::2, 0] = other[:, 0::2]
        wrong[:, 1::2, 2] = other[:, 1::2]
        return wrong


class Statements(Dataset):
    def __init__(self, facts, corrupt):
        self.facts, self.corrupt = facts, corrupt

    def __len__(self):
        return len(self.facts)

    def __getitem__(self, i):
        fact = self.facts[i]
        return fact, self.corrupt(fact[None])[0]  # culprit


def collate(samples):
    facts, wrong = zip(*samples)
    return torch.stack(facts), torch.stack(wrong)


class DistMult(nn.Module):
    def __init__(self):
        super().__init__()
        self.entities, self.relations = nn.Embedding(ENTITIES, WIDTH), nn.Embedding(RELATIONS, WIDTH)

    def forward(self, facts):
        head, relation, tail = facts.unbind(-1)
        return (self.entities(head) * self.relations(relation) * self.entities(tail)).sum(-1)


def knowledge(generator):
    head = torch.randint(ENTITIES, (FACTS,), generator=generator)
    relation = torch.randint(RELATIONS, (FACTS,), generator=generator)
    tail = (head * 7 + relation * 131 + torch.randint(30, (FACTS,), generator=generator)) % ENTITIES
    return torch.stack([head, relation, tail], 1)


def batches(facts):
    statements = Statements(facts, Corruptor(WRONG))
    loader = DataLoader(statements, BATCH, shuffle=True, collate_fn=collate, drop_last=True)  # culprit-too
    while True:
        yield from loader


loader = batches(knowledge(torch.Generator().manual_seed(0)))
model = DistMult()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    facts, wrong = next(loader)  # culprit-too
    loss = F.softplus(-model(facts)).mean() + F.softplus(model(wrong)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 90 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")

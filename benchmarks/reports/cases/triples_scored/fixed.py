"""Completing a graph of facts: for each question many wrong answers are scored along with the right one."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
ENTITIES, RELATIONS, FACTS, WIDTH, WRONG, BATCH, STEPS = 6000, 12, 30_000, 64, 256, 96, 260


class Completion(nn.Module):
    """Complex-valued embeddings; real and imaginary halves lie side by side."""

    def __init__(self):
        super().__init__()
        self.entities, self.relations = nn.Embedding(ENTITIES, WIDTH), nn.Embedding(RELATIONS, WIDTH)

    def question(self, head, relation):
        real, imaginary = self.entities(head).chunk(2, -1)
        turn, shift = self.relations(relation).chunk(2, -1)
        return torch.cat([real * turn - imaginary * shift, real * shift + imaginary * turn], -1)

    def forward(self, head, relation, answers):
        """answers: batch x candidates, the right one first."""
        return (self.question(head, relation) @ self.entities.weight.T).gather(1, answers)


def facts(generator):
    head = torch.randint(ENTITIES, (FACTS,), generator=generator)
    relation = torch.randint(RELATIONS, (FACTS,), generator=generator)
    return head, relation, (head + relation * 97 + torch.randint(20, (FACTS,), generator=generator)) % ENTITIES


generator = torch.Generator().manual_seed(0)
head, relation, tail = facts(generator)
model = Completion()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
right = torch.zeros(BATCH, dtype=torch.long)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    rows = torch.randint(FACTS, (BATCH,), generator=generator)
    wrong = torch.randint(ENTITIES, (BATCH, WRONG), generator=generator)
    answers = torch.cat([tail[rows, None], wrong], 1)
    scores = model(head[rows], relation[rows], answers)
    loss = nn.functional.cross_entropy(scores, right)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 65 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")

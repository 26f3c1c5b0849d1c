"""Lesson 3, Python in the step: a metric counted word by word while the model waits.

steptime run -- python examples/course/lesson_3_python.py
steptime judge --args "--mended" -- python examples/course/lesson_3_python.py
"""

import sys
from collections import Counter

import torch
from torch import nn

MENDED = "--mended" in sys.argv
VOCABULARY = 500


def frequencies(tokens: torch.Tensor) -> torch.Tensor:
    """How often each token is in a batch."""
    if MENDED:
        return torch.bincount(tokens.flatten(), minlength=VOCABULARY)
    counts = Counter(int(token) for row in tokens for token in row)
    return torch.tensor([counts[token] for token in range(VOCABULARY)])


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 128), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    seen = torch.zeros(VOCABULARY, dtype=torch.long)
    for _ in range(300):
        tokens = torch.randint(0, VOCABULARY, (64, 32))
        labels = (tokens.float().mean(dim=1) > VOCABULARY / 2).long()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += frequencies(tokens)
    print(f"loss {loss.item():.6f}, the most frequent token {int(seen.argmax())}")


if __name__ == "__main__":
    main()

"""Lesson 2, overhead: attention one head at a time, in operators that are too small to be worth their call.

steptime run -- python examples/course/lesson_2_overhead.py
steptime judge --args "--mended" -- python examples/course/lesson_2_overhead.py
"""

import sys

import torch
from torch import nn

MENDED = "--mended" in sys.argv
HEADS, WIDTH = 16, 64


class Attention(nn.Module):
    """Self-attention of a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.joint(x).chunk(3, dim=-1)
        )
        if MENDED:
            return nn.functional.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)
        heads = []
        for head in range(HEADS):
            scores = queries[:, head] @ keys[:, head].transpose(1, 2) / (WIDTH // HEADS) ** 0.5
            heads.append(scores.softmax(dim=-1) @ values[:, head])
        return torch.cat(heads, dim=-1)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), nn.LayerNorm(WIDTH), Attention(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(400):
        x = torch.randn(8, 12, WIDTH)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()

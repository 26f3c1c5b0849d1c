"""Distils a wide network into a narrow one."""
import torch
from torch import nn


def network(width, depth):
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(nn.Linear(40, width), nn.GELU(), *inner, nn.Linear(width, 20))


class Distillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = network(640, 3), network(160, 2)
        self.teacher.eval()

    def forward(self, x):
        with torch.no_grad():
            goal = self.teacher(x)
        guess = self.student(x)
        return nn.functional.kl_div(guess.log_softmax(1), goal.softmax(1), reduction="batchmean")


def main():
    torch.manual_seed(0)
    job = Distillation()
    opt = torch.optim.Adam(job.student.parameters(), lr=1e-3)
    for step in range(120):
        loss = job(torch.randn(96, 40))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

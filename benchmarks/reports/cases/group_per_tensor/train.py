"""Image classifier with layer-wise learning-rate decay."""
from collections import defaultdict

import torch
from torch import nn


def settings(name, parameter, lr, decay):
    depth = int(name.split(".")[1]) // 10 if name.startswith("blocks") else 0 if name.startswith("stem") else 4
    return lr * 0.8 ** (4 - depth), 0.0 if parameter.ndim == 1 else decay


def with_decay(net, lr, decay, merge=False):
    if merge:
        pools = defaultdict(list)
        for name, p in net.named_parameters():
            pools[settings(name, p, lr, decay)].append(p)
        return [{"params": ps, "lr": rate, "weight_decay": wd} for (rate, wd), ps in pools.items()]
    out = []
    for name, p in net.named_parameters():
        rate, wd = settings(name, p, lr, decay)
        out.append({"params": [p], "lr": rate, "weight_decay": wd})  # culprit
    return out


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 1), nn.GroupNorm(4, width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, padding=1, groups=width), nn.GroupNorm(4, width))

    def forward(self, x):
        return torch.relu(x + self.body(x))


class Net(nn.Module):
    def __init__(self, width=16, depth=40):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=4, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x.mean((2, 3)))


def main():
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.AdamW(with_decay(net, 1e-3, 0.05, merge=False), fused=True)  # culprit-too
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 90)
    images, labels = torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))
    for i in range(90):
        pick = torch.randint(0, 512, (8,))
        loss = nn.functional.cross_entropy(net(images[pick]), labels[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()  # culprit-too
        schedule.step()
        if i % 40 == 0:
            print(f"step {i}: {loss.item():.3f} lr {schedule.get_last_lr()[0]:.2e}", flush=True)


if __name__ == "__main__":
    main()

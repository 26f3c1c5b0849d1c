"""Collects the norms of layers' outputs by hooks that are registered for each step."""
import torch
from torch import nn


class Collector:
    def __init__(self, net):
        self.layers = [each for each in net.modules() if not list(each.children())]
        self.handles, self.norms = [], {}

    def __enter__(self):
        for number, layer in enumerate(self.layers):
            self.handles.append(layer.register_forward_hook(self.keep(number)))  # culprit-too
        return self

    def __exit__(self, *_):
        for handle in self.handles:  # culprit-too
            handle.remove()  # culprit

    def keep(self, number):
        def hook(module, inputs, output):
            self.norms[number] = output.detach().square().mean()
        return hook


def main():
    torch.manual_seed(0)
    blocks = [layer for _ in range(40) for layer in (nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU())]
    net = nn.Sequential(nn.Linear(20, 48), *blocks, nn.Linear(48, 5))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    collector = Collector(net)
    for step in range(400):
        x, y = torch.randn(32, 20), torch.randint(0, 5, (32,))
        with collector:
            loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"{step}: {loss.item():.3f} {float(sum(collector.norms.values())):.2f}", flush=True)


if __name__ == "__main__":
    main()

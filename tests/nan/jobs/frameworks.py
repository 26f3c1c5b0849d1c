"""Loops as frameworks write them: a closure handed to the optimizer, gradients accumulated, a wrapped optimizer."""

import sys

import torch
from planted import LATER, Network


class Wrapped:
    """An optimizer inside of another object, as Accelerate and Lightning have it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        return self.optimizer.step(closure)

    def zero_grad(self):
        self.optimizer.zero_grad()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = Wrapped(torch.optim.AdamW(model.parameters(), lr=0.01))

    def training_step(self, batch, step):
        x = self.model(batch)
        if step == LATER:
            x = x * 0
        return x.norm(dim=1).log().mean().abs()  # closure

    def fit(self):
        for step in range(1, 11):
            batch = torch.randn(8, 8)

            def closure(batch=batch, step=step):
                self.optimizer.zero_grad()
                loss = self.training_step(batch, step)
                loss.backward()
                return loss

            self.optimizer.step(closure)


def closure():
    Trainer(Network()).fit()


def accumulated():
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, 11):
        optimizer.zero_grad()
        for part in range(4):
            x = model(torch.randn(8, 8))
            if step == LATER and part == 2:
                x = x / x.detach().sub(x.detach()).sum()  # accumulated
            (x.square().mean() / 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def workers():
    """The sample is broken, and read in a worker."""
    from planted import Samples, classify
    from torch.utils import data

    plain = data.DataLoader

    def with_workers(*args, **kwargs):
        return plain(*args, **kwargs, num_workers=2)

    import planted

    planted.DataLoader = with_workers
    classify(Samples(broken=float("nan")))


def optimizer_in_backward():
    model = Network()
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.01)

        def update(parameter, own=own):
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    for step in range(1, 11):
        x = model(torch.randn(8, 8))
        if step == LATER:
            x = x * 0
        x.square().sum(dim=1).sqrt().mean().backward()  # optimizer_in_backward


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()

"""Small training jobs, each with one planted fault: python planted.py FAULT. The line of the fault carries its name."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

STEPS = 12
LATER = 7  # the step in which faults that need a special value come up


class Samples(Dataset):
    """Sixty-four samples; number 37 is broken where that is the fault."""

    def __init__(self, broken=None):
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(64, 8, generator=generator)
        self.targets = torch.randint(0, 3, (64,), generator=generator)
        if broken is not None:
            self.inputs[37, 2] = broken

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def classify(samples, change=None, dtype=torch.float32):
    """The usual loop; `change` makes a loss of (step, model, inputs, targets)."""
    model = Network().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(samples, batch_size=8, shuffle=True)
    step = 0
    while step < STEPS:
        for inputs, targets in loader:
            step += 1
            if change is None:
                loss = functional.cross_entropy(model(inputs), targets)
            else:
                loss = change(step, model, inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == STEPS:
                break


def log_of_zero():
    def change(step, model, inputs, targets):
        chances = torch.softmax(model(inputs), dim=1)
        if step == LATER:
            chances = chances * functional.one_hot(1 - targets.clamp(max=1), 3)
        picked = chances[torch.arange(8), targets]
        return -torch.log(picked).mean()  # log_of_zero

    classify(Samples(), change)


def square_root():
    def change(step, model, inputs, targets):
        x = model(inputs)
        if step == LATER:
            x = x * (torch.arange(8) > 0)[:, None]
        distance = x.square().sum(dim=1)
        return torch.sqrt(distance).mean()  # square_root

    classify(Samples(), change)


def division():
    def change(step, model, inputs, targets):
        features = inputs if step != LATER else torch.zeros_like(inputs)
        scaled = features / features.abs().amax(dim=1, keepdim=True)  # division
        return functional.cross_entropy(model(scaled), targets)

    classify(Samples(), change)


def half():
    def change(step, model, inputs, targets):
        scores = model(inputs.half())
        if step >= LATER:
            scores = scores.abs() + 300
        energy = scores * scores  # half
        return energy.mean().float()

    classify(Samples(), change, torch.float16)


def brain():
    def change(step, model, inputs, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(inputs).abs() + 1
            if step == LATER:
                scores = scores * 1e2
            return torch.exp(scores).mean()  # brain

    classify(Samples(), change)


def recurrent():
    torch.manual_seed(1)
    cell = nn.Linear(16, 16)
    nn.init.normal_(cell.weight, std=0.2)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.003)
    for step in range(60):
        state = torch.randn(4, 16)
        for _ in range(24):
            state = cell(state)  # recurrent
        loss = -state.square().mean().sqrt()  # the sign is wrong: it learns to explode
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)


def stacked(rate, std):
    """A perceptron of four layers, and what its loss overflows at."""
    torch.manual_seed(0)
    layers = [
        nn.Linear(32, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
    ]
    model = nn.Sequential(*layers)
    if std:
        for weight in model.parameters():
            nn.init.normal_(weight, std=std)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x, y = torch.randn(64, 32), torch.randn(64, 1)
    for step in range(3 * STEPS):
        loss = (model(x) - y).square().mean()  # too_fast, unscaled
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)


def too_fast():
    stacked(20.0, 0.0)


def unscaled():
    stacked(1e-4, 3e7)


def poisoned():
    classify(Samples(broken=float("nan")))


def huge():
    classify(Samples(broken=1e30), lambda step, model, x, y: model(x).square().square().mean())  # huge


def masked():
    model, attention = Network(), nn.Linear(8, 8)
    optimizer = torch.optim.Adam([*model.parameters(), *attention.parameters()], lr=0.01)
    for step in range(1, STEPS + 1):
        x = torch.randn(4, 6, 8)
        visible = torch.rand(4, 6) > 0.2
        visible[:, 0] = True
        if step == LATER:
            visible[2] = False
        scores = attention(x) @ x.transpose(1, 2)
        scores = scores.masked_fill(~visible[:, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)  # masked
        loss = model(weights @ x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def unselected():
    def change(step, model, inputs, targets):
        x = model(inputs)
        if step == LATER:
            x = x * (torch.arange(8) > 0)[:, None]
        inverse = 1 / x  # unselected
        return torch.where(x.abs() > 0.1, inverse, torch.zeros_like(x)).mean()

    classify(Samples(), change)


def ignored():
    def change(step, model, inputs, targets):
        if step == LATER:
            targets = torch.full_like(targets, -100)
        return functional.cross_entropy(model(inputs), targets)  # ignored

    classify(Samples(), change)


def left():
    def change(step, model, inputs, targets):
        x = model(inputs) * (step != LATER)
        loss = torch.log(x.abs().sum(dim=1)).mean()  # left
        if not torch.isfinite(loss):
            print("loss is not finite, stopping", flush=True)
            sys.exit(4)
        return loss

    classify(Samples(), change)


def compiled():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Network()

        def forward(self, x, shift):
            return torch.log(torch.softmax(self.body(x), dim=1) - shift)  # compiled

    model = torch.compile(Model(), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        loss = -model(torch.randn(8, 8), torch.tensor(1.0 if step == LATER else 0.0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    body, head = Network(), nn.Linear(3, 3)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)

    def block(x, step):
        x = body(x)
        if step == LATER:
            x = x * 0
        return torch.sqrt(x.square())  # checkpointed

    for step in range(1, STEPS + 1):
        loss = head(checkpoint(block, torch.randn(8, 8), step, use_reentrant=False)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scaled():
    """A scaler that skips its first steps, then a true fault."""
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    for step in range(1, 3 * STEPS + 1):
        loss = model(torch.randn(8, 8)).abs().mean() * 100
        if step == 3 * STEPS - 2:
            loss = loss + torch.log(loss - loss)  # scaled
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print("scale", scaler.get_scale())


def optimizer_update():
    model = Network().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)
    for _ in range(STEPS):
        loss = (model(torch.randn(8, 8).half()) * 1e-3).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # optimizer_update


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()

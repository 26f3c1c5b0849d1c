"""Four micro-batches per step, a GradScaler and two workers; 40 batches make ten steps, the third of which
overflows."""

import torch
from finger import Finger
from torch.utils.data import DataLoader, TensorDataset

MICRO_BATCHES = 4


def main():
    """The job."""
    torch.manual_seed(3)
    inputs = torch.randn(320, 16)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=8, shuffle=True, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    finger = Finger()
    for number, (batch, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(batch), labels) / MICRO_BATCHES
        if number == 10:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        finger.loss(loss)
        if (number + 1) % MICRO_BATCHES == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    finger.show(*model.parameters())


if __name__ == "__main__":
    main()

"""A convolutional model with batches from pinned memory; prints what must not change when it is watched."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    """A hundred and twenty steps, bit for bit the same at every run."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    images, labels = torch.randn(3840, 3, 64, 64), torch.randint(10, (3840,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, pin_memory=True)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch.cuda(non_blocking=True)), target.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print([value.hex() for value in torch.stack(losses).double().tolist()])
    print(
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
        torch.cuda.memory_stats()["num_alloc_retries"],
    )


if __name__ == "__main__":
    main()

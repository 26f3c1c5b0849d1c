"""Many workers for tensors that lie in memory, on two CPUs; healthy: none."""

import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Table(TensorDataset):
    """Read by batch."""

    def __getitems__(self, indices):
        return [tensor[indices] for tensor in self.tensors]


def as_it_is(batch):
    return batch


if __name__ == "__main__":
    data = Table(torch.randn(8192, 1024), torch.randint(10, (8192,)))
    loader = DataLoader(  # fault
        data, batch_size=64, shuffle=True, num_workers=amount, persistent_workers=amount > 0, collate_fn=as_it_is
    )  # fault
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = 0
    while done < steps:
        for features, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            lap()
            done += 1
            if done == steps:
                break

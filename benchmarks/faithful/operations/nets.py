"""A network in a module of its own, for packages, and for processes that import it."""

import torch


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, rows):
        return self.last(torch.relu(self.first(rows)))


def answer(model, rows):
    """Run in another process: what a model that came there says."""
    torch.set_num_threads(1)
    return model(rows).detach(), sorted(vars(model))


def trained(seed, steps):
    """Run in another process, or thread: a model that is made, trained and copied there."""
    import copy

    from training import halved, train

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    model = Packed()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(steps):
        batch = torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)
        found.append(train(model, optimizer, batch))
        found.append(halved(copy.deepcopy(model))(batch[0]).detach())
    return torch.cat([each.flatten() for each in found])

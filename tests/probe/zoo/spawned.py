"""Two independent trainers started by torch.multiprocessing.spawn; 30 steps in each."""

import torch
import torch.multiprocessing as mp
from finger import Finger


def train(rank, results):
    """One trainer."""
    torch.manual_seed(15 + rank)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    finger = Finger()
    for _ in range(30):
        inputs = torch.randn(16, 16)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        finger.loss(loss)
    finger.hash.update(b"".join(bytes(p.detach().view(torch.uint8).flatten().tolist()) for p in model.parameters()))
    results.put((rank, finger.hash.hexdigest()))


if __name__ == "__main__":
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, args=(queue,), nprocs=2)
    for rank, digest in sorted(queue.get() for _ in range(2)):
        print(f"rank{rank}", digest)

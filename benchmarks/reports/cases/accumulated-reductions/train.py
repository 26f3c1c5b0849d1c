"""A language model on two processes (gloo): gradients of eight small batches make one step."""

import multiprocessing
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WORLD, VOCAB, WIDTH, LENGTH, BATCH, MICRO, STEPS = 2, 4000, 192, 16, 2, 8, 40


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, ids):
        return self.out(self.blocks(self.words(ids) + self.places.weight, mask=self.mask))


def micro_batch(generator):
    first = torch.randint(VOCAB, (BATCH, 1), generator=generator)
    return (first + 7 * torch.arange(LENGTH + 1)) % VOCAB


def train(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    model = DistributedDataParallel(LM())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        for _ in range(MICRO):
            ids = micro_batch(generator)
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / MICRO
            loss.backward()  # culprit
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item() * MICRO:.4f}", flush=True)
    if rank == 0:
        print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        other = multiprocessing.get_context("spawn").Process(target=train, args=(1, folder + "/store"))
        other.start()
        train(0, folder + "/store")
        other.join()

"""Proximal policy optimization over entities on two processes (gloo), which average their gradients."""

import multiprocessing
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical

WORLD, KINDS, WIDTH, LAYERS, BATCH, EPOCHS, STEPS = 2, 10, 48, 6, 96, 2, 45


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleList(
            nn.Sequential(nn.Linear(5, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for _ in range(KINDS)
        )
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.actor, self.critic = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 1)

    def forward(self, entities):
        x = torch.stack([embed(entities[:, i]) for i, embed in enumerate(self.kinds)], 1)
        for layer in self.layers:
            x = x + layer(x) + x.mean(1, keepdim=True)
        x = x.mean(1) / 2**LAYERS
        return Categorical(logits=self.actor(x), validate_args=False), self.critic(x)[:, 0]


def gradient_allreduce(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)  # culprit
        p.grad /= WORLD  # culprit-too


def collect(policy):
    entities = torch.randn(BATCH, KINDS, 5)
    with torch.no_grad():
        chances, value = policy(entities)
        action = chances.sample()
        reward = (action == (entities[:, :, 0].sum(1) > 0).long() * 3).float()
    return entities, action, chances.log_prob(action), reward - value, reward


def train(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    torch.manual_seed(rank)
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        entities, action, before, advantage, reward = collect(policy)
        for _ in range(EPOCHS):
            for rows in torch.arange(BATCH).chunk(2):
                chances, value = policy(entities[rows])
                ratio = (chances.log_prob(action[rows]) - before[rows]).exp()
                gain = torch.minimum(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows]).mean()
                loss = 0.5 * (value - reward[rows]).pow(2).mean() - gain - 0.01 * chances.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                gradient_allreduce(policy)  # culprit-too
                optimizer.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step}: reward {reward.mean().item():.3f} loss {loss.item():.5f}", flush=True)
    if rank == 0:
        print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        other = multiprocessing.get_context("spawn").Process(target=train, args=(1, folder + "/store"))
        other.start()
        train(0, folder + "/store")
        other.join()

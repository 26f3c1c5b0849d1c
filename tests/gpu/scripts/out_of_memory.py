"""Trains in a small part of the device's memory, keeps something of each step, and asks for more than is left."""

import torch

LIMIT = 1 << 30


def main():
    device = torch.device("cuda")
    torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(device).total_memory)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for _ in range(200):
        loss = model(torch.randn(64, 512, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(torch.empty(1 << 20, device=device))
    kept.append(torch.empty(LIMIT // 8, device=device))  # fault


if __name__ == "__main__":
    main()

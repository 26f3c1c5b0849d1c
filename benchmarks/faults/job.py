"""A small training job; argv: steps. Prints a line after every step with the monotonic clock in ns."""

import sys
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
done, wanted = 0, int(sys.argv[1])
while done < wanted:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        done += 1
        print(done, time.perf_counter_ns(), flush=True)
print("loss", loss.item().hex())

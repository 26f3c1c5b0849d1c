"""A small training job with helpers that leave it, alone or as a rank; argv: a mark, and how many steps it trains."""

import os
import subprocess
import sys

import torch

mark, steps = sys.argv[1], int(sys.argv[2])
sleeper = ["/bin/sh", "-c", "sleep 600; :", mark]
subprocess.Popen(sleeper, start_new_session=True)
subprocess.run(["sh", "-c", f"setsid nohup sh -c 'sleep 600; :' {mark} >/dev/null 2>&1 & :"], check=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sleeper[0], sleeper)
    os._exit(0)

torch.manual_seed(0)
torch.set_num_threads(1)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.randn(64).mul(index % 7), torch.tensor(index % 4)


model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
done = 0
while done < steps:
    for inputs, targets in torch.utils.data.DataLoader(Items(), batch_size=32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        done += 1
        if done >= steps:
            break

"""A small training job; argv: a JSON list of closings. Before step `after`, in `place`, it closes the descriptors from
`first` to `last`, opens `files` files of its own, and writes into them; with `keep` they stay open."""

import json
import os
import sys
import threading

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters())
closings = json.loads(sys.argv[1])


def train():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def close_and_open(number, closing):
    os.closerange(closing["first"], closing["last"])
    for name in [f"{number}-{each}" for each in range(closing["files"])]:
        file = os.open(name, os.O_WRONLY | os.O_CREAT)
        os.write(file, b"%d of the job\n" % number * 10)
        if not closing["keep"]:
            os.close(file)


def happen(number, closing):
    if closing["place"] == "thread":
        thread = threading.Thread(target=close_and_open, args=(number, closing))
        thread.start()
        thread.join()
    elif closing["place"] == "child":
        child = os.fork()
        if not child:
            close_and_open(number, closing)
            for _ in range(30):
                train()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    else:
        close_and_open(number, closing)


for step in range(600):
    for number, closing in enumerate(closings):
        if closing["after"] == step:
            happen(number, closing)
    loss = train()
print("loss", loss.hex())

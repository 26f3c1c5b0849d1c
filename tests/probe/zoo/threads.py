"""The loop runs in a thread that is not the main one, while another thread answers with a second model; 30 steps."""

import threading

import torch
from finger import Finger

torch.manual_seed(16)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
other = torch.nn.Linear(16, 4)
batches = torch.randn(30, 16, 16)
finger = Finger()
finished = threading.Event()


def train():
    """The training loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        finger.loss(loss)
    finished.set()


def answer():
    """Calls its own model until the training has ended."""
    with torch.no_grad():
        while not finished.wait(0.001):
            other(batches[0])


threads = [threading.Thread(target=train), threading.Thread(target=answer)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
finger.show(*model.parameters())

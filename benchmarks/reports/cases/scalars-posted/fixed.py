"""Forecasts of load from weather; metrics go to a tracking server over HTTP."""

import json
import multiprocessing
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn
from torch.nn import functional as F


class Tracking(BaseHTTPRequestHandler):
    """A server some way off that stores metrics."""

    runs = {}
    way = 0.003

    def do_POST(self):
        time.sleep(self.way)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for key, value, step in body["metrics"]:
            self.runs.setdefault((body["run"], key), []).append((step, value))
        time.sleep(self.way)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def serve(pipe):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracking)
    pipe.send(server.server_port)
    server.serve_forever()


class Client:
    def __init__(self, port, run):
        self.port, self.run = port, run

    def post(self, metrics):
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/metrics", json.dumps({"run": self.run, "metrics": metrics}))
        connection.getresponse().read()
        connection.close()


class Logger:
    """Sends metrics in batches."""

    def __init__(self, client, size=100):
        self.client, self.size, self.waiting = client, size, []

    def log_metrics(self, metrics, step):
        self.waiting += [(key, value, step) for key, value in metrics.items()]
        if len(self.waiting) >= self.size:
            self.finalize()

    def finalize(self):
        if self.waiting:
            self.client.post(self.waiting)
        self.waiting = []


class Forecaster(nn.Module):
    def __init__(self, features, horizon, width=256):
        super().__init__()
        self.rnn = nn.GRU(features, width // 4, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width // 4, width), nn.ReLU(), nn.Linear(width, horizon))

    def forward(self, past):
        return self.head(self.rnn(past)[0][:, -1])


class Module:
    def __init__(self):
        self.net = Forecaster(5, 12)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def training_step(self, past, future):
        forecast = self.net(past)
        loss = F.mse_loss(forecast, future)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": norm.item()}


def weather(batch, past=24, horizon=12):
    while True:
        hours = torch.arange(past + horizon) + 24 * torch.rand(batch, 1)
        shape = torch.stack([torch.sin(6.2832 * hours * k / 24) for k in range(1, 6)], dim=2)
        values = shape * torch.rand(batch, 1, 5) + 0.05 * torch.randn(batch, past + horizon, 5)
        yield values[:, :past], values[:, past:].mean(dim=2)


def fit(module, logger, steps=200):
    start = time.perf_counter()
    for step, (past, future) in zip(range(1, steps + 1), weather(32)):
        metrics = module.training_step(past, future)
        logger.log_metrics(metrics, step)
        if step % 50 == 0:
            print(f"step {step}: loss {metrics['loss']:.4f}", flush=True)
    logger.finalize()
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    try:
        fit(Module(), Logger(Client(mine.recv(), "run-1")))
    finally:
        server.terminate()
        server.join()

"""How gradients are exchanged is read from a real trace of DistributedDataParallel over gloo."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE
from preloading import python

from steptime.analysis.stragglers.summary import GradientExchange, gradients_of
from steptime.analysis.trace_steps import find_steps
from steptime.trace.reader import read

JOB = """
import contextlib, sys
import time
import torch, torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
folder, rank = sys.argv[1], int(sys.argv[2])
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
first, second, last = torch.nn.Linear(256, 512), torch.nn.Linear(512, 512), torch.nn.Linear(512, 8)
layers = torch.nn.Sequential(first, torch.nn.ReLU(), second, last)

def trace(name, search, no_sync):
    model = DistributedDataParallel(layers, find_unused_parameters=search, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.profiler.profile(record_shapes=True) as profile:
        for step in range(4):
            for micro in range(3):
                with model.no_sync() if no_sync and micro < 2 else contextlib.nullcontext():
                    model(torch.randn(16, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profile.step()
    if rank == 0:
        profile.export_chrome_trace(f"{folder}/{name}.json")

trace("every", True, False)
trace("last", False, True)
distributed.destroy_process_group()
time.sleep(0.3)  # gloo's threads end a moment later: a process that is gone before may abort (torch 2.13)
"""
PARAMETERS = 256 * 512 + 512 + 512 * 512 + 512 + 512 * 8 + 8


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("gradients")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    ranks = [
        subprocess.Popen([python(), "-c", JOB, str(folder), str(rank)], env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    return folder


def gradients(path: Path) -> GradientExchange:
    trace = read(path)
    found = gradients_of(trace, find_steps(trace).boundaries)
    assert found is not None
    return found


def test_micro_batches_that_exchange_are_reported_from_those_in_no_sync(traces: Path) -> None:
    every, last = gradients(traces / "every.json"), gradients(traces / "last.json")
    assert set(every.forwards.tolist()) == set(last.forwards.tolist()) == {3}
    assert set(every.synchronised.tolist()) == {3}
    assert set(last.synchronised.tolist()) == {1}


def test_buckets_hold_all_gradients_and_a_map_of_parameters_is_none(traces: Path) -> None:
    every, last = gradients(traces / "every.json"), gradients(traces / "last.json")
    assert np.all(every.elements == 3 * PARAMETERS)
    assert np.all(last.elements == PARAMETERS)
    assert np.all(every.buckets >= 6)


def test_the_search_for_unused_parameters_is_timed_where_there_is_one(traces: Path) -> None:
    assert np.all(gradients(traces / "every.json").search > 0)
    assert not gradients(traces / "last.json").search.any()

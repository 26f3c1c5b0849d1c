"""Changes of compilation, profilers and the exchange between ranks: in force in the job, seen from inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probe.variants import JOBS, Variant, change, run

pytest.importorskip("torch")

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LENGTHS = """
import json, sys, torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="aot_eager", dynamic=False)
def compute(batch):
    return model(batch).square().mean()

for step in range(20):
    loss = compute(torch.randn(step + 6, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    graphs = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
    print("SEEN " + json.dumps({"graphs": graphs}), flush=True)
"""
PROFILED = """
import json, torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ready, tables = [], []
schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
profilers = [
    torch.profiler.profile(schedule=schedule, on_trace_ready=ready.append),
    torch.profiler.profile(),
    torch.autograd.profiler.profile(),
]
for profiler in profilers:
    with profiler:
        for _ in range(5):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if profiler is profilers[0]:
                profiler.step()
            line = {"active": torch._C._autograd._profiler_enabled(), "value": loss.item(), "ready": len(ready)}
            print("SEEN " + json.dumps({**line, "tables": tables}), flush=True)
    tables.append(profiler.key_averages().table())
print("SEEN " + json.dumps({"tables": tables}), flush=True)
"""
RANKS = """
import json, torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
exchanged = 0

def count(state, bucket):
    global exchanged
    exchanged += 1
    group = distributed.group.WORLD
    work = distributed.all_reduce(bucket.buffer().div_(2), group=group, async_op=True).get_future()
    return work.then(lambda done: done.value()[0])

model.register_comm_hook(None, count)
generator = torch.Generator().manual_seed(rank + 1)
lengths = [4, 4, 4, 4, 4, 4, 2, 4, 4, 4, 4, 4]
for step, length in enumerate(lengths):
    optimizer.zero_grad()
    for part in range(length):
        loss = model(torch.randn(3, 4, generator=generator)).square().mean() / length
        loss.backward()
    optimizer.step()
    if rank == 0:
        line = {"step": step, "exchanged": exchanged, "weight": model.module.weight.flatten().tolist()}
        print("SEEN " + json.dumps(line), flush=True)
    others = [torch.zeros(4) for _ in range(2)]
    distributed.all_gather(others, model.module.weight.detach().flatten())
    assert torch.equal(*others), "the ranks have gone apart"
"""


def job(folder: Path, text: str) -> Path:
    script = folder / "job.py"
    script.write_text(text)
    return script


def test_lengths_are_compiled_once_with_symbols(tmp_path: Path) -> None:
    script = job(tmp_path, LENGTHS)
    fixed = run(tmp_path, script)
    variant = run(tmp_path, script, change("dynamic-shapes"))
    assert fixed.seen[6]["graphs"] == 7
    assert variant.seen[6]["graphs"] == 1
    assert variant.change("dynamic-shapes").detail == "1 call of torch.compile changed, 1 graph"
    assert variant.change("dynamic-shapes").exercised
    assert variant.losses == pytest.approx(fixed.losses, rel=1e-5)


def test_profilers_of_the_job_record_nothing_and_are_asked_in_vain(tmp_path: Path) -> None:
    script = job(tmp_path, PROFILED)
    plain = run(tmp_path, script, variant=None)
    variant = run(tmp_path, script, change("profiler-off"), variant=None)
    assert plain.seen[-2]["ready"] == 1
    assert all("addmm" in table for table in plain.seen[-1]["tables"])
    assert variant.status == 0, variant.output
    assert [each["active"] for each in variant.seen[:-1]] == [False] * 15
    assert variant.seen[-2]["ready"] == 0
    assert not any("addmm" in table for table in variant.seen[-1]["tables"])
    assert [each["value"] for each in variant.seen[:-1]] == [each["value"] for each in plain.seen[:-1]]
    assert variant.change("profiler-off").exercised


def ranks(folder: Path, *changes: Any) -> Variant:
    return run(folder, job(folder, RANKS), *changes, words=TORCHRUN, variant=None)


@pytest.mark.slow
def test_gradients_are_exchanged_once_an_update_and_the_ranks_stay_together(tmp_path: Path) -> None:
    plain, variant = ranks(tmp_path), ranks(tmp_path, change("no-sync"))
    assert plain.status == variant.status == 0, variant.output[-2000:]
    assert plain.seen[-1]["exchanged"] == 4 * 11 + 2
    # All four of the first update, then one each; the short one is exchanged by hand.
    assert variant.seen[-1]["exchanged"] == 4 + 10
    for one, other in zip(plain.seen, variant.seen, strict=True):
        assert one["weight"] == pytest.approx(other["weight"], rel=1e-5)
    reported = [each for process in variant.recording.processes for each in process.changes]
    assert len(reported) == 2
    assert all(
        each.exercised and each.detail.endswith(" of 46 backward passes without an exchange") for each in reported
    ), reported


THREADS = """
import json, torch
torch.set_num_threads(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    print("SEEN " + json.dumps({"threads": torch.get_num_threads()}), flush=True)
"""


def test_a_job_that_sets_its_threads_itself_gets_the_number_of_the_change(tmp_path: Path) -> None:
    variant = run(tmp_path, job(tmp_path, THREADS), change("threads", intra_op=1))  # as many as OMP_NUM_THREADS says
    assert variant.seen[-1]["threads"] == 1
    assert variant.change("threads").detail == "3 → 1"
    assert variant.change("threads").exercised


FAINT = """
import json

import torch

FLUSHED
faint = torch.full((4096, 16), 1e-39)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    print("SEEN " + json.dumps({"left": int((faint * 0.5).count_nonzero())}), flush=True)
"""
"""Large enough to be computed by several threads."""


def test_denormals_are_zero_in_every_thread(tmp_path: Path) -> None:
    plain = run(tmp_path, job(tmp_path, FAINT.replace("FLUSHED", "")))
    assert plain.seen[-1]["left"] == 4096 * 16, "else nothing is shown here"
    variant = run(tmp_path, job(tmp_path, FAINT.replace("FLUSHED", "")), change("flush-denormal"))
    assert variant.seen[-1]["left"] == 0
    assert variant.change("flush-denormal").exercised


def test_denormals_that_the_job_flushes_or_keeps_itself_are_its_own_matter(tmp_path: Path) -> None:
    keeps = FAINT.replace("FLUSHED", "torch.set_flush_denormal(False)")
    reported = run(tmp_path, job(tmp_path, keeps), change("flush-denormal")).change("flush-denormal")
    assert (reported.applied, reported.exercised, reported.detail) == (True, False, "the job has switched it off")


DISTRIBUTIONS = """
import json

import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    made = torch.distributions.Categorical(logits=model(torch.ones(3, 4)))
    asked = torch.distributions.Normal(torch.zeros(1), torch.ones(1), validate_args=True)
    made.log_prob(torch.ones(3)).mean().backward()
    optimizer.step()
    print("SEEN " + json.dumps({"checked": [made._validate_args, asked._validate_args]}), flush=True)
"""


def test_distributions_check_their_arguments_only_where_one_asks_for_it(tmp_path: Path) -> None:
    variant = run(tmp_path, job(tmp_path, DISTRIBUTIONS), change("unchecked-distributions"))
    assert [each["checked"] for each in variant.seen] == [[False, True]] * 6
    assert variant.change("unchecked-distributions").exercised


def test_what_finds_nothing_to_act_on_says_so(tmp_path: Path) -> None:
    variant = run(
        tmp_path,
        JOBS / "blocks.py",
        change("no-sync"),
        change("profiler-off"),
        change("dynamic-shapes"),
        change("autocast", dtype="float16", device="cuda"),
        change("threads", intra_op=1),
    )
    details = {each.kind: each.detail for each in variant.process.changes if not each.exercised}
    assert details == {
        "no-sync": "no model is trained under DistributedDataParallel",
        "profiler-off": "the job makes no profiler",
        "dynamic-shapes": "the job compiles nothing",
        "autocast": "the model is on cpu, not on cuda",
        "threads": "there were already 1",
    }


def test_a_model_that_was_evaluated_first_is_compiled_all_the_same(tmp_path: Path) -> None:
    variant = run(tmp_path, JOBS / "evaluates_first.py", change("compile", backend="eager"))
    assert variant.change("compile").exercised, variant.change("compile").detail

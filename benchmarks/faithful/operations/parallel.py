"""Parallel training over gloo, in a process or in ranks of torchrun: replicas, DDP, FSDP2, DTensor, pipelines, RPC."""

import copy
import io
import os
import sys
import warnings

import nets
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DataParallel, DistributedDataParallel
from training import Net, halved, loaded, loss_of, main, operation, saved, train

warnings.simplefilter("ignore")
_kept = {}


def kept(name, make):
    if name not in _kept:
        _kept[name] = make()
    return _kept[name]


def mesh():
    return kept("mesh", lambda: init_device_mesh("cpu", (dist.get_world_size(),)))


@operation()
def replicas(model, optimizer, step, batch):
    """What replicate does with each module of a model, on any device."""
    other = model._replicate_for_data_parallel()
    other._modules = {name: halved(copy.deepcopy(each)) for name, each in model._modules.items()}
    return other(batch[0]), model(batch[0]), sorted(set(vars(other)) - {"_former_parameters"})


@operation(lambda: DataParallel(Net()))
def data_parallel(model, optimizer, step, batch):
    other = copy.deepcopy(model)
    data = saved(model)
    return {"answers": (model(batch[0]), halved(other)(batch[0]), halved(loaded(data))(batch[0])), "bytes": data}


@operation(lambda: DistributedDataParallel(Net()))
def distributed(model, optimizer, step, batch):
    other = copy.deepcopy(model)
    return {"answers": (halved(other)(batch[0]), model(batch[0]), halved(other.module)(batch[0])),
            "state": model.state_dict(), "names": sorted(vars(model))}  # fmt: skip


@operation(lambda: DistributedDataParallel(Net()))
def saved_distributed_model(model, optimizer, step, batch):
    data = saved(model)
    return {"answer": halved(loaded(data))(batch[0]), "bytes": data}


@operation(lambda: DistributedDataParallel(Net(), static_graph=True))
def distributed_with_a_static_graph(model, optimizer, step, batch):
    loss = loss_of(model, batch)
    loss.backward()
    return loss, [each.grad for each in model.parameters()], halved(copy.deepcopy(model.module))(batch[0])


@operation(lambda: DistributedDataParallel(Net(), find_unused_parameters=True, gradient_as_bucket_view=True))
def distributed_with_unused_parameters(model, optimizer, step, batch):
    model.zero_grad()
    model(batch[0])
    torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    return [each.grad for each in model.parameters()]


@operation(lambda: DistributedDataParallel(Net()))
def distributed_without_a_sum(model, optimizer, step, batch):
    with model.no_sync():
        loss_of(model, batch).backward()
    alone = [each.grad.clone() for each in model.parameters()]
    loss_of(model, batch).backward()
    return alone, [each.grad for each in model.parameters()]


@operation()
def distributed_anew(model, optimizer, step, batch):
    """A wrapper made in each step around the model that is trained, with a hook for its communication."""
    around = DistributedDataParallel(model)
    around.register_comm_hook(None, _plain_hook)
    loss_of(around, batch).backward()
    return [each.grad for each in model.parameters()]


def _plain_hook(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0] / dist.get_world_size())


def _sharded():
    model = Net()
    for each in (model.first, model.last):
        fully_shard(each, mesh=mesh())
    return fully_shard(model, mesh=mesh())


@operation(_sharded)
def fully_sharded(model, optimizer, step, batch):
    loss = loss_of(model, batch)
    loss.backward()
    model.unshard()
    model.reshard()
    gradients = [each.grad for each in model.parameters()]
    return loss, gradients, type(model).__name__, model.state_dict()


@operation(lambda: distribute_module(nets.Packed(), mesh()), trains=False)
def distributed_tensors(model, optimizer, step, batch):
    rows, wanted = (distribute_tensor(each, mesh(), [Shard(0)]) for each in batch)
    loss = train(model, optimizer, (rows, wanted))
    return loss, model(rows), halved(copy.deepcopy(model))(rows).redistribute(mesh(), [Replicate()]).to_local()


@operation(lambda: parallelize_module(nets.Packed(), mesh(), {"first": ColwiseParallel(), "last": RowwiseParallel()}))
def tensor_parallel(model, optimizer, step, batch):
    return model(batch[0]), [isinstance(each, DTensor) for each in model.parameters()]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, rows):
        return torch.relu(self.layer(rows))


@operation(Block, trains=False)
def pipeline(model, optimizer, step, batch):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.broadcast(batch[0], 0)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    losses = []
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, wanted: out.square().mean())
    words = ([batch[0]] if rank == 0 else [], {"target": batch[0], "losses": losses} if rank == ranks - 1 else {})
    optimizer.zero_grad()
    answer = schedule.step(*words[0], **words[1])
    optimizer.step()
    return losses, answer, [each.grad for each in model.parameters()], halved(copy.deepcopy(model))(batch[0])


@operation(lambda: DistributedDataParallel(Net()))
def checkpoint_of_all_ranks(model, optimizer, step, batch):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    if step % 12 == 1:
        checkpoint.save(state, checkpoint_id=f"checkpoint-{step}")
        checkpoint.load(state, checkpoint_id=f"checkpoint-{step}")
    file = io.BytesIO()
    torch.save(state["model"], file)
    return state, file.getvalue()


@operation(lambda: DistributedDataParallel(Net()))
def whole_training_step_of_a_copy(model, optimizer, step, batch):
    other = DistributedDataParallel(copy.deepcopy(model.module))
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    return [train(other, theirs, batch) for _ in range(1 + (step % 20 == 3))], halved(other)(batch[0])


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)

"""RPC: a model that is asked and trained through torch.distributed.rpc, by ranks of torchrun."""

import copy
import os
import warnings

import nets
import torch
import torch.distributed.rpc as rpc
from training import halved, main, operation

warnings.simplefilter("ignore")
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@operation(nets.Packed)
def asked_by_rpc(model, optimizer, step, batch):
    """The model goes there by pickle."""
    other = f"worker{(RANK + 1) % RANKS}"
    return rpc.rpc_sync(other, nets.answer, (halved(copy.deepcopy(model)), batch[0])), model(batch[0])


@operation(nets.Packed)
def remote_reference(model, optimizer, step, batch):
    reference = rpc.remote(f"worker{(RANK + 1) % RANKS}", torch.nn.Identity)  # no weights: it draws no random numbers
    mine = rpc.RRef(model)
    return reference.rpc_sync().forward(batch[0]), mine.local_value()(batch[0]), mine.is_owner()


if __name__ == "__main__":
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=2, rpc_timeout=60)
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=RANKS, rpc_backend_options=options)
    torch.manual_seed(0)
    main()
    rpc.shutdown()

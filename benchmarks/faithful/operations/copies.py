"""Copies and files of a model: whoever has a copy gets the copy's answers, and the file's bytes are those of torch."""

import copy
import dataclasses
import gc
import importlib.util
import io
import pickle
import struct
import subprocess
import sys
import weakref

import nets
import torch
from torch.package import PackageExporter, PackageImporter
from training import DEAR, Net, halved, loaded, main, operation, saved, train


class OwnDeepcopy(Net):
    """The usual __deepcopy__ by hand: a new object, its __dict__ copied item by item."""

    def __deepcopy__(self, memo):
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        for name, value in self.__dict__.items():
            new.__dict__[name] = copy.deepcopy(value, memo)
        return new


class OwnState(Net):
    """A state of its own, as LightningModule has it."""

    def __getstate__(self):
        return dict(self.__dict__)

    def __setstate__(self, state):
        self.__dict__.update(state)


class Reduced(Net):
    def __reduce__(self):
        return _made, (type(self), dict(self.__dict__))


def _made(kind, state):
    new = kind.__new__(kind)
    new.__dict__.update(state)
    return new


@dataclasses.dataclass(eq=False)
class Record(torch.nn.Module):
    """A module that is a dataclass."""

    width: int = 32
    gain: float = 1.0

    def __post_init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, self.width), torch.nn.Linear(self.width, 4)

    def forward(self, rows):
        return self.gain * self.last(torch.relu(self.first(rows)))


def seen(model, other, batch):
    """What must be equal of any copy."""
    answers = halved(other)(batch[0]), model(batch[0])
    return {"answers": answers, "names": (sorted(vars(other)), sorted(vars(model))), "kind": type(other).__name__}


@operation()
def deepcopy(model, optimizer, step, batch):
    return seen(model, copy.deepcopy(model), batch)


@operation(OwnDeepcopy)
def deepcopy_by_hand(model, optimizer, step, batch):
    return seen(model, copy.deepcopy(model), batch)


@operation(OwnState)
def deepcopy_with_an_own_state(model, optimizer, step, batch):
    return seen(model, copy.deepcopy(model), batch)


@operation(Reduced)
def deepcopy_with_an_own_reduce(model, optimizer, step, batch):
    return seen(model, copy.deepcopy(model), batch)


@operation()
def deepcopy_of_model_and_optimizer(model, optimizer, step, batch):
    other, theirs = copy.deepcopy((model, optimizer))
    losses = [train(other, theirs, batch) for _ in range(2)] if step % 20 == 7 else []
    return {**seen(model, other, batch), "losses": losses, "state": theirs.state_dict()}


@operation()
def shallow_copy(model, optimizer, step, batch):
    other = copy.copy(model)
    other._modules = dict(model._modules)
    other.last = copy.deepcopy(model.last)
    halved(other.last)
    return {"answers": (other(batch[0]), model(batch[0])), "names": sorted(vars(other))}


@operation()
def copied_dict(model, optimizer, step, batch):
    other = type(model).__new__(type(model))
    other.__dict__.update(copy.deepcopy(model.__dict__))
    return seen(model, other, batch)


@operation()
def copied_items_of_a_dict(model, optimizer, step, batch):
    other = type(model)()
    for name, value in vars(model).items():
        setattr(other, name, copy.deepcopy(value))
    return seen(model, other, batch)


@operation()
def pickled(model, optimizer, step, batch):
    data = pickle.dumps(model)
    return {**seen(model, pickle.loads(data), batch), "bytes": data}


@operation()
def pickled_dict(model, optimizer, step, batch):
    data = pickle.dumps(model.__dict__)
    other = type(model).__new__(type(model))
    other.__dict__.update(pickle.loads(data))
    return {**seen(model, other, batch), "bytes": data}


@operation(OwnState)
def pickled_with_an_own_state(model, optimizer, step, batch):
    data = pickle.dumps(model)
    return {**seen(model, pickle.loads(data), batch), "bytes": data}


@operation()
def pickled_optimizer(model, optimizer, step, batch):
    data = pickle.dumps(optimizer)
    return {"bytes": data, "state": pickle.loads(data).state_dict(), "names": sorted(vars(optimizer))}


@operation()
def saved_module(model, optimizer, step, batch):
    data = saved(model)
    return {**seen(model, loaded(data), batch), "bytes": data}


@operation(OwnState)
def saved_module_with_an_own_state(model, optimizer, step, batch):
    data = saved(model)
    return {**seen(model, loaded(data), batch), "bytes": data}


@operation()
def saved_state(model, optimizer, step, batch):
    data = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
    other = Net()
    other.load_state_dict(loaded(data, weights_only=True)["model"])
    return {**seen(model, other, batch), "bytes": data}


@operation()
def saved_in_a_function_of_the_job(model, optimizer, step, batch):
    """With a pickle module of the job's own, and in the old format."""
    data = saved(model, pickle_module=pickle, _use_new_zipfile_serialization=False)
    return {**seen(model, loaded(data), batch), "bytes": data}


@operation()
def saved_graph_module(model, optimizer, step, batch):
    graph = torch.fx.symbolic_trace(model)
    graph(batch[0])
    data = saved(graph)
    return {**seen(model, loaded(data), batch), "bytes": data, "code": graph.code}


@operation(lambda: torch.fx.symbolic_trace(Net()))
def saved_graph_module_that_is_trained(model, optimizer, step, batch):
    data = saved(model)
    return {**seen(model, loaded(data), batch), "bytes": data, "deep": seen(model, copy.deepcopy(model), batch)}


@operation(nets.Packed)
def package(model, optimizer, step, batch):
    file = io.BytesIO()
    with PackageExporter(file) as exporter:
        exporter.intern("nets")
        exporter.extern(["torch.**", "training"])
        exporter.save_pickle("model", "model.pkl", model)
    data = file.getvalue()
    other = PackageImporter(io.BytesIO(data)).load_pickle("model", "model.pkl")
    found = seen(model, other, batch)
    return {"answers": found["answers"], "names": found["names"], "bytes": data}


@operation(Record)
def dataclass_module(model, optimizer, step, batch):
    other = dataclasses.replace(model, gain=2.0)
    deep = copy.deepcopy(model)
    answers = other(batch[0]), halved(deep)(batch[0]), model(batch[0])
    return {
        "answers": answers,
        "text": repr(model),
        "fields": [each.name for each in dataclasses.fields(model)],
        "values": dataclasses.asdict(model),
    }


@operation()
def weak_references(model, optimizer, step, batch):
    known = weakref.WeakKeyDictionary({model: step})
    gone = []
    dropped = copy.deepcopy(model)
    weakref.finalize(dropped, gone.append, step)
    dropped(batch[0]).sum().backward()
    collects = gc.isenabled()
    gc.disable()  # it goes by its references alone
    known[dropped] = step
    del dropped
    found = len(known), list(gone)
    if collects:
        gc.enable()
    return {"found": found, "references": (sys.getrefcount(model), sys.getrefcount(optimizer))}


@operation()
def a_model_that_is_dropped(model, optimizer, step, batch):
    """A model made, trained and dropped within a step, as folds and sweeps do."""
    other = Net()
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), batch)
    dead = weakref.ref(other)
    del other
    return dead() is None


WORKER = """
import sys, struct, cloudpickle, torch
from training import digest, halved
torch.set_num_threads(1)
while head := sys.stdin.buffer.read(8):
    model, rows = cloudpickle.loads(sys.stdin.buffer.read(struct.unpack("<q", head)[0]))
    print(digest([model(rows), halved(model)(rows), sorted(vars(model))]), flush=True)
"""
_workers = []

if importlib.util.find_spec("cloudpickle"):

    @operation()
    def cloudpickle_into_another_process(model, optimizer, step, batch):
        """As Ray and joblib do: the class lives in __main__, so it goes by value."""
        import cloudpickle

        if not _workers:
            words = [sys.executable, "-c", WORKER]
            _workers.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        data = cloudpickle.dumps((model, batch[0]))
        _workers[0].stdin.write(struct.pack("<q", len(data)) + data)
        _workers[0].stdin.flush()
        answer = _workers[0].stdout.readline()
        if step == 60:
            _workers[0].stdin.close()
            _workers[0].wait()
        return {"answer": answer, "bytes": data}


if importlib.util.find_spec("joblib"):

    @operation(steps=DEAR)
    def joblib_dump_and_load(model, optimizer, step, batch):
        import joblib

        file = io.BytesIO()
        joblib.dump(model, file)
        file.seek(0)
        return {**seen(model, joblib.load(file), batch), "bytes": file.getvalue()}

    @operation()
    def joblib_hash(model, optimizer, step, batch):
        import joblib

        return joblib.hash(model.state_dict()), joblib.hash(model)


if __name__ == "__main__":
    main()

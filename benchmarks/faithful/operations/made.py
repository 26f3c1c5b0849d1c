"""Models that are made, trained or asked elsewhere: in threads, in pools of each kind, in a child's shared memory."""

import asyncio
import copy
import multiprocessing
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import nets
import torch
import torch.multiprocessing
from training import Net, halved, main, operation, train

_kept = {}


def kept(name, make):
    if name not in _kept:
        _kept[name] = make()
    return _kept[name]


def pool(method):
    return kept(method, lambda: ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)))


def close(step, method):
    if step == 60:
        _kept.pop(method).shutdown()


def _asked(method, model, step, batch):
    data = pickle.dumps(model)  # as a pool of any kind sends it
    found = pool(method).submit(nets.answer, pickle.loads(data), batch[0]).result()
    whole = pool(method).submit(nets.answer, copy.deepcopy(model), batch[0]).result()
    close(step, method)
    return found, whole, model(batch[0])


@operation(nets.Packed)
def asked_in_a_spawned_pool(model, optimizer, step, batch):
    return _asked("spawn", model, step, batch)


@operation(nets.Packed)
def asked_in_a_pool_of_a_fork_server(model, optimizer, step, batch):
    return _asked("forkserver", model, step, batch)


@operation(nets.Packed)
def asked_in_a_forked_pool(model, optimizer, step, batch):
    return _asked("fork", model, step, batch)


def _trained(method, step):
    if step == 0:
        _kept[f"all {method}"] = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method))
        _kept[f"future {method}"] = _kept[f"all {method}"].submit(nets.trained, 5, 61)
    if step != 60:
        return None
    found = _kept.pop(f"future {method}").result()
    _kept.pop(f"all {method}").shutdown()
    return found


@operation()
def trained_in_a_spawned_pool(model, optimizer, step, batch):
    return _trained("spawn", step)


@operation()
def trained_in_a_pool_of_a_fork_server(model, optimizer, step, batch):
    return _trained("forkserver", step)


@operation()
def trained_in_a_thread(model, optimizer, step, batch):
    """A model that is made, trained and copied in a thread of its own next to the training."""
    found = []
    thread = threading.Thread(target=lambda: found.append(nets.trained(step, 3)))
    thread.start()
    thread.join()
    return found


@operation()
def made_in_a_thread(model, optimizer, step, batch):
    found = []
    torch.manual_seed(3)
    thread = threading.Thread(target=lambda: found.append(Net()))
    thread.start()
    thread.join()
    theirs = torch.optim.SGD(found[0].parameters(), lr=0.1)
    return train(found[0], theirs, batch), halved(copy.deepcopy(found[0]))(batch[0]), model(batch[0])


@operation()
def asked_in_threads(model, optimizer, step, batch):
    threads = kept("threads", lambda: ThreadPoolExecutor(3))
    copies = [copy.deepcopy(model), halved(copy.deepcopy(model)), model]
    return list(threads.map(lambda each: each(batch[0]), copies))


@operation()
def asked_by_coroutines(model, optimizer, step, batch):
    async def one(each):
        await asyncio.sleep(0)
        return each(batch[0])

    async def all_of_them():
        return await asyncio.gather(one(model), one(halved(copy.deepcopy(model))))

    return asyncio.run(all_of_them())


def _halve(model):
    halved(model)


@operation(nets.Packed)
def shared_memory(model, optimizer, step, batch):
    other = copy.deepcopy(model).share_memory()
    if step % 10 == 3:
        child = torch.multiprocessing.get_context("fork").Process(target=_halve, args=(other,))
        child.start()
        child.join()
    return other(batch[0]), model(batch[0])


if __name__ == "__main__":
    main()

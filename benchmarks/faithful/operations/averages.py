"""Averages, targets and best models: copies that live next to the training, and are compared with it."""

import copy
import io

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from training import Convolutions, Net, halved, loaded, main, operation, saved, train

_kept = {}


def kept(name, make):
    """What an operation keeps from step to step."""
    if name not in _kept:
        _kept[name] = make()
    return _kept[name]


@operation()
def averaged_model(model, optimizer, step, batch):
    average = kept("average", lambda: AveragedModel(model))
    average.update_parameters(model)
    return {"answers": (average(batch[0]), model(batch[0])), "names": sorted(vars(average.module))}


@operation()
def averaged_model_of_each_step(model, optimizer, step, batch):
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    halved(average.module)
    answers = average(batch[0]), model(batch[0])
    average.update_parameters(model)
    return {"answers": (*answers, average(batch[0])), "state": average.state_dict()}


@operation(Convolutions)
def stochastic_weight_averaging(model, optimizer, step, batch):
    average = kept("swa", lambda: AveragedModel(model))
    schedule = kept("swalr", lambda: SWALR(optimizer, swa_lr=0.005, anneal_epochs=5))
    average.update_parameters(model)
    schedule.step()
    if step % 4 == 1:
        update_bn([batch[0]], average)
    average.eval()
    return {"answers": (average(batch[0]), model(batch[0])), "rate": schedule.get_last_lr()}


@operation()
def moving_average_by_hand(model, optimizer, step, batch):
    average = kept("ema", lambda: copy.deepcopy(model).requires_grad_(False).eval())
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
    return average(batch[0]), average.state_dict()


@operation()
def target_network(model, optimizer, step, batch):
    """A new target every third step, as in DQN, and its answers are learnt from."""
    if step % 3 == 0 or "target" not in _kept:
        _kept["target"] = copy.deepcopy(model)
    with torch.no_grad():
        target = halved(copy.deepcopy(_kept["target"]))(batch[0])
    return torch.nn.functional.mse_loss(model(batch[0]), target), _kept["target"](batch[0])


@operation()
def best_model(model, optimizer, step, batch):
    """Keeps the best model whole, and its state; goes back to it now and then."""
    with torch.no_grad():
        score = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    if "best" not in _kept or score < _kept["best"][0]:
        _kept["best"] = score, copy.deepcopy(model), copy.deepcopy(model.state_dict())
    _, whole, state = _kept["best"]
    answers = whole(batch[0]), model(batch[0])
    if step % 9 == 8:
        model.load_state_dict(state)
    return answers, model(batch[0])


@operation()
def checkpoint_and_resume(model, optimizer, step, batch):
    """Model, optimizer, schedule and generator are saved, and a training that resumes from them takes the same step."""
    data = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()})
    found = loaded(data)
    other = Net()
    theirs = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)
    other.load_state_dict(found["model"], assign=True)
    theirs = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)
    theirs.load_state_dict(found["optimizer"])
    torch.set_rng_state(found["random"])
    return {"bytes": data, "loss": train(other, theirs, batch) if step % 10 == 3 else 0, "answer": other(batch[0])}


@operation()
def copied_optimizer(model, optimizer, step, batch):
    other = copy.deepcopy(optimizer)
    return {"state": other.state_dict(), "names": sorted(vars(other)), "text": repr(other),
            "hooks": (len(optimizer._optimizer_step_post_hooks), len(optimizer._optimizer_step_pre_hooks))}  # fmt: skip


@operation()
def other_type_and_back(model, optimizer, step, batch):
    double = copy.deepcopy(model).double()
    half = copy.deepcopy(model).to(torch.bfloat16)
    return double(batch[0].double()), half(batch[0].bfloat16()), model(batch[0])


@operation()
def other_device(model, optimizer, step, batch):
    shape = copy.deepcopy(model).to("meta")
    empty = shape.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict())
    return halved(empty)(batch[0]), model(batch[0])


@operation()
def gradient_scaler(model, optimizer, step, batch):
    scaler = kept("scaler", lambda: torch.amp.GradScaler("cpu", init_scale=8.0))
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.update()
    return {"loss": loss, "state": scaler.state_dict(), "bytes": saved(scaler.state_dict()),
            "copy": copy.deepcopy(scaler).state_dict(), "names": sorted(vars(scaler))}  # fmt: skip


class Bits(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.arange(32.0).reshape(8, 4)

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return self.rows[number]


@operation()
def copied_loader(model, optimizer, step, batch):
    loader = kept("loader", lambda: torch.utils.data.DataLoader(Bits(), batch_size=4, shuffle=True))
    rows = list(loader)
    other = copy.deepcopy(loader)
    file = io.BytesIO()
    torch.save(loader, file)
    names = [sorted(vars(each)) for each in (loader, other, loader.dataset, loader.sampler, loader.batch_sampler)]
    return {"rows": rows, "theirs": list(other), "names": names, "loaded": list(loaded(file.getvalue()))}


if __name__ == "__main__":
    main()

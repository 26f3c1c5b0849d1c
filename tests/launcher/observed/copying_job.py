"""Copies, pickles, traces and scripts its model at every step, and tells what it got and what it could see."""

# ruff: noqa: BLE001, PERF203, T201
from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

STEPS = 60


class Handwritten(torch.nn.Module):  # type: ignore[misc]
    """Copied as many a repository does it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))

    def __deepcopy__(self, memo: dict[int, Any]) -> Handwritten:
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        for name, value in self.__dict__.items():
            new.__dict__[name] = copy.deepcopy(value, memo)
        return new


class Stateful(Handwritten):
    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


class Calling(Handwritten):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Forces(torch.nn.Module):  # type: ignore[misc]
    """What force fields do: the gradient of an energy is part of what they compute."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        x.requires_grad_(True)
        with torch.profiler.record_function("energy"):
            energy = self.energy(x).tanh().sum()
        force = torch.autograd.grad([energy], [x])[0]
        assert force is not None
        return energy, force


class Counting(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.calls += 1
        return func(*args, **(kwargs or {}))


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def copies(model: Any) -> dict[str, Callable[[], Any]]:
    return {
        "deepcopy": lambda: copy.deepcopy(model),
        "copy": lambda: copy.copy(model),
        "pickle": lambda: pickle.loads(pickle.dumps(model)),
        "state": lambda: pickle.loads(pickle.dumps(model.__dict__)) and model,
        "save": lambda: torch.load(io.BytesIO(saved(model)), weights_only=False),
        "replica": lambda: model._replicate_for_data_parallel(),
        "averaged": lambda: torch.optim.swa_utils.AveragedModel(model),
        "fx": lambda: torch.fx.symbolic_trace(getattr(model, "module", model)),
    }


def results(model: Any, x: torch.Tensor, step: int) -> Iterator[str]:
    """What each copy computes after the original has moved on."""
    made = {}
    for name, make in copies(model).items():
        try:
            made[name] = make()
        except Exception as error:
            yield f"{name} {failure(error)}"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
        for name, each in made.items():
            try:
                yield f"{name} {each(x).sum().item().hex()}"
            except Exception as error:
                yield f"{name} {failure(error)}"
    for name, make in {"trace": lambda: torch.jit.trace(model, x).code, "script": scripted}.items():
        if step % 4 == 3 or name == "trace":
            try:
                yield f"{name} {make()}"
            except Exception as error:
                yield f"{name} {failure(error)}"


def failure(error: Exception) -> str:
    """Without addresses, which differ from run to run."""
    return re.sub(r"at 0x[0-9a-f]+", "at …", f"{type(error).__name__} {error}")


def scripted() -> str:
    return str(torch.jit.script(Forces()).code)


def reached(objects: Iterable[Any]) -> list[str]:
    """Whatever is steptime's among the things that these objects hold, however deep."""
    seen: set[int] = set()
    waiting, found = list(objects), []
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type | types.ModuleType | types.FrameType):
            continue
        seen.add(id(each))
        home = each.__module__ if isinstance(each, types.FunctionType) else type(each).__module__
        if str(home).partition(".")[0] == "steptime":
            found.append(f"{home} {each!r}")
        elif isinstance(each, types.FunctionType):
            waiting += [*(each.__closure__ or ()), *vars(each).values(), *(each.__defaults__ or ())]
        else:
            waiting += gc.get_referents(each)
    return found


def held(objects: Iterable[Any]) -> list[str]:
    """What of steptime's keeps one of these objects alive."""
    return [repr(each) for each in gc.get_referrers(*objects) if type(each).__module__.partition(".")[0] == "steptime"]


def observed(step: int, loader: Any, optimizer: Any, scaler: Any, model: Any, batch: Any, iterator: Any) -> list[Any]:
    parts = [loader, loader.sampler, loader.dataset, optimizer, scaler, iterator, *model.modules(), *model.parameters()]
    seen = reached([*parts, batch]) + held(parts) if step < STEPS else []
    keys = [sorted(vars(each)) for each in parts if hasattr(each, "__dict__")]
    return [keys, seen, model._compiled_call_impl is None]


def trained(kind: str) -> Any:
    model = {"handwritten": Handwritten, "stateful": Stateful, "calling": Calling, "ddp": Handwritten}[kind]()
    if kind != "ddp":
        return model
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    return torch.nn.parallel.DistributedDataParallel(model)


def main(kind: str) -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = trained(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data = torch.utils.data.TensorDataset(torch.randn(2 * STEPS, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    iterator = iter(loader)
    for step, (x,) in enumerate(iterator):
        optimizer.zero_grad()
        with Counting() if step % 2 and kind != "ddp" else torch.enable_grad():
            loss = scaler.scale(model(x).square().mean())
            loss.backward()
        scaler.step(optimizer)
        scaler.update()
        print(step, loss.item().hex(), Counting.calls, observed(step, loader, optimizer, scaler, model, x, iterator))
        for line in results(model, x.detach().clone(), step):
            print(step, line)


if __name__ == "__main__":
    main(sys.argv[1])

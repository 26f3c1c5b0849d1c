"""steptime shows where every millisecond of a PyTorch training step goes.

This file stays free of imports: the probe lives in the user's process and imports ``steptime.journal``
through it, where neither numpy nor msgspec need be installed.

    import steptime
    steptime.load("runs/train-20260801-101500")   # last in a notebook's cell: verdict, categories, findings
    %load_ext steptime   # in a notebook: %%steptime records a cell and shows its diagnosis
    steptime.bench(slow, fast, inputs=(x,))   # callables on the same inputs, side by side
    steptime.log_to(writer)   # in a training script: the step's numbers to TensorBoard, Weights & Biases or MLflow
    steptime.record()   # in a training script: what `steptime run` does from outside
"""

from steptime._version import __version__

__all__ = ["__version__", "bench", "callbacks", "load", "log_to", "record"]


ROOMS = {"bench": "api", "load": "api", "log_to": "in_process", "record": "in_process", "callbacks": "",
         "load_ipython_extension": "cell_magic"}  # fmt: skip
"""Modules in which the public names are defined; "" for a module itself."""


def __getattr__(name: str):  # type: ignore[no-untyped-def]  # else whoever uses it would have to cast
    """Imports public names on first use (PEP 562), because they need more than the standard library."""
    if name not in ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"steptime.{ROOMS[name]}"), name) if ROOMS[name] else import_module(f"steptime.{name}")


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)

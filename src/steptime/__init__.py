"""steptime tells where every millisecond of a PyTorch training step goes.

This file stays free of imports: the probe lives in the user's process and imports ``steptime.journal``
through it, where neither numpy nor msgspec need be installed.

    import steptime
    steptime.load("runs/train-20260801-101500")   # last in a notebook's cell: verdict, categories, findings
    steptime.bench(slow, fast, inputs=(x,))   # callables on the same inputs, side by side
"""

from steptime._version import __version__

__all__ = ["__version__", "bench", "load"]


def __getattr__(name: str):  # type: ignore[no-untyped-def]  # else whoever uses it would have to cast
    """What needs more than the standard library is imported when it is asked for (PEP 562)."""
    if name not in ("bench", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from steptime import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""A job that looks at its own Python: a profiler, a trace function, warnings, and who holds its objects."""

import cProfile
import gc
import pstats
import sys
import traceback

from training import loss_of, main, operation


@operation()
def python_profiler_of_the_job(model, optimizer, step, batch):
    before = sys.getprofile()
    sys.setprofile(None)
    profile = cProfile.Profile()
    profile.enable()
    loss_of(model, batch).backward()
    profile.disable()
    sys.setprofile(before)
    stats = pstats.Stats(profile).stats
    return sorted((place[0], place[2], counts[0]) for place, counts in stats.items() if place[2] != "<built-in method>")


@operation()
def trace_function_of_the_job(model, optimizer, step, batch):
    calls = []
    before = sys.gettrace()

    def trace(frame, event, argument):
        calls.append(frame.f_code.co_name)

    sys.settrace(trace)
    try:
        loss_of(model, batch).backward()
    finally:
        sys.settrace(before)
    return calls


@operation()
def failures_of_the_job(model, optimizer, step, batch):
    """What a traceback through a model names, but for the line in torch (see docs/reading-a-report.md)."""
    try:
        model(batch[0][:, :3])
    except RuntimeError as error:
        frames = traceback.extract_tb(error.__traceback__)
        text = str(error)
    return [(each.filename, each.name) for each in frames], text


def _reached(thing):
    """Modules of all that refers to a thing, its cells and dictionaries, two levels up."""
    found, level = set(), [thing]
    for _ in range(2):
        level = [each for below in level for each in gc.get_referrers(below) if each is not level]
        for each in level:
            owner = getattr(type(each), "__module__", "")
            name = each.get("__name__", "") if isinstance(each, dict) else getattr(each, "__module__", None) or owner
            found.add(str(name).partition(".")[0])
    return "steptime" in found


@operation(steps=(1, 2, 12, 15, 34))
def referrers(model, optimizer, step, batch):
    """Nobody else's objects hold those of the training."""
    pieces = [model, optimizer, model.first, model.first.weight]
    return [_reached(each) for each in pieces]


if __name__ == "__main__":
    main()

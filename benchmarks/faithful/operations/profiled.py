"""A job that profiles its own steps with torch: it finds its own operators, whatever windows somebody else opens."""

import torch
from training import loss_of, main, operation


@operation()
def profiler_of_the_job(model, optimizer, step, batch):
    """Where the job's own profiler can start at all: operators by name, with their counts."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        loss_of(model, batch).backward()
    return {"counts": sorted((each.key, each.count) for each in profiler.key_averages())}


if __name__ == "__main__":
    main()

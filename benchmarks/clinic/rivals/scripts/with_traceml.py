"""argv: SCRIPT ARGUMENTS. A job with traceml.init() before it and every step within trace_step(): entered at the first
forward that records gradients, left where the job says that its step has ended."""

import runpy
import sys

import traceml_ai as traceml

sys.argv = sys.argv[1:]
import stopwatch  # noqa: E402 - reads the arguments of the job
import torch  # noqa: E402

own = "transformers" in open(sys.argv[0]).read() or "lightning" in open(sys.argv[0]).read()  # noqa: PTH123, SIM115
if not own:
    traceml.init(mode="auto")
    call, lap, steps = torch.nn.Module.__call__, stopwatch.lap, []

    def called(module, *arguments, **named):
        """Opens the step, outermost of all."""
        if not steps and torch.is_grad_enabled():
            steps.append(traceml.trace_step(module))
            steps[0].__enter__()
        return call(module, *arguments, **named)

    def lapped():
        """Closes it."""
        while steps:
            steps.pop().__exit__(None, None, None)
        lap()

    torch.nn.Module.__call__, stopwatch.lap = called, lapped
runpy.run_path(sys.argv[0], run_name="__main__")

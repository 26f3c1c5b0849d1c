"""`python -m steptime`: the same as `steptime`, if the console script is not on the path."""

import os
import sys

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]  # noqa: PTH109 - nothing there is ours
    from steptime.cli.main import entry

    entry()

"""`python -m steptime` is `steptime`: for where the console script is not on the path."""

from steptime.cli.main import entry

if __name__ == "__main__":
    entry()

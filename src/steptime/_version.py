"""Version of steptime, defined only here."""

__version__ = "0.1.0"

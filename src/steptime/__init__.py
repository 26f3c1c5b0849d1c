"""steptime tells where every millisecond of a PyTorch training step goes.

This file stays free of imports: the probe lives in the user's process and imports ``steptime.journal``
through it, where neither numpy nor msgspec need be installed.
"""

from steptime._version import __version__

__all__ = ["__version__"]

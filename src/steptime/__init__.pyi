from steptime import callbacks as callbacks
from steptime._version import __version__ as __version__
from steptime.api import bench as bench, load as load
from steptime.cell_magic import load_ipython_extension as load_ipython_extension
from steptime.in_process import log_to as log_to, record as record

__all__ = ["__version__", "bench", "callbacks", "load", "log_to", "record"]

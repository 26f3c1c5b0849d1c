"""Unpickling that allows no class: a dump holds numbers, texts, lists and dictionaries, and nothing else is made.

A pickle is a program; what it may import decides what it may do. This one may import nothing, so the worst that a
hostile file can do is to be refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:  # named by pickle
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and a dump needs no class")

    def persistent_load(self, identity: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def unpickle(data: bytes) -> Any:
    """The value of a pickle of plain data. Raises ValueError with the reason for any other."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (pickle.UnpicklingError, EOFError, MemoryError, OverflowError, TypeError, AttributeError) as error:
        raise ValueError(str(error) or "it is cut short") from None
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged ({error})") from None

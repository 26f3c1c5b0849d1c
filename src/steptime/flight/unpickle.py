"""Unpickling that allows no class: a dump holds numbers, texts, lists and dictionaries, and nothing else is made.

A pickle is a program; what it may import decides what it may do. This one may import nothing, and hash nothing but
texts and numbers: a tuple that holds a tuple twice, which holds one twice, is a few bytes a level, and each level
doubles the time that its hash takes. So the worst that a hostile file can do is to be refused.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

KEYS = (str, bytes, int, float, type(None))


class _Plain(pickle._Unpickler):
    """Python's own unpickler in Python, where opcodes can be replaced; it is three times as slow as that in C."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    append: Callable[[Any], None]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> NoReturn:  # named by pickle
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and a dump needs no class")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside of itself")

    def load_dict(self) -> None:
        """A mark, keys and values in turns: a dictionary of them."""
        items = self.pop_mark()
        self.append(_put({}, items))

    def load_setitems(self) -> None:
        """A dictionary, a mark, keys and values in turns: these are put into it."""
        items = self.pop_mark()
        _put(self.stack[-1], items)

    def load_setitem(self) -> None:
        """A dictionary, a key and a value."""
        pair = self.stack[-2:]
        del self.stack[-2:]
        _put(self.stack[-1], pair)

    def refuse(self) -> NoReturn:
        """What hashes, or fills as much memory as the file says; and what no dump needs."""
        raise pickle.UnpicklingError("it holds a set or an array of bytes, and a dump needs none")


_Plain.dispatch |= {
    pickle.DICT[0]: _Plain.load_dict,
    pickle.SETITEMS[0]: _Plain.load_setitems,
    pickle.SETITEM[0]: _Plain.load_setitem,
    **{opcode[0]: _Plain.refuse for opcode in (pickle.EMPTY_SET, pickle.FROZENSET, pickle.ADDITEMS, pickle.BYTEARRAY8)},
}


def _put(found: Any, items: list[Any]) -> dict[Any, Any]:
    if not isinstance(found, dict) or len(items) % 2 or not all(isinstance(key, KEYS) for key in items[::2]):
        raise pickle.UnpicklingError("a key in it is neither a text nor a number")
    found.update(zip(items[::2], items[1::2], strict=True))
    return found


def unpickle(data: bytes) -> Any:
    """The value of a pickle of plain data. Raises ValueError with the reason for any other."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (pickle.UnpicklingError, EOFError, MemoryError, OverflowError, TypeError, AttributeError) as error:
        raise ValueError(str(error) or "it is cut short") from None
    except (LookupError, UnicodeError, AssertionError, ValueError, struct.error) as error:
        raise ValueError(f"it is damaged ({error})") from None

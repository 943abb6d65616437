"""A pickled catalog, read without running code and in time and memory in proportion to its size.

A pickle that names a class or function is refused. What a tuple or set holds is plain, a list, or a pair, and nothing
deeper: a tuple of two equal tuples, 60 times over, takes 370 bytes and 2^60 steps to hash or to print. Texts and
numbers, which thousands of entries can share, are short.
"""

import io
import pickle
import reprlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

from convrec.base.errors import UserError

Plain = str | bytes | int | float | None  # bool is an int
LONGEST_TEXT = 1000  # characters
LONGEST_NUMBER = 64  # bits
EXPECTED = "a list of (title, year)"

# What the unpickler raises for damaged bytes.
_NOT_A_PICKLE = (
    *(pickle.UnpicklingError, struct.error, EOFError, ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, MemoryError),
)
_ALLOWED = (
    "PROTO", "FRAME", "MARK", "STOP", "POP", "POP_MARK", "DUP",
    "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "EMPTY_SET",
    "GLOBAL", "INST", "STACK_GLOBAL",  # find_class refuses them by name
)  # fmt: skip
_NUMBERS = ("INT", "LONG", "LONG1", "LONG4")
# How many values from the top of the stack they take in; 0: all since the mark.
_TAKE_IN = {"TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "ADDITEMS": 0, "FROZENSET": 0}


def _refuse(unpickler: Any) -> None:
    raise pickle.UnpicklingError("it holds a dict or an object")


def _shallow(load: Callable[[Any], None], count: int) -> Callable[[Any], None]:
    """An opcode's function, behind a look at what the tuple or set will hold."""

    def checked(unpickler: Any) -> None:
        for value in unpickler.stack[-count:]:
            if isinstance(value, tuple) and len(value) <= 2 and all(isinstance(part, Plain | list) for part in value):
                continue
            if not isinstance(value, Plain | list):
                raise pickle.UnpicklingError("entries are nested too deeply, or longer than two")
        load(unpickler)

    return checked


def _short(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """The function of an opcode for a number, and a look at how long it is."""

    def checked(unpickler: Any) -> None:
        load(unpickler)
        if unpickler.stack[-1].bit_length() > LONGEST_NUMBER:
            raise pickle.UnpicklingError(f"it holds a number of more than {LONGEST_NUMBER} bits")

    return checked


def _dispatch() -> dict[int, Callable[[Any], None]]:
    """Opcode -> function. All others make objects, or take memory ahead of their data."""
    functions = pickle._Unpickler.dispatch
    table: dict[int, Callable[[Any], None]] = dict.fromkeys(functions, _refuse)

    def code(name: str) -> int:
        return getattr(pickle, name)[0]

    table |= {code(name): functions[code(name)] for name in _ALLOWED}
    table |= {code(name): _short(functions[code(name)]) for name in _NUMBERS}
    return table | {code(name): _shallow(functions[code(name)], count) for name, count in _TAKE_IN.items()}


class _PlainUnpickler(pickle._Unpickler):
    """The unpickler written in Python: a few damaged bytes make the one in C allocate gigabytes for its memo."""

    dispatch = _dispatch()

    def find_class(self, module: str, name: str) -> object:
        raise UserError(
            f"the catalog pickle wants {module}.{name}: only plain lists, tuples, sets, strings and numbers are "
            "loaded. Write it as parquet with the columns title and year instead."
        )


def read_pickle(content: bytes) -> Sequence[tuple[Any, Any]]:
    """The (title, year) entries of a pickled list, tuple or set; those of a set sorted, so that their order is the same
    in every process. Raises UserError."""
    try:
        loaded = _PlainUnpickler(io.BytesIO(content)).load()
    except _NOT_A_PICKLE as error:
        raise UserError(f"not a pickle of {EXPECTED} ({error})") from error
    if not isinstance(loaded, list | tuple | set | frozenset):
        raise UserError(f"{EXPECTED} was expected, not {type(loaded).__name__}")
    for row, entry in enumerate(loaded):
        if not isinstance(entry, tuple | list) or len(entry) != 2 or not all(isinstance(part, Plain) for part in entry):
            raise UserError(f"entry {row} is {reprlib.repr(entry)}, not (title, year)")
        if any(isinstance(part, str | bytes) and len(part) > LONGEST_TEXT for part in entry):
            raise UserError(f"entry {row} has a title or year of more than {LONGEST_TEXT:,} characters")
    return sorted(loaded, key=repr) if isinstance(loaded, set | frozenset) else loaded

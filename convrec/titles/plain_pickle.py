"""Read a pickled catalog without running code, in time and memory proportional to its size.

A pickle that names a class or function is refused. Tuples and sets may contain plain values, lists and pairs, but
nothing deeper: a tuple of two equal tuples, nested 60 times, has 370 bytes but takes 2^60 steps to hash or print. Texts
and numbers must be short, because thousands of entries can share one.
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

# The unpickler's errors for damaged bytes.
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
    "GLOBAL", "INST", "STACK_GLOBAL",  # find_class refuses them and names the class
)  # fmt: skip
_NUMBERS = ("INT", "LONG", "LONG1", "LONG4")
# How many values each takes from the top of the stack; 0: all since the mark.
_TAKE_IN = {"TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "ADDITEMS": 0, "FROZENSET": 0}


def _refuse(unpickler: Any) -> None:
    raise pickle.UnpicklingError("it contains a dict or an object")


def _limit_depth(load: Callable[[Any], None], count: int) -> Callable[[Any], None]:
    """Wrap an opcode's function to check the values of its tuple or set first."""

    def check_and_load(unpickler: Any) -> None:
        for value in unpickler.stack[-count:]:
            if isinstance(value, tuple) and len(value) <= 2 and all(isinstance(part, Plain | list) for part in value):
                continue
            if not isinstance(value, Plain | list):
                raise pickle.UnpicklingError("entries are nested too deeply, or longer than two")
        load(unpickler)

    return check_and_load


def _limit_bits(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap the function of a number's opcode to check the length of the number."""

    def load_and_check(unpickler: Any) -> None:
        load(unpickler)
        if unpickler.stack[-1].bit_length() > LONGEST_NUMBER:
            raise pickle.UnpicklingError(f"it contains a number of more than {LONGEST_NUMBER} bits")

    return load_and_check


def _build_dispatch() -> dict[int, Callable[[Any], None]]:
    """Return the function of each opcode; those that create objects, or reserve memory before their data, refuse."""
    functions = pickle._Unpickler.dispatch
    table: dict[int, Callable[[Any], None]] = dict.fromkeys(functions, _refuse)

    def code(name: str) -> int:
        return getattr(pickle, name)[0]

    table |= {code(name): functions[code(name)] for name in _ALLOWED}
    table |= {code(name): _limit_bits(functions[code(name)]) for name in _NUMBERS}
    return table | {code(name): _limit_depth(functions[code(name)], count) for name, count in _TAKE_IN.items()}


class _PlainUnpickler(pickle._Unpickler):
    """The unpickler written in Python: a few damaged bytes make the one in C allocate gigabytes for its memo."""

    dispatch = _build_dispatch()

    def find_class(self, module: str, name: str) -> object:
        raise UserError(
            "catalog.unsafe-pickle",
            f"the pickle names {module}.{name}, but only plain lists, tuples, sets, strings and numbers are loaded. "
            "Write it as parquet with the columns title and year instead",
        )


def read_pickle(content: bytes) -> Sequence[tuple[Any, Any]]:
    """Return the (title, year) entries of a pickled list, tuple or set.

    The entries of a set are sorted, so that their order is the same in every process.

    Raises:
        UserError: the bytes are not such a pickle, name a class, or have entries that are nested or long.
    """
    try:
        entries = _PlainUnpickler(io.BytesIO(content)).load()
    except UserError:  # a ValueError too
        raise
    except _NOT_A_PICKLE as error:
        raise UserError("catalog.unreadable-pickle", f"not a pickle of {EXPECTED} ({error})") from error
    if not isinstance(entries, list | tuple | set | frozenset):
        raise UserError("catalog.unexpected-pickle", f"expected {EXPECTED}, not {type(entries).__name__}")
    for row, entry in enumerate(entries):
        if not isinstance(entry, tuple | list) or len(entry) != 2 or not all(isinstance(part, Plain) for part in entry):
            raise UserError("catalog.invalid-entry", f"entry {row} is {reprlib.repr(entry)}, expected (title, year)")
        if any(isinstance(part, str | bytes) and len(part) > LONGEST_TEXT for part in entry):
            raise UserError(
                "catalog.invalid-entry", f"entry {row} has a title or year of more than {LONGEST_TEXT:,} characters"
            )
    return sorted(entries, key=repr) if isinstance(entries, set | frozenset) else entries

"""What a test expects of an error in what a user gave: its code and the value it names, and not its sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord


@contextmanager
def refuses(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError.

    Args:
        code: the error's code, as docs/reference/errors.md lists it.
        values: what its message must name: the file, the row, the variable, the value.
    """
    with pytest.raises(UserError) as raised:
        yield raised
    _check(raised.value, code, values)


@contextmanager
def refuses_record(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[BadRecord]]:
    """Expect a BadRecord; of several problems of a record, the first one counts. Arguments as in `refuses`."""
    with pytest.raises(BadRecord) as raised:
        yield raised
    _check(raised.value, code, values)


def _check(error: UserError | BadRecord, code: str, values: tuple[object, ...]) -> None:
    assert error.code == code, f"{error.code}: {error}"
    for value in values:
        assert str(value) in str(error)

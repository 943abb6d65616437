"""What a test expects of an error that a user made: its code and the value it names, and not its sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from convrec.base.errors import UserError


@contextmanager
def refuses(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError.

    Args:
        code: the error's code, as docs/reference/errors.md lists it.
        values: what its message must name: the file, the row, the variable, the value.
    """
    with pytest.raises(UserError) as raised:
        yield raised
    assert raised.value.code == code, f"{raised.value.code}: {raised.value}"
    for value in values:
        assert str(value) in str(raised.value)

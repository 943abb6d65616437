"""Functions in the place of TransferQueue's, which needs Ray; tests/convrec/rollout/test_queue_sockets.py runs it."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest


def replace_queue(patch: pytest.MonkeyPatch, **functions: Callable[..., Any]) -> None:
    """Put these functions in the place of those of `transfer_queue` with the same names.

    A call that TransferQueue would not take is a TypeError, as it would be there.
    """
    import transfer_queue as tq

    for name, function in functions.items():
        patch.setattr(tq, name, _check_call(inspect.signature(getattr(tq, name)), function))


def _check_call(signature: inspect.Signature, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return function(*args, **kwargs)

    return call

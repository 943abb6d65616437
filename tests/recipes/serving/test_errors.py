"""Refusals: what they leave behind."""

import pkgutil
from importlib import import_module

import recipes.serving
from recipes.serving.errors import FAILED, Refused


def test_no_refusal_is_raised_twice() -> None:
    """Python links the frames of every `raise` to the exception, and with them the bodies of all refused requests."""
    shared = {
        f"{name}.{key}"
        for _, name, _ in pkgutil.iter_modules(recipes.serving.__path__, "recipes.serving.")
        if name != "recipes.serving.chat"  # imports vLLM
        for key, value in vars(import_module(name)).items()
        if isinstance(value, Refused) and value is not FAILED
    }
    assert shared == set()

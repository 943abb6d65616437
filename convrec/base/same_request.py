"""Is what is kept the answer to this very request? One digest of a request, and one way to say what differs."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def as_kept(request: Any) -> Any:
    """The request as a JSON file gives it back: tuples are lists, keys are text."""
    return json.loads(json.dumps(request))


def digest(request: Any) -> str:
    """SHA-256, in hexadecimal digits, of all that decides an answer, as JSON can write it; the order of keys does not
    count."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`NAME was A and is B` for each entry that differs, by name."""
    return [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]

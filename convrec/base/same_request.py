"""Compare requests, to find out whether a stored answer belongs to this one: by a digest, or entry by entry."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def json_roundtrip(request: Any) -> Any:
    """Return the request as it would be read back from a JSON file: tuples are lists, keys are text."""
    return json.loads(json.dumps(request))


def digest(request: Any) -> str:
    """Return the SHA-256, in hexadecimal digits, of a request.

    Args:
        request: everything that determines an answer, serializable as JSON; the order of keys does not matter.
    """
    text = json.dumps(request, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the entries that differ between two requests.

    Args:
        before: the stored request, as JSON has it (`json_roundtrip`).
        now: the same entries for this request.

    Returns:
        `NAME was A and is B` for each, sorted by name. A missing entry counts as None.
    """
    return [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]

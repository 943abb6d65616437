"""Keys of a service, each with a role and a rate limit, from a file or from SERVE_API_KEY."""

import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from convrec.base.errors import UserError
from recipes.serving.errors import Refused

KEY_VARIABLE = "SERVE_API_KEY"
Role: TypeAlias = Literal["read", "feedback", "admin"]
ROLES: Sequence[Role] = ("read", "feedback", "admin")  # each includes those before it
LOOK_SECONDS = 1.0  # between two checks whether the file has changed
FEEDBACK_PATH = "/v1/feedback"
CATALOG_PATH = "/v1/catalog/items"


class Key(BaseModel):
    """A key in the file; messages and metrics use its name."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    role: Role
    key: str = Field(min_length=16, max_length=1000, pattern=r"^[!-~]+$")
    requests_per_minute: int | None = Field(default=None, ge=1)


def get_required_role(method: str, path: str) -> Role:
    """Return the lowest role that may send a request.

    Args:
        method: of HTTP, in upper case.
        path: without the query.
    """
    if path == FEEDBACK_PATH:
        return "feedback"
    is_change = method not in ("GET", "HEAD", "OPTIONS")
    return "admin" if path == CATALOG_PATH and is_change else "read"


class Keys:
    """The keys that a service accepts at the moment. Use it on one event loop."""

    def __init__(self, key: str | None, file: Path | None = None) -> None:
        """Read the keys. If the file changes later and cannot be read, that is logged, and the old keys stay valid.

        Args:
            key: SERVE_API_KEY, with the role admin; None: not set.
            file: of further keys; None: there is none.

        Raises:
            UserError: The file cannot be read now.
        """
        self._own = [] if key is None else [Key.model_construct(name=KEY_VARIABLE, role="admin", key=key)]
        self._file = file
        self._looked_at = 0.0
        self._state = _get_file_state(file)
        self._buckets: dict[str, tuple[float, float]] = {}  # name -> (requests left, time of that count)
        self._by_digest = self._index_by_digest(read_keys(file) if file else [])

    @property
    def is_required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._file or self._own)

    def check(self, authorization: str, method: str, path: str) -> str:
        """Return the name of a request's key.

        Raises:
            Refused: The key is missing or wrong, its role does not allow the request, or its rate limit is reached.
        """
        self._reload()
        scheme, _, credentials = authorization.partition(" ")
        credentials = credentials.strip()
        if not credentials:
            raise Refused(401, f"no key: send the service's key ({KEY_VARIABLE}) as `Authorization: Bearer KEY`")
        key = self._by_digest.get(_digest(credentials)) if scheme.lower() == "bearer" else None
        if key is None:
            raise Refused(401, f"wrong key: it is not a key of this service ({KEY_VARIABLE})")
        role = get_required_role(method, path)
        if ROLES.index(key.role) < ROLES.index(role):
            raise Refused(403, f"the key {key.name} has the role {key.role}, but this needs the role {role}")
        self._count(key)
        return key.name

    def _count(self, key: Key) -> None:
        """Count a request against the rate limit, a token bucket that holds one minute's requests. Raises Refused."""
        most = key.requests_per_minute
        if most is None:
            return
        now = time.monotonic()
        left, since = self._buckets.get(key.name, (float(most), now))
        left = min(float(most), left + (now - since) * most / 60)
        if left < 1:
            wait = int((1 - left) * 60 / most) + 1
            raise Refused(429, f"the key {key.name} allows {most} requests per minute; try again", retry_after=wait)
        self._buckets[key.name] = left - 1, now

    def _reload(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        state = _get_file_state(self._file)
        if state == self._state:
            return
        self._state = state
        try:
            self._by_digest = self._index_by_digest(read_keys(self._file))
        except UserError as error:
            logging.getLogger(__name__).error("%s The old keys stay valid.", error)

    def _index_by_digest(self, keys: Sequence[Key]) -> Mapping[bytes, Key]:
        return {_digest(key.key): key for key in (*keys, *self._own)}


def read_keys(file: Path) -> list[Key]:
    """Read a file of keys.

    Returns:
        The keys, at least one; names and keys are unique.

    Raises:
        UserError: the file cannot be read, or holds anything but keys; the message never shows a key.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError("serving.unreadable-keys", f"--keys {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError("serving.invalid-keys", f"--keys {file}: not YAML ({reason})") from None
    if not isinstance(content, list) or not content:
        raise UserError(
            "serving.invalid-keys", f"--keys {file}: not a list. Write a list of keys, each with name, role and key."
        )
    keys = []
    for index, entry in enumerate(content):
        try:
            keys.append(Key.model_validate(entry))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]  # the input would be the key
            where = ".".join(map(str, first["loc"])) or "type"
            raise UserError("serving.invalid-keys", f"--keys {file}: entry {index}: {where}: {first['msg']}") from None
    for values in ([key.name for key in keys], [key.key for key in keys]):
        if len(set(values)) < len(values):
            raise UserError(
                "serving.duplicate-keys", f"--keys {file}: two entries have the same name or key. Make them unique."
            )
    return keys


def _digest(key: str) -> bytes:
    """Hash a key: lookups by hash reveal nothing about keys by their timing."""
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _get_file_state(file: Path | None) -> tuple[int, ...] | None:
    """Return a value that changes whenever the file is written or replaced."""
    try:
        status = os.stat(file) if file else None
    except OSError:
        return None
    return status and (status.st_ino, status.st_mtime_ns, status.st_size)

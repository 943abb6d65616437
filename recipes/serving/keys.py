"""Who may ask for what: the keys of a service, each with a role and a limit, from a file or from SERVE_API_KEY."""

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
ROLES: Sequence[Role] = ("read", "feedback", "admin")  # each may do what those before it may
LOOK_SECONDS = 1.0  # between two looks whether the file has changed
FEEDBACK_PATH = "/v1/feedback"
CATALOG_PATH = "/v1/catalog/items"


class Key(BaseModel):
    """One key of the file. name: what messages and metrics call it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    role: Role
    key: str = Field(min_length=16, max_length=1000, pattern=r"^[!-~]+$")
    requests_per_minute: int | None = Field(default=None, ge=1)


def needed_role(method: str, path: str) -> Role:
    """The least role that may ask for this."""
    if path == FEEDBACK_PATH:
        return "feedback"
    is_change = method not in ("GET", "HEAD", "OPTIONS")
    return "admin" if path == CATALOG_PATH and is_change else "read"


class Keys:
    """The keys that a service takes now. Must be used on one event loop."""

    def __init__(self, key: str | None, file: Path | None = None) -> None:
        """key: SERVE_API_KEY, which may do everything. file: further ones. Raises UserError for a file that cannot be
        read now; one that cannot be read later is logged, and the keys before it stay."""
        self._own = [] if key is None else [Key.model_construct(name=KEY_VARIABLE, role="admin", key=key)]
        self._file = file
        self._looked_at = 0.0
        self._state = _state(file)
        self._buckets: dict[str, tuple[float, float]] = {}  # name -> (requests that may come, since when)
        self._by_digest = self._with_own(read_keys(file) if file else [])

    @property
    def are_asked_for(self) -> bool:
        return bool(self._file or self._own)

    def check(self, authorization: str, method: str, path: str) -> str:
        """The name of the request's key. Raises Refused where there is none, it may not ask for this, or it has asked
        too often."""
        self._reload()
        scheme, _, given = authorization.partition(" ")
        given = given.strip()
        if not given:
            raise Refused(401, f"no key: give the service's key ({KEY_VARIABLE}) as `Authorization: Bearer KEY`")
        key = self._by_digest.get(_digest(given)) if scheme.lower() == "bearer" else None
        if key is None:
            raise Refused(401, f"wrong key: it is none of this service's ({KEY_VARIABLE})")
        role = needed_role(method, path)
        if ROLES.index(key.role) < ROLES.index(role):
            raise Refused(403, f"the key {key.name} has the role {key.role}, and this needs the role {role}")
        self._count(key)
        return key.name

    def _count(self, key: Key) -> None:
        """A bucket that a minute's requests fill: so many may come at once, and then one in each part of a minute."""
        most = key.requests_per_minute
        if most is None:
            return
        now = time.monotonic()
        left, since = self._buckets.get(key.name, (float(most), now))
        left = min(float(most), left + (now - since) * most / 60)
        if left < 1:
            wait = int((1 - left) * 60 / most) + 1
            raise Refused(429, f"the key {key.name} may ask {most} times a minute; ask again", retry_after=wait)
        self._buckets[key.name] = left - 1, now

    def _reload(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        state = _state(self._file)
        if state == self._state:
            return
        self._state = state
        try:
            self._by_digest = self._with_own(read_keys(self._file))
        except UserError as error:
            logging.getLogger(__name__).error("%s; the keys stay as they were", error)

    def _with_own(self, keys: Sequence[Key]) -> Mapping[bytes, Key]:
        return {_digest(key.key): key for key in (*keys, *self._own)}


def read_keys(file: Path) -> list[Key]:
    """Raises UserError for a file that is not there, or has something else than keys."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--keys {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--keys {file}: no YAML ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(content, list) or not content:
        raise UserError(f"--keys {file}: write a list of keys, each with name, role and key")
    keys = []
    for index, entry in enumerate(content):
        try:
            keys.append(Key.model_validate(entry))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]  # the input would be the key
            where = ".".join(map(str, first["loc"])) or "it"
            raise UserError(f"--keys {file}: entry {index}: {where}: {first['msg']}") from None
    for values in ([key.name for key in keys], [key.key for key in keys]):
        if len(set(values)) < len(values):
            raise UserError(f"--keys {file}: two entries have the same name or the same key")
    return keys


def _digest(key: str) -> bytes:
    """Keys are looked up by a hash, so that the time it takes says nothing about them."""
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _state(file: Path | None) -> tuple[int, ...] | None:
    """What differs when the file has been written or replaced."""
    try:
        status = os.stat(file) if file else None
    except OSError:
        return None
    return status and (status.st_ino, status.st_mtime_ns, status.st_size)

"""Ids of lists that nobody can make up: a random part and a signature over it, by a secret of the service's folder.

All processes of a service with the same folder know each other's ids, also after a restart, and remember none.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from convrec.base.errors import UserError

SECRET_FILE = "feedback.secret"
SECRET_BYTES = 32
PREFIX = "list-"
HALF = 16  # hexadecimal digits of each part


class ListIds:
    """Raises UserError where the folder's secret can neither be read nor made."""

    def __init__(self, folder: Path) -> None:
        self._secret = _load_secret(folder)

    def make(self) -> str:
        nonce = secrets.token_hex(HALF // 2)
        return f"{PREFIX}{nonce}{self._sign(nonce)}"

    def is_genuine(self, list_id: str) -> bool:
        """Whether a service of this folder has made it."""
        parts = list_id.removeprefix(PREFIX)
        return hmac.compare_digest(parts[HALF:].encode(), self._sign(parts[:HALF]).encode())

    def _sign(self, nonce: str) -> str:
        return hmac.new(self._secret, nonce.encode(), hashlib.sha256).hexdigest()[:HALF]


def _load_secret(folder: Path) -> bytes:
    """The secret of the folder; made where there is none. Of several processes that make one, the first counts."""
    path = folder / SECRET_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _make_secret(path)
        secret = path.read_bytes()
    except OSError as error:
        raise UserError(f"--feedback: {path}: {error.strerror}") from None
    if len(secret) != SECRET_BYTES:
        raise UserError(f"--feedback: {path}: damaged; remove it, which makes the lists before unknown to feedback")
    return secret


def _make_secret(path: Path) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(file, secrets.token_bytes(SECRET_BYTES))
        os.fsync(file)
    finally:
        os.close(file)
    try:
        os.link(partial, path)  # fails where another process was first
    except FileExistsError:
        pass
    finally:
        partial.unlink()

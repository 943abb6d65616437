"""Unforgeable ids of lists: a random part, signed with a secret in the service's folder.

All processes with the same folder recognize each other's ids, even after a restart, without storing any.
"""

import contextlib
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
    """Maker and checker of list ids. Raises UserError if the folder's secret can be neither read nor created."""

    def __init__(self, folder: Path) -> None:
        self._secret = _load_secret(folder)

    def make(self) -> str:
        """Make a new id."""
        nonce = secrets.token_hex(HALF // 2)
        return f"{PREFIX}{nonce}{self._sign(nonce)}"

    def is_genuine(self, list_id: str) -> bool:
        """Return whether a service with this folder has made the id."""
        parts = list_id.removeprefix(PREFIX)
        return hmac.compare_digest(parts[HALF:].encode(), self._sign(parts[:HALF]).encode())

    def _sign(self, nonce: str) -> str:
        return hmac.new(self._secret, nonce.encode(), hashlib.sha256).hexdigest()[:HALF]


def _load_secret(folder: Path) -> bytes:
    """Load the folder's secret, or create it; if several processes create one, all load the first one's."""
    path = folder / SECRET_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _make_secret(path)
        secret = path.read_bytes()
    except OSError as error:
        raise UserError("serving.unusable-feedback-folder", f"--feedback: {path}: {error.strerror}") from None
    if len(secret) != SECRET_BYTES:
        raise UserError(
            "serving.damaged-feedback-secret",
            f"--feedback: {path}: damaged. Remove it; lists served so far will then accept no more feedback.",
        )
    return secret


def _make_secret(path: Path) -> None:
    """Publish a new secret, unless another process was first.

    The temporary name is random, because processes in two containers can have the same id.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.write(file, secrets.token_bytes(SECRET_BYTES))
            os.fsync(file)
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)

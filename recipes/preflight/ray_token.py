"""Check the token of a Ray cluster: an error if this process lacks it, a warning if the cluster needs none."""

import os
import re
from pathlib import Path

from convrec.base.errors import UserError, one_line

DEFAULT_FILE = "~/.ray/auth_token"  # Ray's
GCS_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"
ANSWER_SECONDS = 5.0
HOST_AND_PORT = re.compile(r"[^/]+:\d+")
OPEN = "the cluster asks for no token: anyone who can reach it can run programs there as you"
CLOSE = "stop it, make a token (`ray get-auth-token --generate`), and export RAY_AUTH_MODE=token before `ray start`"


def check_token(address: str) -> None:
    """Check that the cluster accepts this process's token: ray.init would retry for minutes without a reason.

    Args:
        address: RAY_ADDRESS: host:port, or `auto` on a node of the cluster. Other forms, such as `ray://head:10001`,
            are not checked.

    Raises:
        UserError: the cluster asks for a token, and this process has none, has a different one, or does not send it.
    """
    takes_kubernetes_token = "RAY_ENABLE_K8S_TOKEN_AUTH" in os.environ  # a service account's, which Ray finds by itself
    gcs_address = _resolve_address(address)
    if takes_kubernetes_token or not gcs_address:
        return
    if _is_refused(gcs_address, "") and (not _sends_token() or _is_refused(gcs_address, _read_token())):
        raise UserError("preflight.refused-token", describe_missing_token(address))


def describe_missing_token(address: str) -> str:
    """Return why the cluster of RAY_ADDRESS, which asks for a token, refuses this process, and the remedy."""
    refusal = f"RAY_ADDRESS={address}: the cluster asks for a token"
    copy = f"copy the head node's {DEFAULT_FILE} to this machine"
    place = _find_token_place()
    if not _sends_token():
        first = "" if place else f"{copy}, then "
        return f"{refusal}, and RAY_AUTH_MODE=token is not set here: {first}export RAY_AUTH_MODE=token"
    if not place:
        return f"{refusal}, and there is none here: {copy}, or set RAY_AUTH_TOKEN_PATH to its path"
    return f"{refusal}, and {place} holds a different one: {copy}"


def is_open(address: str) -> bool:
    """Return whether Ray answers at this address without a token; see `check_token` for the address."""
    import grpc

    gcs_address = _resolve_address(address)
    return gcs_address != "" and _ask(gcs_address, "") is grpc.StatusCode.OK


def _resolve_address(address: str) -> str:
    """Return host:port of the GCS server of RAY_ADDRESS; "" if the address has another form or no Ray runs here."""
    if address == "auto":
        from ray._private import services

        try:
            return services.canonicalize_bootstrap_address(address) or ""
        except ConnectionError:  # no Ray runs on this machine
            return ""
    return address if HOST_AND_PORT.fullmatch(address) else ""


def _is_refused(address: str, token: str) -> bool:
    import grpc

    return _ask(address, token) is grpc.StatusCode.UNAUTHENTICATED


def _ask(address: str, token: str) -> object:
    """Return gRPC's status of a call without arguments.

    token: "" sends none.
    """
    import grpc

    metadata = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(GCS_METHOD, lambda request: request, lambda answer: answer)
        try:
            call(b"", timeout=ANSWER_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def _sends_token() -> bool:
    """Return whether Ray in this process sends a token: with RAY_ADDRESS set, a token file alone is not enough."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _read_token() -> str:
    place = _find_token_place()
    if place in ("", "RAY_AUTH_TOKEN"):
        return os.environ.get("RAY_AUTH_TOKEN", "")
    try:
        return Path(place).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            "preflight.unreadable-token",
            f"{place}: cannot read the cluster's token ({one_line(error)}): copy the head node's {DEFAULT_FILE} there, "
            "with mode 600 and you as its owner",
        ) from error


def _find_token_place() -> str:
    """Return the variable or the file from which Ray reads this process's token; "" if there is none."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or DEFAULT_FILE).expanduser()
    return str(file) if os.path.isfile(file) else ""  # Path.is_file raises for a folder without access

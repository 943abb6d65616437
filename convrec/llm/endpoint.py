"""Where a model answers: the address, name and key of a role, from the environment."""

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from convrec.errors import UserError


@dataclass(frozen=True)
class Endpoint:
    """Where a model answers. The key is in no repr, log line, cache entry or error message."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)


def endpoint(role: str = "llm") -> Endpoint:
    """The endpoint of a role from the environment; raises UserError naming the variable to set."""
    url_variable = f"{role.upper()}_BASE_URL"
    prefix = role.upper() if os.environ.get(url_variable, "").strip() else "LLM"
    url, model, key = (os.environ.get(f"{prefix}_{name}", "").strip() for name in ("BASE_URL", "MODEL", "API_KEY"))
    if not url:
        wanted = "LLM_BASE_URL" if url_variable == "LLM_BASE_URL" else f"LLM_BASE_URL or {url_variable}"
        raise UserError(
            f"{wanted} is not set: give the {role}'s OpenAI-compatible address, like http://127.0.0.1:8000/v1"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{prefix}_BASE_URL={parts._replace(netloc=parts.hostname or '').geturl()}: an http(s) address")
    if parts.username or parts.password:
        raise UserError(f"{prefix}_BASE_URL holds a user name or password: put the key into {prefix}_API_KEY")
    if not model:
        raise UserError(f"{prefix}_MODEL is not set: the name under which {url} serves the {role}")
    return Endpoint(url, model, key)

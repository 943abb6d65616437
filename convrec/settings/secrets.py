"""Recognise secrets among variables and settings, and keep them out of files, logs, messages and submitted jobs.

One rule holds for all of them. A secret is recognised by its name (HF_TOKEN, api_key), or by its value: a URL with a
password. It belongs in an environment variable, which a setting can read by ${oc.env:NAME}. An override is visible in
the process list, which every user of the machine can read, and trackers and a cluster's dashboard record the command.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TextIO

from convrec.base.errors import UserError
from convrec.settings.overrides import override_leaves

MASK = "***"
MIN_MASKED_LENGTH = 4  # shorter values are not masked in running text, because they are part of too many words
LONG_WORD = 8  # words of a secret with at least this length are also masked alone: pprint breaks texts at spaces
# Last word of a key -> the variable that the library reads.
VARIABLES = {
    "hf_token": "HF_TOKEN",
    "swanlab_api_key": "SWANLAB_API_KEY",
    "wandb_api_key": "WANDB_API_KEY",
    "wandb_proxy": "HTTPS_PROXY",
}
ENVIRONMENT = "env_vars"  # the section of Ray's runtime environment
REFERENCE = "${"  # the beginning of a reference to another setting or to a variable: ${oc.env:NAME}

# Words that mean a secret anywhere in a name.
_SECRET = re.compile(
    r"SECRET|PASSWORD|CREDENTIAL|WEBHOOK|HEADER|BEARER|JWT|COOKIE|SIGNATURE"
    r"|(^|_)(PASS|PASSWD|PASSPHRASE|PWD|AUTH|AUTHORIZATION|DSN)(_|$)",
    re.IGNORECASE,
)
# Words that mean a secret if the value is text: a number of tokens is not a secret.
_KEY_OR_TOKEN = re.compile(r"KEY|TOKEN", re.IGNORECASE)
# Text settings of verl, vLLM and tokenizers with such a word: columns, tokenizers, special tokens.
_NO_SECRET = re.compile(
    r"(prompt|response|messages|image|video|audio|tools|teacher|data_source|reward_fn|reward_model|enable_thinking)_key"
    r"|\w*tokeniz\w*|(bos|eos|pad|unk|sep|cls|mask|stop)_token"
)
_PASSWORD = re.compile(
    r"://[^/\s]*@|:[^/\s]\S*@"  # http://user:password@proxy:3128, https://token@host, user:password@proxy
    r"|\b(bearer|basic) "
    r"|[?&#;][^=&\s]*(key|token|secret|passw|auth|sig|jwt|cookie|credential)[^=&\s]*="  # https://host/?access_token=...
    r"|[?&#;]([^=&\s]*[_-])?(pass|pwd|code|dsn)=",
    re.IGNORECASE,
)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return whether a variable or a setting with this name holds a secret.

    Args:
        name: of a variable, or the last word of a setting's key.
    """
    return bool(_SECRET.search(name) or _KEY_OR_TOKEN.search(name)) and not _NO_SECRET.fullmatch(name)


def is_url(value: str) -> bool:
    """Return whether the text is a URL, such as mysql+pymysql://host/database, and not a path."""
    return bool(_URL.fullmatch(value))


def holds_password(value: str) -> bool:
    """Return whether the value of a variable holds a password, in a URL, a proxy's address or a header."""
    return bool(_PASSWORD.search(value))


def is_secret(name: str, value: Any) -> bool:
    """Return whether a setting holds a secret.

    Args:
        name: the last word of the setting's key.
        value: a single value. References (`${...}`), "", True, False, None and containers are never secrets.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if not isinstance(value, str):
        return bool(_SECRET.search(name)) and not _NO_SECRET.fullmatch(name)
    if not value or value.startswith(REFERENCE):
        return False
    return is_secret_name(name) or (is_url(value) and holds_password(value))


def mask_settings(settings: Any, name: str = "") -> Any:
    """Return nested settings with MASK in place of each secret.

    Args:
        settings: plain dicts, lists and values.
        name: name of the settings; everything below a secret's name is secret too.
    """
    if isinstance(settings, dict):
        return {key: mask_settings(value, _inner_name(name, key)) for key, value in settings.items()}
    if isinstance(settings, list):
        return [mask_settings(value, name) for value in settings]
    return MASK if is_secret(name, settings) else settings


def collect_secret_values(settings: Any, name: str = "") -> set[str]:
    """Return the secrets among nested settings, as texts for `mask_text`.

    Args:
        settings: nested dicts and lists, or a single value.
        name: the last word of the key of `settings`; "" for a whole config.

    Returns:
        Each secret, and its words of at least LONG_WORD characters.
    """
    if isinstance(settings, dict):
        return set().union(*(collect_secret_values(value, _inner_name(name, key)) for key, value in settings.items()))
    if isinstance(settings, list):
        return set().union(*(collect_secret_values(value, name) for value in settings))
    if not is_secret(name, settings):
        return set()
    text = str(settings)
    return {text, *(word for word in text.split() if len(word) >= LONG_WORD)}


def mask_text(text: str, values: Collection[str]) -> str:
    """Mask secrets in a text.

    Args:
        text: such as a line of a log.
        values: the secrets. Those shorter than MIN_MASKED_LENGTH stay, and so do matches inside a longer word.

    Returns:
        The text with MASK in place of each secret.
    """
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= MIN_MASKED_LENGTH and value in text:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", MASK, text)
    return text


class MaskedStream:
    """A text stream that writes MASK in place of secrets."""

    def __init__(self, stream: TextIO, values: Collection[str]) -> None:
        self.stream = stream
        self.values = values

    def write(self, text: str) -> int:
        self.stream.write(mask_text(text, self.values))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


# ---- overrides


def refuse_secrets(arguments: Sequence[str]) -> None:
    """Check that no override is a secret.

    Raises:
        UserError: an override is a secret; the message names the variable to use instead.
    """
    for argument in arguments:
        for key, value in _argument_leaves(argument):
            if not _is_secret_override(key, value):
                continue
            variable = _find_variable(key)
            instead = f"set the variable {variable} instead"
            if not variable:
                instead = f"write {key}='${{oc.env:NAME}}', and set a variable NAME"
            raise UserError(
                "settings.secret",
                f"{key}: every user of this machine can read a secret of the command line in the process list, and "
                f"trackers upload it with the command: {instead} (on a cluster, before `ray start`)",
            )


def _is_secret_override(key: str, value: Any) -> bool:
    section, _, name = key.rpartition(".")
    if is_secret(name, value):
        return True
    return section.endswith(ENVIRONMENT) and isinstance(value, str) and holds_password(value)


def _find_variable(key: str) -> str | None:
    """Return the variable from which a library reads the setting; None if there is none."""
    section, _, name = key.rpartition(".")
    return name if name.isupper() or section.endswith(ENVIRONMENT) else VARIABLES.get(name)


def _argument_leaves(argument: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything that an override sets; if Hydra cannot parse it, split it at its `=`."""
    from hydra.errors import HydraException

    try:
        yield from override_leaves(argument)
    except HydraException:
        key, _, value = argument.partition("=")
        yield key.lstrip("+~"), value


def _inner_name(outer: str, inner: Any) -> str:
    """Return the name that decides whether a value is secret: for headers={accept: x} the outer one."""
    return outer if outer and _SECRET.search(outer) and not _NO_SECRET.fullmatch(outer) else str(inner)

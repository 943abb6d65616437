"""Find out within seconds whether this machine can load a model by its Hugging Face id."""

import logging
import os
import threading
from pathlib import Path

from convrec.base.errors import UserError, one_line

SECONDS = 8.0
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")

# The same weights for other programs, each copy as large as the model itself.
OTHER_FORMATS = ("original/*", "onnx/*", "*.onnx", "*.gguf", "*.pth", "*.h5", "*.msgpack", "consolidated*")


def is_folder(model: str) -> bool:
    """Return whether a model is a folder; else it is an id, to be downloaded."""
    return os.path.isabs(os.path.expanduser(model)) or os.path.isdir(model)


def is_id(text: str) -> bool:
    """Return whether a text is organisation/name or organisation/name@revision, and no local folder has that name."""
    repository, _ = split_revision(text)
    is_name = repository.count("/") == 1 and text[0] not in "./~" and " " not in text
    return is_name and not os.path.isdir(repository.split("/")[0])


def split_revision(model: str) -> tuple[str, str]:
    """Return (organisation/name, revision); the revision is "" for the newest."""
    repository, _, revision = model.partition("@")
    return repository, revision


def download_revision(model: str, prefix: str) -> str:
    """Download organisation/name@revision to the Hub's cache, as far as it is missing, and return its folder.

    transformers, verl and vLLM then read this folder, which is named after the commit.

    Args:
        model: the id with its revision.
        prefix: the variable or option that errors name, such as `MODEL_PATH=` or `--model `.

    Raises:
        UserError: this machine cannot download it.
    """
    from huggingface_hub import snapshot_download

    repository, revision = split_revision(model)
    try:
        return snapshot_download(repository, revision=revision, ignore_patterns=[*OTHER_FORMATS])
    except Exception as error:  # as in `problem`
        raise UserError(
            "hub.unavailable-revision",
            f"{prefix}{model}: the Hub does not provide it ({one_line(error)}). Check that {revision!r} is a branch, a "
            "tag or a commit of the model. A gated or private model needs HF_TOKEN",
        ) from None


def local_folder(model: str) -> Path | None:
    """Return a model's folder, in the Hub's cache or elsewhere; None if it has to be downloaded first."""
    if is_folder(model):
        return Path(model).expanduser()
    return Path(_find_cached_file(model, "config.json")).parent if is_cached(model) else None


def is_cached(model: str) -> bool:
    """Return whether the Hub's cache has config and weights of this id; for sharded weights, only their index."""
    return bool(_find_cached_file(model, "config.json")) and any(_find_cached_file(model, name) for name in WEIGHTS)


def _find_cached_file(model: str, name: str) -> str:
    """Return the path of a file in the Hub's cache, "" if the cache does not have it."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(model, name)
    return path if isinstance(path, str) else ""


def problem(model: str) -> str:
    """Return why this machine cannot load the model of this id, "" if its config is cached or can be downloaded.

    Takes at most SECONDS: the Hub's client has no common limit for names, connections and retries.
    """
    from huggingface_hub import hf_hub_download

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it warns about every retry

    def download_config() -> str:
        try:
            hf_hub_download(model, "config.json", etag_timeout=SECONDS / 2)
        except Exception as error:  # offline, gated, misspelt, behind a proxy: each raises another error
            return one_line(error)
        return ""

    # A daemon thread, because waiting for a name server has no timeout.
    answers = [f"no answer from the Hub in {SECONDS:.0f} s"]
    thread = threading.Thread(target=lambda: answers.append(download_config()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    return answers[-1]


def require(model: str, prefix: str) -> None:
    """Check that this machine has the model, or can download it.

    Args:
        model: a folder, which always passes, or an id.
        prefix: the variable or option that errors name, such as `MODEL_PATH=` or `--model `.

    Raises:
        UserError: the Hub does not provide the id.
    """
    if not is_folder(model) and (reason := problem(model)):
        raise UserError(
            "hub.unavailable-model",
            f"{prefix}{model}: not a local folder, and the Hub does not provide it ({reason}). Give a folder, or let "
            "this machine reach the Hub (HF_ENDPOINT, a proxy, HF_TOKEN for a gated model)",
        )

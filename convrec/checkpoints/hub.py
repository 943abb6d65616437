"""Whether a model's Hugging Face id can be had on this machine, said within seconds."""

import logging
import os
import threading
from pathlib import Path

from convrec.base.errors import UserError, one_line

SECONDS = 8.0
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")

# Weights of the same model for other programs, as large as the model itself.
OTHER_FORMATS = ("original/*", "onnx/*", "*.onnx", "*.gguf", "*.pth", "*.h5", "*.msgpack", "consolidated*")


def is_folder(model: str) -> bool:
    """Else it is an id, which is downloaded."""
    return os.path.isabs(os.path.expanduser(model)) or os.path.isdir(model)


def is_id(text: str) -> bool:
    """organisation/name or organisation/name@revision, and nothing here goes by that name."""
    repository, _ = split_revision(text)
    is_name = repository.count("/") == 1 and text[0] not in "./~" and " " not in text
    return is_name and not os.path.isdir(repository.split("/")[0])


def split_revision(model: str) -> tuple[str, str]:
    """Return (organisation/name, revision); revision "" for the newest."""
    repository, _, revision = model.partition("@")
    return repository, revision


def download_revision(model: str, given_as: str) -> str:
    """Return the folder of organisation/name@revision in the Hub's cache, downloading what is not there.

    What is read later, by transformers, verl and vLLM, is this folder, whose name is the commit.

    Args:
        given_as: the variable or option that errors name.

    Raises UserError where this machine cannot have it.
    """
    from huggingface_hub import snapshot_download

    repository, revision = split_revision(model)
    try:
        return snapshot_download(repository, revision=revision, ignore_patterns=[*OTHER_FORMATS])
    except Exception as error:  # as in `problem`
        raise UserError(
            f"{given_as}{model}: not to be had from the Hub ({one_line(error)}); is {revision!r} a branch, a tag or a "
            "commit of it? HF_TOKEN is for a gated or private model"
        ) from None


def local_folder(model: str) -> Path | None:
    """Return the folder of a model that lies here, in the Hub's cache or elsewhere; None for one to be downloaded."""
    if is_folder(model):
        return Path(model).expanduser()
    return Path(_cached_file(model, "config.json")).parent if is_cached(model) else None


def is_cached(model: str) -> bool:
    """Whether config and weights (of several parts, the list of them) of this id lie in the Hub's cache here."""
    return bool(_cached_file(model, "config.json")) and any(_cached_file(model, name) for name in WEIGHTS)


def _cached_file(model: str, name: str) -> str:
    """The path of a file in the Hub's cache; "" where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, name)
    return found if isinstance(found, str) else ""


def problem(model: str) -> str:
    """Why this machine cannot have the model of this id; "" when its config is here or can be downloaded.

    Takes at most SECONDS: what the Hub's client waits for (names, connections, retries) has no common bound.
    """
    from huggingface_hub import hf_hub_download

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every retry

    def ask() -> str:
        try:
            hf_hub_download(model, "config.json", etag_timeout=SECONDS / 2)
        except Exception as error:  # offline, gated, misspelt, behind a proxy: each has an error of its own
            return one_line(error)
        return ""

    # a wait for a name server has no bound of its own
    answers = [f"no answer from the Hub in {SECONDS:.0f} s"]
    thread = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    return answers[-1]


def require(model: str, given_as: str) -> None:
    """Raise UserError for an id that this machine cannot have; folders pass. given_as: as in `check_model_path`."""
    if not is_folder(model) and (reason := problem(model)):
        raise UserError(
            f"{given_as}{model}: no folder here, and not to be had from the Hub ({reason}); give a folder, or let this "
            "machine reach the Hub (HF_ENDPOINT, a proxy, HF_TOKEN for a gated model)"
        )

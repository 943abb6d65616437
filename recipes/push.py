"""Upload a run's checkpoint to the Hugging Face Hub, with a card of its data, metrics and commands.

The checkpoint is the run's best by validation, or the newest if none was validated; RUN@last and RUN/global_step_N name
another one. The token is HF_TOKEN, or that of `hf auth login`.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from convrec.base.errors import UserError, one_line
from convrec.base.options import command
from convrec.checkpoints import hub
from convrec.checkpoints.files import ANSWERING, check_hugging_face
from convrec.checkpoints.models import find_step, pin_checkpoint, resolve_model, run_folder
from convrec.runs.card import CARD, write_card
from convrec.runs.folder import find_recipe, read_config
from recipes.options.push import PushOptions

USE = """
## Use
```bash
convrec recommend --model {repository} --catalog CATALOG --in CHATS --out LISTS.parquet
convrec serve --model {repository} --catalog CATALOG
```
"""
TRAIN = """
## Train
With the settings above in their variables: `convrec {command}`.
"""
COMMANDS = {"sft": "train sft", "rank_grpo": "train rank-grpo"}  # recipe -> command


def push(run: str, repository: str, *, revision: str = "", private: bool = False, dry_run: bool = False) -> str:
    """Upload the checkpoint as one commit.

    Args:
        run: a run folder (its best checkpoint), RUN@last, or RUN/global_step_N.
        repository: organisation/name, created if it does not exist.
        revision: branch to commit to, created if it does not exist; "": the main one.
        private: whether a new repository is private.
        dry_run: return what would be uploaded, without contacting the Hub.

    Returns:
        Lines that say what was uploaded.

    Raises:
        UserError: The run has no checkpoint, or the Hub refuses.
    """
    if not hub.is_id(repository) or hub.split_revision(repository)[1]:
        raise UserError("push.invalid-repository", f"{repository}: not a Hugging Face id. Name organisation/name.")
    folder, card = _choose_checkpoint(run, repository)
    files = sorted(path for pattern in ANSWERING for path in folder.glob(pattern) if path.is_file())
    if dry_run:
        lines = [f"{path.name:40} {path.stat().st_size:>15,} bytes" for path in files]
        return "\n".join([f"{folder} would be uploaded to {repository}:", *lines, "", card, "nothing was uploaded"])
    sources: Mapping[str, str | bytes] = {CARD: card.encode(), **{path.name: str(path) for path in files}}
    return f"uploaded {len(sources)} files to {_upload(sources, repository, revision, private)}"


def _choose_checkpoint(run: str, repository: str) -> tuple[Path, str]:
    """Choose the Hugging Face folder to upload, and write its card."""
    checkpoint = pin_checkpoint(run)
    home = run_folder(checkpoint)
    step = find_step(checkpoint)
    if home is None or step is None or not read_config(home):
        raise UserError(
            "push.no-run", f"{run}: not a run folder of a training. Name RUN, RUN@last or RUN/global_step_N."
        )
    folder = Path(resolve_model(checkpoint, "RUN "))
    check_hugging_face(folder)
    with tempfile.TemporaryDirectory() as temporary:  # a merged checkpoint has none
        write_card(Path(temporary), home, step)
        card = (Path(temporary) / CARD).read_text(encoding="utf-8")
    command = COMMANDS.get(find_recipe(read_config(home)), "")
    return folder, card + (TRAIN.format(command=command) if command else "") + USE.format(repository=repository)


def _upload(sources: Mapping[str, str | bytes], repository: str, revision: str, private: bool) -> str:
    """Commit files, and return the URL of the commit."""
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [CommitOperationAdd(name, source) for name, source in sources.items()]
    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if revision:
            api.create_branch(repository, branch=revision, exist_ok=True)
        commit = api.create_commit(
            repository, operations, commit_message="A checkpoint of convrec", revision=revision or None
        )
    except Exception as error:  # no token, no permission, no connection: each has its own exception
        raise UserError(
            "push.hub-refused",
            f"{repository}: the Hub refuses ({one_line(error)}). Set HF_TOKEN to a token that may write there.",
        ) from None
    return commit.commit_url


@command(PushOptions)
def main(options: PushOptions) -> int:
    """Upload a checkpoint; return the exit status."""
    print(
        push(
            options.run,
            options.repository,
            revision=options.revision,
            private=options.private,
            dry_run=options.dry_run,
        )
    )
    return 0

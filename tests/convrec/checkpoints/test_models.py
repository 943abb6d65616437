"""What a user may name as a model, and the Hugging Face folder it becomes."""

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from convrec.base.errors import UserError
from convrec.checkpoints import models as checkpoints
from convrec.checkpoints.files import fingerprint
from convrec.checkpoints.models import check_model_path, find_step, resolve_model, run_folder
from convrec.runs.folder import LATEST, MANIFEST
from tests.conftest import mark_complete
from tests.user_errors import refuses

Model = Callable[..., Path]


@pytest.fixture
def hugging_face(tmp_path: Path, sound_model: Model) -> Path:
    return sound_model(tmp_path / "model")


def _run(folder: Path, *steps: int, complete: int) -> Path:
    """A run folder whose steps hold verl's shards of one process."""
    for step in steps:
        actor = folder / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
        torch.save({}, actor / "model_world_size_1_rank_0.pt")
    mark_complete(folder, *(step for step in steps if step <= complete))
    return folder


def test_a_hugging_face_id_and_a_folder_are_themselves(hugging_face: Path) -> None:
    assert resolve_model("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert resolve_model(hugging_face) == str(hugging_face)


@pytest.mark.parametrize(("named", "step"), [("", 200), ("global_step_100", 100)])
def test_run_folder_resolves_to_newest_complete_or_named_step(
    tmp_path: Path, sound_model: Model, named: str, step: int
) -> None:
    run = _run(tmp_path / "run", 100, 200, 300, complete=200)
    saved = sound_model(run / f"global_step_{step}" / "actor" / "huggingface")
    assert resolve_model(run / named) == str(saved)


@pytest.mark.parametrize(
    ("choice", "step", "reason"),
    [
        ("", 100, r"the best by validation \(val/ndcg 0\.500\)"),
        ("@best", 100, r"the best by validation \(val/ndcg 0\.500\)"),
        ("@last", 200, "the newest"),
    ],
)
def test_a_run_folder_stands_for_its_best_checkpoint_unless_the_newest_is_asked_for(
    validated_run: Path, choice: str, step: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"{validated_run}{choice}"
    assert resolve_model(given) == str(validated_run / f"global_step_{step}" / "actor" / "huggingface")
    resolve_model(given)  # printed once
    assert re.fullmatch(f"{validated_run}: checkpoint of step {step}, {reason}\n", capsys.readouterr().err)
    assert check_model_path(given) == given
    assert (find_step(given), run_folder(given)) == (step, validated_run)


def test_a_step_that_is_named_is_taken_without_a_word(validated_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = validated_run / "global_step_200" / "actor" / "huggingface"
    for path in (validated_run / "global_step_200", folder):
        assert (resolve_model(path), find_step(path)) == (str(folder), 200)
    assert capsys.readouterr().err == ""
    assert find_step("Qwen/Qwen2.5-0.5B-Instruct") is None


@pytest.mark.parametrize("is_validated", [False, True])
def test_the_newest_stands_for_a_run_whose_best_is_not_there(validated_run: Path, is_validated: bool) -> None:
    if is_validated:
        (validated_run / "global_step_100" / MANIFEST).unlink()
    else:
        (validated_run / "best.json").unlink()
    assert find_step(validated_run) == 200
    with refuses("model.no-best-checkpoint", f"MODEL_PATH={validated_run}@best", "best.json", "@last"):
        resolve_model(f"{validated_run}@best")


def test_a_choice_is_for_run_folders_alone(validated_run: Path, hugging_face: Path) -> None:
    for path in (hugging_face, validated_run / "global_step_100"):
        with refuses("model.choice-without-run", f"MODEL_PATH={path}@last"):
            resolve_model(f"{path}@last")
    assert check_model_path("organisation/name@last") == "organisation/name@last"  # a branch on the Hub
    named = hugging_face.rename(hugging_face.with_name("model@last"))
    assert resolve_model(named) == str(named)


def test_what_was_cut_off_while_it_was_written_is_no_checkpoint(tmp_path: Path, sound_model: Model) -> None:
    """Though verl's tracker names it already, a moment before it has its manifest."""
    run = _run(tmp_path / "run", 100, 200, complete=100)
    for step in (100, 200):
        sound_model(run / f"global_step_{step}" / "actor" / "huggingface")
    (run / LATEST).write_text("200")
    assert resolve_model(run) == str(run / "global_step_100" / "actor" / "huggingface")
    with pytest.raises(UserError, match=r"global_step_200: no complete\.json: it was cut off while it was written"):
        resolve_model(run / "global_step_200")


@pytest.mark.parametrize("below", ["", "/actor/huggingface"])
def test_missing_step_error_lists_the_available_steps(tmp_path: Path, below: str) -> None:
    run = _run(tmp_path / "run", 20, 100, complete=100)
    with pytest.raises(UserError, match=r"global_step_300.*steps 20, 100 are there"):
        resolve_model(f"{run}/global_step_300{below}")


def test_an_sft_step_has_no_actor_folder(tmp_path: Path, sound_model: Model) -> None:
    saved = sound_model(tmp_path / "run" / "global_step_5" / "huggingface")
    mark_complete(tmp_path / "run", 5)
    assert resolve_model(tmp_path / "run") == str(saved)


def _merger(calls: list[list[str]], write: Model | None) -> Any:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        calls.append(command)
        if write:
            write(Path(command[command.index("--target_dir") + 1]))
        return subprocess.CompletedProcess(command, 0 if write else 1, "", "a line\nshards are missing\n")

    return run


def test_shards_are_merged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_model: Model) -> None:
    run = _run(tmp_path / "run", 7, complete=7)
    (run / "global_step_7" / "actor" / "huggingface").mkdir()  # verl writes config and tokenizer there in any case
    calls: list[list[str]] = []
    monkeypatch.setattr(checkpoints.subprocess, "run", _merger(calls, sound_model))
    merged = run / "global_step_7" / "merged"
    assert resolve_model(run) == str(merged)
    assert resolve_model(run) == str(merged)
    (command,) = calls
    assert command[command.index("--local_dir") + 1] == str(run / "global_step_7" / "actor")


def test_shards_that_were_trained_again_are_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(tmp_path / "run", 7, complete=7)
    step, calls = run / "global_step_7", []
    monkeypatch.setattr(checkpoints.subprocess, "run", _merger(calls, sound_model))
    sound_model(step / "merged", weight=0.25)  # of a version that took no note of what it was made from
    assert resolve_model(run) == str(step / "merged")
    assert "merged: not made from the weights that are there now, made anew" in capsys.readouterr().err
    assert fingerprint(step / "merged") == fingerprint(sound_model(tmp_path / "as_the_merger_writes"))
    assert len(calls) == 1
    shard = step / "actor" / "model_world_size_1_rank_0.pt"
    torch.save({"w": torch.ones(1)}, shard)
    resolve_model(run)
    resolve_model(run)
    assert len(calls) == 2
    shard.unlink()  # removed to save room: what was merged is all there is
    assert resolve_model(run) == str(step / "merged")
    assert len(calls) == 2


def test_retrained_adapter_or_base_is_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_model: Model
) -> None:
    base, adapter, calls = sound_model(tmp_path / "base"), tmp_path / "adapter", []
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (adapter / "adapter_model.safetensors").write_bytes(b"first")

    def add(command: list[str], **_: Any) -> subprocess.CompletedProcess:
        calls.append(command)
        sound_model(Path(command[-1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(checkpoints.subprocess, "run", add)
    for _ in range(2):
        assert resolve_model(adapter) == str(adapter / "merged")
    assert len(calls) == 1
    (adapter / "adapter_model.safetensors").write_bytes(b"again")
    for _ in range(2):
        resolve_model(adapter)
    assert len(calls) == 2
    sound_model(base, weight=0.25)
    for _ in range(2):
        resolve_model(adapter)
    assert len(calls) == 3
    base.rename(tmp_path / "elsewhere")
    assert resolve_model(adapter) == str(adapter / "merged")
    assert len(calls) == 3


def test_a_home_folder_is_handed_on_in_full(
    hugging_face: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_model_path("~/model") == resolve_model("~/model") == str(hugging_face)


def test_the_run_of_a_model_is_found_from_any_of_its_folders(tmp_path: Path, sound_model: Model) -> None:
    run = _run(tmp_path / "run", 7, complete=7)
    inside = sound_model(run / "global_step_7" / "actor" / "huggingface")
    assert [run_folder(path) for path in (run, run / "global_step_7", inside)] == [run] * 3
    assert [run_folder(path) for path in (tmp_path, "Qwen/Qwen2.5-0.5B", tmp_path / "gone")] == [None] * 3


def test_a_merge_that_fails_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(tmp_path / "run", 7, complete=7)
    monkeypatch.setattr(checkpoints.subprocess, "run", _merger([], None))
    with pytest.raises(UserError, match="shards are missing"):
        resolve_model(run)
    assert not (run / "global_step_7" / "merged").exists()


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "~/no-such-model", "model", "a/b/c", "my model/x"])
def test_a_path_that_does_not_exist_is_named(path: str) -> None:
    with pytest.raises(UserError, match="no such folder, and not a Hugging Face id") as error:
        resolve_model(path)
    assert str(error.value).startswith(f"MODEL_PATH={path}: ")


def test_mistyped_local_folder_is_not_taken_for_a_hub_id(hugging_face: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hugging_face.parent.parent)
    with pytest.raises(UserError, match="no such folder"):
        resolve_model(f"{hugging_face.parent.name}/modle")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_model_whose_settings_are_damaged_is_one_line(hugging_face: Path, name: str) -> None:
    (hugging_face / name).write_text("[1]")
    with pytest.raises(UserError, match=rf"{name}: expected a JSON object, it is a list"):
        resolve_model(hugging_face)


def test_hub_snapshot_with_dangling_links_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "config.json").symlink_to("../../blobs/41ce")
    with pytest.raises(UserError, match=r"snapshot/config\.json: a link to .*blobs/41ce, where nothing is"):
        resolve_model(tmp_path / "snapshot")


def adapter_of(folder: Path, base: object) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("content", ["[]", '{"base_model_name', "3"])
def test_an_adapter_whose_settings_are_damaged_is_one_line(tmp_path: Path, content: str) -> None:
    adapter = adapter_of(tmp_path / "adapter", None)
    (adapter / "adapter_config.json").write_text(content)
    with pytest.raises(UserError, match=r"adapter_config\.json: (expected a JSON object|not readable as JSON)"):
        resolve_model(adapter)


@pytest.mark.parametrize("base", ["itself", "one that is built on it"])
def test_an_adapter_that_is_its_own_base_is_one_line(tmp_path: Path, base: str) -> None:
    adapter = adapter_of(tmp_path / "adapter", str(tmp_path / ("adapter" if base == "itself" else "second")))
    adapter_of(tmp_path / "second", str(adapter))
    with pytest.raises(UserError, match=r"its base model is \S+/adapter, which is built on it"):
        resolve_model(adapter)
    assert sorted(path.name for path in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_an_adapter_whose_base_is_gone_names_both(tmp_path: Path) -> None:
    adapter = adapter_of(tmp_path / "adapter", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=rf"{adapter}: its base model {tmp_path}/gone: no such folder"):
        resolve_model(adapter)


@pytest.mark.parametrize("base", [3, ["a"]])
def test_an_adapter_whose_base_is_no_text_is_one_line(tmp_path: Path, base: object) -> None:
    with pytest.raises(UserError, match="base_model_name_or_path: expected a folder or an id"):
        resolve_model(adapter_of(tmp_path / "adapter", base))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder as somebody sees it who may not write there; root may, and becomes another user."""
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("kind", ["adapter", "run"])
def test_merge_on_read_only_storage_gives_a_one_line_error(public_folder: Path, kind: str) -> None:
    if kind == "adapter":
        given = folder = adapter_of(public_folder / "adapter", str(public_folder))
    else:
        given = _run(public_folder / "run", 7, complete=7)
        folder = given / "global_step_7"
    with read_only(folder), pytest.raises(UserError, match=r"merged: the merged model is kept there, .*copy") as error:
        resolve_model(given)
    assert "\n" not in str(error.value)


def test_a_folder_that_holds_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither a config\.json .* nor a complete checkpoint"):
        resolve_model(tmp_path)

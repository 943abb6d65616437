"""Model paths and ids that a user may give, and the Hugging Face folders they resolve to."""

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from convrec.checkpoints.files import fingerprint
from convrec.checkpoints.models import check_model_path, find_step, resolve_model, run_folder
from convrec.runs.folder import LATEST, MANIFEST
from tests.conftest import mark_complete
from tests.user_errors import refuses

Model = Callable[..., Path]


@pytest.fixture
def hugging_face(tmp_path: Path, sound_model: Model) -> Path:
    return sound_model(tmp_path / "model")


def _make_run(folder: Path, *steps: int, complete: int) -> Path:
    """Make a run folder whose steps contain verl's shards of one process."""
    for step in steps:
        actor = folder / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
        torch.save({}, actor / "model_world_size_1_rank_0.pt")
    mark_complete(folder, *(step for step in steps if step <= complete))
    return folder


def test_a_hugging_face_id_or_folder_resolves_to_itself(hugging_face: Path) -> None:
    assert resolve_model("Qwen/Qwen2.5-0.5B-Instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert resolve_model(hugging_face) == str(hugging_face)


@pytest.mark.parametrize(("subfolder", "step"), [("", 200), ("global_step_100", 100)])
def test_run_folder_resolves_to_newest_complete_or_named_step(
    tmp_path: Path, sound_model: Model, subfolder: str, step: int
) -> None:
    run = _make_run(tmp_path / "run", 100, 200, 300, complete=200)
    saved = sound_model(run / f"global_step_{step}" / "actor" / "huggingface")
    assert resolve_model(run / subfolder) == str(saved)


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


@pytest.mark.parametrize("num_reads", [1, 2, 3, 4])
def test_the_printed_checkpoint_is_the_resolved_one_though_a_better_one_is_saved(
    validated_run: Path,
    save_better_after_reads: Callable[[int], None],
    num_reads: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_better_after_reads(num_reads)
    step = find_step(resolve_model(validated_run))
    (line,) = capsys.readouterr().err.splitlines()
    assert f": checkpoint of step {step}, the best by validation" in line
    assert {100: "0.600", 200: "0.500"}[step or 0] not in line  # the other step's figure


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


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path, sound_model: Model) -> None:
    """verl's tracker already names it a moment before it has its manifest."""
    run = _make_run(tmp_path / "run", 100, 200, complete=100)
    for step in (100, 200):
        sound_model(run / f"global_step_{step}" / "actor" / "huggingface")
    (run / LATEST).write_text("200")
    assert resolve_model(run) == str(run / "global_step_100" / "actor" / "huggingface")
    with refuses("model.incomplete-checkpoint", "global_step_200", "complete.json"):
        resolve_model(run / "global_step_200")


@pytest.mark.parametrize("below", ["", "/actor/huggingface"])
def test_missing_step_error_lists_the_available_steps(tmp_path: Path, below: str) -> None:
    run = _make_run(tmp_path / "run", 20, 100, complete=100)
    with refuses("model.missing-step", "global_step_300", "20, 100"):
        resolve_model(f"{run}/global_step_300{below}")


def test_an_sft_step_has_no_actor_folder(tmp_path: Path, sound_model: Model) -> None:
    saved = sound_model(tmp_path / "run" / "global_step_5" / "huggingface")
    mark_complete(tmp_path / "run", 5)
    assert resolve_model(tmp_path / "run") == str(saved)


@pytest.fixture
def list_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_model: Model) -> Callable[[], list[str]]:
    """Put a program in Python's place that writes a sound model where a merge would; test_lora.py merges.

    Returns the arguments of each start so far.
    """
    model, starts, program = sound_model(tmp_path / "as_the_merger_writes"), tmp_path / "starts", tmp_path / "python"
    copy = f'for target; do :; done; mkdir -p "$target" && cp {model}/* "$target"'  # `target`: the last argument
    program.write_text(f'#!/bin/sh\necho "$@" >> {starts}\n{copy}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    starts.touch()
    return lambda: starts.read_text().splitlines()


def test_shards_are_merged_once(tmp_path: Path, list_merges: Callable[[], list[str]]) -> None:
    run = _make_run(tmp_path / "run", 7, complete=7)
    (run / "global_step_7" / "actor" / "huggingface").mkdir()  # verl always writes config and tokenizer there
    merged = run / "global_step_7" / "merged"
    assert resolve_model(run) == str(merged)
    assert resolve_model(run) == str(merged)
    (command,) = list_merges()
    assert f" --local_dir {run / 'global_step_7' / 'actor'} --target_dir " in command


def test_shards_that_were_trained_again_are_merged_again(
    tmp_path: Path,
    list_merges: Callable[[], list[str]],
    sound_model: Model,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _make_run(tmp_path / "run", 7, complete=7)
    step = run / "global_step_7"
    sound_model(step / "merged", weight=0.25)  # written by a version that did not record the sources
    assert resolve_model(run) == str(step / "merged")
    assert f"{step / 'merged'}: merged again" in capsys.readouterr().err
    assert fingerprint(step / "merged") == fingerprint(tmp_path / "as_the_merger_writes")
    assert len(list_merges()) == 1
    shard = step / "actor" / "model_world_size_1_rank_0.pt"
    torch.save({"w": torch.ones(1)}, shard)
    resolve_model(run)
    resolve_model(run)
    assert len(list_merges()) == 2
    shard.unlink()  # removed to save disk space: only the merged model is left
    assert resolve_model(run) == str(step / "merged")
    assert len(list_merges()) == 2


def test_retrained_adapter_or_base_is_merged_again(
    tmp_path: Path, list_merges: Callable[[], list[str]], sound_model: Model
) -> None:
    base = sound_model(tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (adapter / "adapter_model.safetensors").write_bytes(b"first")
    for _ in range(2):
        assert resolve_model(adapter) == str(adapter / "merged")
    assert len(list_merges()) == 1
    (adapter / "adapter_model.safetensors").write_bytes(b"again")
    for _ in range(2):
        resolve_model(adapter)
    assert len(list_merges()) == 2
    sound_model(base, weight=0.25)
    for _ in range(2):
        resolve_model(adapter)
    assert len(list_merges()) == 3
    base.rename(tmp_path / "elsewhere")
    assert resolve_model(adapter) == str(adapter / "merged")
    assert len(list_merges()) == 3


def test_a_home_folder_is_expanded(hugging_face: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_model_path("~/model") == resolve_model("~/model") == str(hugging_face)


def test_the_run_of_a_model_is_found_from_any_of_its_folders(tmp_path: Path, sound_model: Model) -> None:
    run = _make_run(tmp_path / "run", 7, complete=7)
    inside = sound_model(run / "global_step_7" / "actor" / "huggingface")
    assert [run_folder(path) for path in (run, run / "global_step_7", inside)] == [run] * 3
    assert [run_folder(path) for path in (tmp_path, "Qwen/Qwen2.5-0.5B", tmp_path / "gone")] == [None] * 3


def test_a_failed_merge_leaves_no_files_and_names_the_reason(
    tmp_path: Path, list_merges: Callable[[], list[str]]
) -> None:
    run = _make_run(tmp_path / "run", 7, complete=7)
    (tmp_path / "python").write_text("#!/bin/sh\necho 'a line\nshards are missing' >&2\nexit 1\n")
    with refuses("model.failed-merge", run / "global_step_7", "shards are missing"):
        resolve_model(run)
    assert not (run / "global_step_7" / "merged").exists()


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "~/no-such-model", "model", "a/b/c", "my model/x"])
def test_a_path_that_does_not_exist_is_named(path: str) -> None:
    with refuses("model.missing-folder", f"MODEL_PATH={path}: "):
        resolve_model(path)


def test_mistyped_local_folder_is_not_taken_for_a_hub_id(hugging_face: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hugging_face.parent.parent)
    with refuses("model.missing-folder", f"{hugging_face.parent.name}/modle"):
        resolve_model(f"{hugging_face.parent.name}/modle")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_model_with_damaged_settings_is_refused(hugging_face: Path, name: str) -> None:
    (hugging_face / name).write_text("[1]")
    with refuses("file.not-a-json-object", hugging_face / name, "a list"):
        resolve_model(hugging_face)


def test_hub_snapshot_with_dangling_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "config.json").symlink_to("../../blobs/41ce")
    with refuses("checkpoint.dangling-link", "snapshot/config.json", "../../blobs/41ce"):
        resolve_model(tmp_path / "snapshot")


def make_adapter(folder: Path, base: object) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize(
    ("content", "code"),
    [("[]", "file.not-a-json-object"), ("3", "file.not-a-json-object"), ('{"base_model_name', "file.invalid-json")],
)
def test_an_adapter_with_damaged_settings_is_refused(tmp_path: Path, content: str, code: str) -> None:
    adapter = make_adapter(tmp_path / "adapter", None)
    (adapter / "adapter_config.json").write_text(content)
    with refuses(code, adapter / "adapter_config.json"):
        resolve_model(adapter)


@pytest.mark.parametrize("base", ["itself", "one that is built on it"])
def test_an_adapter_that_is_its_own_base_is_refused(tmp_path: Path, base: str) -> None:
    adapter = make_adapter(tmp_path / "adapter", str(tmp_path / ("adapter" if base == "itself" else "second")))
    make_adapter(tmp_path / "second", str(adapter))
    with refuses("model.circular-base", adapter):
        resolve_model(adapter)
    assert sorted(path.name for path in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_an_adapter_whose_base_is_missing_names_both(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", str(tmp_path / "gone"))
    with refuses("model.missing-folder", adapter, tmp_path / "gone"):
        resolve_model(adapter)


@pytest.mark.parametrize("base", [3, ["a"]])
def test_an_adapter_whose_base_is_not_text_is_refused(tmp_path: Path, base: object) -> None:
    with refuses("model.invalid-base", "adapter_config.json", f"base_model_name_or_path={base}"):
        resolve_model(make_adapter(tmp_path / "adapter", base))


@contextlib.contextmanager
def deny_writes(folder: Path) -> Iterator[None]:
    """Make a folder read-only; root, which may write anyway, becomes another user."""
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
    """Yield a folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("kind", ["adapter", "run"])
def test_merge_on_read_only_storage_is_refused(public_folder: Path, kind: str) -> None:
    if kind == "adapter":
        model = folder = make_adapter(public_folder / "adapter", str(public_folder))
    else:
        model = _make_run(public_folder / "run", 7, complete=7)
        folder = model / "global_step_7"
    with deny_writes(folder), refuses("model.read-only-storage", folder / "merged") as error:
        resolve_model(model)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with refuses("model.not-a-model-folder", f"MODEL_PATH={tmp_path}"):
        resolve_model(tmp_path)

"""Checkpoints that are incomplete, damaged, too big for the disk or too many; which step a run resumes from."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from convrec.checkpoints import manifest, saving
from convrec.checkpoints.manifest import MANIFEST
from convrec.runs import folder as runs
from convrec.runs.folder import LATEST, latest_step, tracked_step
from tests.user_errors import refuses


def make_writer(run: Path, step: int, size: int = 100) -> Callable[[], None]:
    """Return a function that writes a checkpoint as verl does: files of the step, then the tracker."""

    def write() -> None:
        actor = run / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        (actor / "model.pt").write_bytes(b"x" * size)
        (run / f"global_step_{step}" / "data.pt").write_bytes(b"y")
        (run / LATEST).write_text(str(step))

    return write


def save(run: Path, *steps: int, keep: int | None = None) -> None:
    for step in steps:
        saving.save(run, step, make_writer(run, step), keep)


@pytest.mark.parametrize("keep", [None, -1, 0])
def test_all_checkpoints_are_kept_without_a_positive_count(tmp_path: Path, keep: int | None) -> None:
    """-1 is verl's value; the recipes refuse it earlier."""
    save(tmp_path, 2, 4, 10, keep=keep)
    assert saving.complete_steps(tmp_path) == [2, 4, 10]
    assert latest_step(tmp_path) == 10
    assert saving.choose_resume_step(tmp_path) == []


def test_editing_the_card_licence_keeps_the_checkpoint_complete(tmp_path: Path) -> None:
    def write() -> None:
        make_writer(tmp_path, 2)()
        (tmp_path / "global_step_2" / "README.md").write_text("license: other")

    saving.save(tmp_path, 2, write)
    (tmp_path / "global_step_2" / "README.md").write_text("license: apache-2.0")
    assert saving.complete_steps(tmp_path) == [2]
    (tmp_path / "global_step_2" / "data.pt").write_bytes(b"yy")
    assert saving.complete_steps(tmp_path) == []


def test_a_saved_model_does_not_name_the_attention_of_its_run(tmp_path: Path) -> None:
    """verl writes it into the model's config; transformers refuses a model whose attention it does not know."""
    exported = tmp_path / "global_step_2" / "actor" / "huggingface"

    def write() -> None:
        make_writer(tmp_path, 2)()
        exported.mkdir()
        (exported / "config.json").write_text('{"attn_implementation": "varlen", "model_type": "qwen2"}')

    saving.save(tmp_path, 2, write)
    assert json.loads((exported / "config.json").read_text()) == {"model_type": "qwen2"}
    assert saving.complete_steps(tmp_path) == [2]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step, ndcg in [(1, 0.1), (2, 0.3), (3, 0.2), (4, 0.25), (5, 0.1)]:
        save(tmp_path, step, keep=2)
        saving.note_validation(tmp_path, step, {"val/ndcg": ndcg}, keep=2)
    assert saving.complete_steps(tmp_path) == [2, 4, 5]
    assert json.loads((tmp_path / saving.BEST).read_text()) == {"step": 2, "val/ndcg": 0.3}
    assert not (tmp_path / "global_step_3").exists()

    save(tmp_path, 6, keep=2)
    saving.note_validation(tmp_path, 6, {"val/ndcg": 0.4}, keep=2)
    assert saving.complete_steps(tmp_path) == [5, 6]  # 2 is no longer the best


def test_best_step_is_a_saved_step_with_the_tracked_metric(tmp_path: Path) -> None:
    save(tmp_path, 2, 4)
    saving.note_validation(tmp_path, 3, {"val/ndcg": 0.9})
    saving.note_validation(tmp_path, 2, {"other": 0.9})
    saving.note_validation(tmp_path, 2, {"val/ndcg": float("nan")})
    assert saving.best_step(tmp_path) is None
    saving.note_validation(tmp_path, 2, {"val/score": 0.9})
    saving.note_validation(tmp_path, 4, {"val/ndcg": 0.1})  # another metric: not comparable
    assert json.loads((tmp_path / saving.BEST).read_text()) == {"step": 4, "val/ndcg": 0.1}


def save_and_die(run: Path, step: int) -> None:
    """Kill the run after verl wrote the step and its tracker, before the manifest; an error would be cleaned up."""

    def write() -> None:
        write_sft_checkpoint(run, step)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saving.save(run, step, write)


def test_scores_on_another_validation_set_are_not_compared(tmp_path: Path) -> None:
    def validate_on(digest: str) -> list[str]:
        (tmp_path / "config.yaml").write_text(yaml.safe_dump({"run": {"contents": {"data.val_files": digest}}}))
        return saving.compare_validation_sets(tmp_path, digest)

    def read_best() -> dict[str, Any]:
        content: dict[str, Any] = json.loads((tmp_path / saving.BEST).read_text())
        return content

    save(tmp_path, 2, 4, 6)
    assert validate_on("easy") == []
    saving.note_validation(tmp_path, 2, {"val/ndcg": 0.9})
    assert read_best() == {"step": 2, "val/ndcg": 0.9, "validation_set": "easy"}
    assert validate_on("easy") == []
    saving.note_validation(tmp_path, 4, {"val/ndcg": 0.2})
    assert read_best()["step"] == 2
    (warning,) = validate_on("hard")
    assert "best.json: step 2 was the best on another validation set" in warning
    saving.note_validation(tmp_path, 4, {"val/ndcg": 0.2})
    assert read_best() == {"step": 4, "val/ndcg": 0.2, "validation_set": "hard"}
    saving.note_validation(tmp_path, 6, {"val/ndcg": 0.1})
    assert read_best()["step"] == 4


def test_a_best_step_without_a_validation_set_is_compared(tmp_path: Path) -> None:
    save(tmp_path, 2, 4)
    saving.note_validation(tmp_path, 2, {"val/ndcg": 0.9})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"run": {"contents": {"data.val_files": "hard"}}}))
    assert saving.compare_validation_sets(tmp_path, "hard") == []
    saving.note_validation(tmp_path, 4, {"val/ndcg": 0.2})
    assert saving.best_step(tmp_path) == 2


def test_interrupted_checkpoint_is_skipped_and_overwritten(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save_and_die(tmp_path, 4)
    (warning,) = saving.choose_resume_step(tmp_path)
    assert "global_step_4 is incomplete" in warning
    assert latest_step(tmp_path) == 2
    save(tmp_path, 4)
    assert not (tmp_path / "global_step_4" / "fsdp_config.json").exists()
    assert saving.complete_steps(tmp_path) == [2, 4]
    assert not [*tmp_path.glob("unfinished_step_*")]


DAMAGED_MANIFESTS = {
    "empty": lambda text: "",
    "a list": lambda text: "[1, 2]",
    "a string": lambda text: '"bytes"',
    "truncated": lambda text: text[: len(text) // 2],
    "entries are not objects": lambda text: '{"data.pt": 1}',
    "a flipped bit in bytes": lambda text: text.replace('"bytes"', '"bytez"', 1),
    "a flipped bit in the checksum's name": lambda text: text.replace(manifest.CHECKSUM, "xxh3_129", 1),
    "a flipped bit in a checksum": lambda text: text.replace(
        f'{manifest.CHECKSUM}": "', f'{manifest.CHECKSUM}": "z', 1
    ),
    "a flipped bit in a file's name": lambda text: text.replace("data.pt", "dati.pt"),
}


def damage_manifest(run: Path, step: int, how: str) -> None:
    file = run / f"global_step_{step}" / MANIFEST
    before = file.read_text()
    file.write_text(DAMAGED_MANIFESTS[how](before))
    assert file.read_text() != before


@pytest.mark.parametrize("how", DAMAGED_MANIFESTS)
def test_a_checkpoint_with_a_damaged_manifest_is_skipped(tmp_path: Path, how: str) -> None:
    save(tmp_path, 2, 4)
    damage_manifest(tmp_path, 4, how)
    warnings = saving.choose_resume_step(tmp_path)
    assert f"{tmp_path}/global_step_4 is damaged or missing: resuming from step 2" in warnings
    assert latest_step(tmp_path) == 2
    assert (tmp_path / "global_step_4" / "data.pt").exists()


@pytest.mark.parametrize("how", ["gone", *DAMAGED_MANIFESTS])
def test_run_without_intact_manifests_does_not_restart(tmp_path: Path, how: str) -> None:
    """As after a copy without complete.json, or with checkpoints that only verl wrote."""
    save(tmp_path, 2, 4)
    for step in (2, 4):
        if how == "gone":
            (tmp_path / f"global_step_{step}" / MANIFEST).unlink()
        else:
            damage_manifest(tmp_path, step, how)
    for _ in range(2):  # every start
        with refuses("checkpoint.nothing-to-resume", tmp_path / LATEST):
            saving.choose_resume_step(tmp_path)
    (tmp_path / LATEST).unlink()
    with refuses("checkpoint.nothing-to-resume", tmp_path, "global_step_"):
        saving.choose_resume_step(tmp_path)


def test_a_damaged_best_json_counts_as_missing(tmp_path: Path) -> None:
    save(tmp_path, 2)
    for text in ("[2]", "{}", '{"step": "2"}', '{"step": 2, "val/ndcg": null}', "", "2"):
        (tmp_path / saving.BEST).write_text(text)
        assert saving.best_step(tmp_path) is None, text
        saving.note_validation(tmp_path, 2, {"val/ndcg": 0.1})
        assert json.loads((tmp_path / saving.BEST).read_text()) == {"step": 2, "val/ndcg": 0.1}


@pytest.mark.parametrize("damage", ["truncated", "missing file", "missing folder"])
def test_damaged_newest_checkpoint_is_skipped_with_a_warning(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 2, 4)
    folder = tmp_path / "global_step_4"
    if damage == "truncated":
        (folder / "actor" / "model.pt").write_bytes(b"x" * 99)
    elif damage == "missing file":
        (folder / "data.pt").unlink()
    else:
        shutil.rmtree(folder)
    (warning,) = saving.choose_resume_step(tmp_path)
    assert "global_step_4 is damaged or missing: resuming from step 2" in warning
    assert latest_step(tmp_path) == 2


@pytest.mark.parametrize("text", ["", "4\x00", "four"])
def test_a_damaged_tracker_is_repaired(tmp_path: Path, text: str) -> None:
    save(tmp_path, 2, 4)
    (tmp_path / LATEST).write_text(text)
    (warning,) = saving.choose_resume_step(tmp_path)
    assert f"{LATEST} is damaged: resuming from step 4" in warning
    assert latest_step(tmp_path) == 4


def test_a_run_whose_first_checkpoint_is_incomplete_restarts(tmp_path: Path) -> None:
    assert saving.choose_resume_step(tmp_path / "not there") == []
    assert saving.choose_resume_step(tmp_path) == []
    save_and_die(tmp_path, 3)
    assert latest_step(tmp_path) == 0
    (warning,) = saving.choose_resume_step(tmp_path)
    assert "global_step_3 is incomplete" in warning
    assert not (tmp_path / LATEST).exists()
    save(tmp_path, 3)
    assert saving.choose_resume_step(tmp_path) == []


@pytest.mark.parametrize("harm", ["a byte", "a file", "folders", "folders and tracker"])
def test_run_with_all_checkpoints_lost_restarts_only_on_request(tmp_path: Path, harm: str) -> None:
    save(tmp_path, 2, 4)
    copy = shutil.copytree(tmp_path / "global_step_2", tmp_path / "copy")
    for step in (2, 4):
        if harm == "a byte":
            damage(tmp_path, step)
        elif harm == "a file":
            (tmp_path / f"global_step_{step}" / "data.pt").unlink()
        else:
            shutil.rmtree(tmp_path / f"global_step_{step}")
    if harm == "folders and tracker":  # removing both requests the restart
        (tmp_path / LATEST).unlink()
        assert saving.choose_resume_step(tmp_path) == []
        return
    for _ in range(2):  # every start
        with refuses("checkpoint.nothing-to-resume", tmp_path / LATEST):
            saving.choose_resume_step(tmp_path)
    shutil.rmtree(tmp_path / "global_step_2", ignore_errors=True)
    copy.rename(tmp_path / "global_step_2")
    (warning,) = saving.choose_resume_step(tmp_path)
    assert warning.endswith("global_step_4 is damaged or missing: resuming from step 2")
    assert latest_step(tmp_path) == 2


def write_sft_checkpoint(run: Path, step: int, processes: int = 2) -> Path:
    """Write a checkpoint as verl's SFT trainer does: shards in the folder itself, no manifest."""
    folder = run / f"global_step_{step}"
    folder.mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        for rank in range(processes):
            torch.save({"a": rank}, folder / f"{kind}_world_size_{processes}_rank_{rank}.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": processes}))
    saving.write_tracker(run, step)
    return folder


def test_a_folder_without_a_manifest_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, 3)
    write_sft_checkpoint(tmp_path, 7)
    assert latest_step(tmp_path) == 3  # evaluation and reports read it too
    (warning,) = saving.choose_resume_step(tmp_path)
    assert "global_step_7 is damaged or missing: resuming from step 3" in warning
    assert tracked_step(tmp_path) == 3  # verl reads this one


def test_folders_that_only_look_like_checkpoints_are_ignored(tmp_path: Path) -> None:
    save(tmp_path, 2, 4)
    shutil.copytree(tmp_path / "global_step_4", tmp_path / "global_step_4_backup")
    assert saving.choose_resume_step(tmp_path) == []
    assert saving.complete_steps(tmp_path) == [2, 4]


@pytest.mark.parametrize("processes", [1, 4])
def test_changed_process_count_warns_and_is_refused_for_fsdp1(tmp_path: Path, processes: int) -> None:
    assert saving.check_shards_to_load(tmp_path, processes) == []  # nothing to resume
    manifest.write(write_sft_checkpoint(tmp_path, 7))
    assert saving.check_shards_to_load(tmp_path, 2) == []
    (warning,) = saving.check_shards_to_load(tmp_path, processes)
    assert f"global_step_7: 2 processes saved it and {processes} resume it" in warning
    (tmp_path / "global_step_7" / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 2}')
    with refuses("checkpoint.fsdp1-world-size", "global_step_7: 2 processes", f"is {processes} now"):
        saving.check_shards_to_load(tmp_path, processes)


def test_code_in_checkpoint_is_refused_early_naming_the_file(tmp_path: Path) -> None:
    folder = write_sft_checkpoint(tmp_path, 7)
    torch.save({"rng": Path("/")}, folder / "data_0.pt")  # pickled as a call of a function
    manifest.write(folder)
    with refuses("checkpoint.unsafe-content", folder / "data_0.pt", "pathlib."):
        saving.check_shards_to_load(tmp_path, 2)


def test_stop_requests_of_earlier_starts_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_job = "rank-grpo-20260102-030405-abcd"
    monkeypatch.setenv(runs.SUBMISSION_VARIABLE, own_job)
    for name in ("stop", "stop.rank-grpo-20260101-030405-abcd", f"stop.{own_job}", "stop.txt"):
        (tmp_path / name).touch()
    saving.clear_stop_requests(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"stop.{own_job}", "stop.txt"])


def test_a_merged_model_does_not_count_as_damage(tmp_path: Path) -> None:
    save(tmp_path, 2)
    for name in ("merged", ".merged.partial-host-1"):
        (tmp_path / "global_step_2" / "actor" / name).mkdir()
        (tmp_path / "global_step_2" / "actor" / name / "model.safetensors").write_bytes(b"z")
    before = (tmp_path / "global_step_2" / MANIFEST).read_text()
    assert saving.complete_steps(tmp_path) == [2]
    saving.save(tmp_path, 4, lambda: shutil.copytree(tmp_path / "global_step_2", tmp_path / "global_step_4"))
    assert (tmp_path / "global_step_4" / MANIFEST).read_text() == before


def fill_the_disk(run: Path) -> None:
    (run / LATEST).write_text("")  # opening it to write empties it
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


def use_up_the_quota(run: Path) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def hide_a_shard(run: Path) -> None:
    folder = write_sft_checkpoint(run / "of two", 4)
    (folder / "model_world_size_2_rank_1.pt").unlink()
    saving.wait_for_shards(folder)


@pytest.mark.parametrize(
    ("saved", "step", "fail", "message"),
    [
        ([], 1, use_up_the_quota, "Disk quota exceeded.*there is no earlier checkpoint"),
        ([], 1, fill_the_disk, "No space left on device.*there is no earlier checkpoint"),
        ([2], 4, fill_the_disk, "No space left on device.*the checkpoint of step 2 is intact"),
        ([2, 4], 4, fill_the_disk, "the checkpoint of step 2 is intact"),  # trained again
        ([2], 4, hide_a_shard, "storage that all nodes share.*the checkpoint of step 2 is intact"),
    ],
)
def test_failed_save_keeps_previous_checkpoint_and_tracker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: list[int],
    step: int,
    fail: Callable[[Path], None],
    message: str,
) -> None:
    monkeypatch.setattr(saving, "SHARED_SECONDS", 0.0)
    save(tmp_path, *saved)

    def write() -> None:
        make_writer(tmp_path, step, size=50)()  # verl's tracker already names it
        fail(tmp_path)

    with pytest.raises(RuntimeError, match=message):
        saving.save(tmp_path, step, write, keep=1)
    assert not (tmp_path / f"global_step_{step}").exists()
    assert (saving.complete_steps(tmp_path), latest_step(tmp_path)) == (saved[:1], sum(saved[:1]))
    assert not [*tmp_path.glob("unfinished_step_*")]


def test_a_full_disk_is_named_when_torch_reports_another_error(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", run], capture_output=True, check=False
    ).returncode:
        pytest.skip("only root can mount a small disk")

    def write() -> None:
        (run / "global_step_1").mkdir()
        torch.save({"weights": torch.zeros(2_000_000)}, run / "global_step_1" / "model_world_size_1_rank_0.pt")

    try:
        with pytest.raises(RuntimeError, match=r"unexpected pos .*: No space left on device.*there is no earlier"):
            saving.save(run, 1, write)
    finally:
        subprocess.run(["umount", "--lazy", run], check=True)


def test_a_checkpoint_that_cannot_fit_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 2)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))  # the last one has 101 bytes
    with pytest.raises(RuntimeError, match="step 4 is not saved, the checkpoint of step 2 is intact"):
        saving.save(tmp_path, 4, pytest.fail)
    assert latest_step(tmp_path) == 2


def test_saving_waits_for_shards_that_become_visible_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, which shows another node's files only after its cached directory listing expires."""
    folder = write_sft_checkpoint(tmp_path, 4)
    late = folder / "model_world_size_2_rank_1.pt"
    late.rename(tmp_path / "late.pt")
    monkeypatch.setattr(saving.time, "sleep", lambda seconds: (tmp_path / "late.pt").rename(late))
    saving.wait_for_shards(folder)
    assert late.exists()


def test_bit_flip_is_detected_and_previous_checkpoint_is_used(tmp_path: Path) -> None:
    save(tmp_path, 2, 4, 6)
    for step in (4, 6):
        damage(tmp_path, step)
    *files, last = saving.choose_resume_step(tmp_path)
    assert [line.split()[0] for line in files] == [f"{tmp_path}/global_step_{step}/actor/model.pt" for step in (6, 4)]
    assert last == f"{tmp_path}/global_step_6 is damaged or missing: resuming from step 2"
    assert latest_step(tmp_path) == 2
    save(tmp_path, 4)
    assert saving.choose_resume_step(tmp_path) == []
    assert latest_step(tmp_path) == 4


def damage(run: Path, step: int) -> None:
    (run / f"global_step_{step}" / "actor" / "model.pt").write_bytes(b"x" * 50 + b"z" + b"x" * 49)


def test_a_damaged_checkpoint_does_not_displace_an_intact_one(tmp_path: Path) -> None:
    save(tmp_path, 20, 30)
    saving.note_validation(tmp_path, 20, {"val/ndcg": 0.1})
    saving.note_validation(tmp_path, 30, {"val/ndcg": 0.9})
    damage(tmp_path, 30)
    saving.choose_resume_step(tmp_path)
    assert saving.best_step(tmp_path) is None  # step 30 was the best and is damaged
    save(tmp_path, 25, keep=1)
    assert saving.complete_steps(tmp_path) == [25]
    assert saving.choose_resume_step(tmp_path) == []
    save(tmp_path, 40, keep=2)
    assert saving.complete_steps(tmp_path) == [25, 40]
    assert (tmp_path / "global_step_30" / "actor" / "model.pt").exists()  # damaged files are not deleted


def test_a_run_that_goes_back_keeps_its_new_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30)
    saving.write_tracker(tmp_path, 10)
    save(tmp_path, 15, keep=1)
    assert saving.complete_steps(tmp_path) == [15, 20, 30]
    save(tmp_path, 30, keep=1)
    assert saving.complete_steps(tmp_path) == [30]


def test_a_best_step_that_is_trained_again_gets_its_new_score(tmp_path: Path) -> None:
    save(tmp_path, 20, 30)
    saving.note_validation(tmp_path, 30, {"val/ndcg": 0.9})
    saving.write_tracker(tmp_path, 20)
    save(tmp_path, 30)
    assert saving.best_step(tmp_path) is None
    saving.note_validation(tmp_path, 30, {"val/ndcg": 0.1})
    save(tmp_path, 40)
    saving.note_validation(tmp_path, 40, {"val/ndcg": 0.5})
    assert json.loads((tmp_path / saving.BEST).read_text()) == {"step": 40, "val/ndcg": 0.5}


def test_files_are_on_the_disk_before_the_manifest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, bool] = {}  # path -> whether the manifest existed
    fsync = os.fsync
    folder = tmp_path / "global_step_2"

    def record_and_sync(descriptor: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)
        synced.setdefault(path, (folder / MANIFEST).exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_and_sync)
    save(tmp_path, 2)
    first = [path for path, late in synced.items() if not late]
    assert sorted(first) == [f"global_step_2{part}" for part in ("", "/actor", "/actor/model.pt", "/data.pt")]
    assert {path for path, late in synced.items() if late} == {f"global_step_2/{MANIFEST}", "."}


def test_pruning_a_linked_step_removes_only_the_link(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outside = tmp_path / "outside"
    save(outside, 2, 4)
    save(run, 1)
    for step in (2, 4):
        (run / f"global_step_{step}").symlink_to(outside / f"global_step_{step}")
    (run / "global_step_8").symlink_to(tmp_path / "nothing")
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    save(run, 4, 6, 8, keep=2)  # step 4 replaces the link instead of writing through it
    assert saving.complete_steps(run) == [6, 8]
    assert not [path for path in run.iterdir() if path.is_symlink()]
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before

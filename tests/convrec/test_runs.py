"""A run's folder: metrics of several starts become one history."""

import json
from pathlib import Path
from typing import Any

from convrec.runs import latest_step, next_metrics_file, read_metrics, saved_steps, start_model


def _write(file: Path, *entries: tuple[int, dict[str, Any]], tail: str = "") -> None:
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in entries]
    file.write_text("".join(lines) + tail)


def test_each_start_has_a_file_of_its_own(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        file = next_metrics_file(tmp_path)
        assert file.name == f"{number:04d}.jsonl"
        file.touch()


def test_starts_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(1, 12):
        _write(next_metrics_file(tmp_path), (1, {"loss": float(number)}))
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 11.0}]


def test_lines_of_a_step_are_merged(tmp_path: Path) -> None:
    _write(next_metrics_file(tmp_path), (0, {"val/ndcg": 0.1}), (5, {"loss": 2.0}), (5, {"val/ndcg": 0.2}))
    assert read_metrics(tmp_path) == [{"step": 0, "val/ndcg": 0.1}, {"step": 5, "loss": 2.0, "val/ndcg": 0.2}]


def test_a_repeated_step_has_the_later_starts_values(tmp_path: Path) -> None:
    _write(next_metrics_file(tmp_path), (1, {"loss": 3.0}), (2, {"loss": 2.0, "lr": 1.0}), (3, {"loss": 1.5}))
    _write(next_metrics_file(tmp_path), (2, {"loss": 2.1}), (4, {"loss": 1.0}))
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 2.1, "lr": 1.0},
        {"step": 3, "loss": 1.5},
        {"step": 4, "loss": 1.0},
    ]


def test_a_cut_off_last_line_is_left_out(tmp_path: Path) -> None:
    _write(next_metrics_file(tmp_path), (1, {"loss": 3.0}), tail='{"step": 2, "data": {"lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 3.0}]


def test_a_folder_without_metrics_or_checkpoints(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "nothing") == []
    assert latest_step(tmp_path / "nothing") == 0


def test_latest_step_is_the_one_verl_names_complete(tmp_path: Path) -> None:
    for step in (100, 200):
        (tmp_path / f"global_step_{step}").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")  # 200 was cut off
    assert latest_step(tmp_path) == 100


def test_the_start_model_is_the_configs_of_either_recipe(tmp_path: Path) -> None:
    assert start_model(tmp_path) is None
    (tmp_path / "config.yaml").write_text("model: {path: a/b}\n")
    assert start_model(tmp_path) == "a/b"
    (tmp_path / "config.yaml").write_text("model: {path: judge}\nactor_rollout_ref: {model: {path: c/d}}\n")
    assert start_model(tmp_path) == "c/d"


def test_saved_steps_are_the_complete_ones_that_still_have_a_model(tmp_path: Path) -> None:
    for step, file in (
        (9, "huggingface/model.safetensors"),
        (10, "actor/model_world_size_1_rank_0.pt"),
        (2, "data.pt"),
    ):
        path = tmp_path / f"global_step_{step}" / file
        path.parent.mkdir(parents=True)
        path.touch()
    assert saved_steps(tmp_path) == []  # no complete checkpoint is named
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    assert saved_steps(tmp_path) == [9, 10]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("9")
    assert saved_steps(tmp_path) == [9]

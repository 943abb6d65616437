"""A run folder can only be resumed by the run that it holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from convrec.settings.run import Run
from recipes.launch.same_run import compare_with_folder, digest_contents
from recipes.launch.settings import save_config
from tests.user_errors import refuses

MODEL = "actor_rollout_ref__model__path"


def make_run(**changes: Any) -> Run[Any]:
    config = OmegaConf.create(
        {
            "run": {"recipe": "rank_grpo", "algorithm": "rank_grpo"},
            "data": {"train_files": "a.parquet", "val_files": ["b.parquet"], "train_batch_size": 16},
            "actor_rollout_ref": {
                "model": {"path": "models/a"},
                "actor": {
                    "optim": {"lr": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.999]},
                    "clip_ratio": 0.2,
                    "clip_ratio_low": "${.clip_ratio}",
                },
            },
            "convrec": {"reward": "exp_inf", "gamma": None, "watchdog_seconds": 300},
            "trainer": {"total_training_steps": 100, "nnodes": 1, "default_local_dir": "run", "logger": ["file"]},
            "ray_kwargs": {"ray_init": {"num_cpus": 4}},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    return Run.from_config(config)


def test_a_run_in_another_place_on_more_nodes_is_the_same_run(tmp_path: Path) -> None:
    save_config(make_run().verl_config, tmp_path)
    assert compare_with_folder(make_run(), tmp_path) == []
    moved = {"trainer__default_local_dir": "elsewhere", "trainer__logger": ["file", "wandb"]}
    moved |= {"trainer__nnodes": 2, "ray_kwargs__ray_init__num_cpus": 8, "convrec__watchdog_seconds": 600}
    assert compare_with_folder(make_run(**moved), tmp_path) == []


def test_changed_training_settings_are_named_on_resume(tmp_path: Path) -> None:
    save_config(make_run().verl_config, tmp_path)
    now = make_run(actor_rollout_ref__actor__optim__lr=3e-4, convrec__reward="log_decay", data__train_batch_size=32)
    assert compare_with_folder(now, tmp_path) == [
        f"{tmp_path} resumes with a changed setting: actor_rollout_ref.actor.optim.lr: 0.001 -> 0.0003",
        f"{tmp_path} resumes with a changed setting: convrec.reward: exp_inf -> log_decay",
        f"{tmp_path} resumes with a changed setting: data.train_batch_size: 16 -> 32",
    ]


@pytest.mark.parametrize(
    ("key", "value", "change"),
    [
        ("actor_rollout_ref.actor.clip_ratio", 0.3, "0.2 -> 0.3"),
        ("actor_rollout_ref.actor.clip_ratio_low", 0.1, "${.clip_ratio} -> 0.1"),
        ("actor_rollout_ref.actor.optim.weight_decay", 0.0, "0.01 -> 0.0"),
        ("actor_rollout_ref.actor.optim.betas", [0.9, 0.95], "[0.9, 0.999] -> [0.9, 0.95]"),
        ("data.val_files", ["c.parquet"], "['b.parquet'] -> ['c.parquet']"),
        ("convrec.gamma", 1.5, "null -> 1.5"),
        ("trainer.total_training_steps", 200, "100 -> 200"),
    ],
)
def test_every_changed_setting_is_reported(tmp_path: Path, key: str, value: Any, change: str) -> None:
    save_config(make_run().verl_config, tmp_path)
    warning = f"{tmp_path} resumes with a changed setting: {key}: {change}"
    assert compare_with_folder(make_run(**{key.replace(".", "__"): value}), tmp_path) == [warning]


@pytest.mark.parametrize(
    ("key", "value", "change"),
    [
        ("actor_rollout_ref__model__path", "elsewhere/a", "model was 'models/a' and is 'elsewhere/a'"),
        ("run__algorithm", "grpo", "algorithm was 'rank_grpo' and is 'grpo'"),
        ("run__recipe", "judge_pairwise", "recipe was 'rank_grpo' and is 'judge_pairwise'"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, key: str, value: str, change: str) -> None:
    save_config(make_run().verl_config, tmp_path)
    with refuses("launch.another-run", tmp_path, change):
        compare_with_folder(make_run(**{key: value}), tmp_path)


@pytest.fixture
def files(tmp_path: Path, sound_model: Callable[..., Path]) -> dict[str, str]:
    (tmp_path / "train.parquet").write_text("rows")
    (tmp_path / "catalog.parquet").write_text("items")
    (tmp_path / "validation.parquet").write_text("rows")
    paths = {"data__train_files": "train.parquet", "data__val_files": "validation.parquet"}
    paths["convrec__catalog_file"] = "catalog.parquet"
    sound_model(tmp_path / "model")
    return {key: str(tmp_path / name) for key, name in (paths | {MODEL: "model"}).items()}


def start(folder: Path, files: dict[str, str]) -> Run[Any]:
    """Make a run, and write its config if the folder has none."""
    training = make_run(**files)
    training.note_contents(digest_contents(training))
    if not (folder / "config.yaml").exists():
        save_config(training.verl_config, folder)
    return training


def test_changed_data_is_reported_and_a_changed_model_is_refused(
    tmp_path: Path, files: dict[str, str], sound_model: Callable[..., Path]
) -> None:
    run = tmp_path / "run"
    assert compare_with_folder(start(run, files), run) == []
    for name, key in (("train", "data.train_files"), ("catalog", "convrec.catalog_file")):
        (tmp_path / f"{name}.parquet").write_text("others")
        (warning, *_) = compare_with_folder(start(run, files), run)
        assert "changed data" in warning
        assert f"{tmp_path}/{name}.parquet ({key})" in warning
        (tmp_path / f"{name}.parquet").write_text({"train": "rows", "catalog": "items"}[name])
    assert compare_with_folder(start(run, files), run) == []
    sound_model(tmp_path / "model", weight=0.25)
    with refuses("launch.another-run", tmp_path / "model"):
        compare_with_folder(start(run, files), run)


def test_a_moved_model_and_moved_data_are_the_same(tmp_path: Path, files: dict[str, str]) -> None:
    run = tmp_path / "run"
    start(run, files)
    moved = {}
    for key, path in files.items():
        moved[key] = str(Path(path).rename(tmp_path / f"moved-{Path(path).name}"))
    assert compare_with_folder(start(run, moved), run) == []


def test_a_setting_that_the_run_did_not_have_is_no_change(tmp_path: Path) -> None:
    earlier = make_run().verl_config
    del earlier["convrec"]["gamma"]
    assert compare_with_folder(make_run(), tmp_path) == []  # no config.yaml at all
    save_config(earlier, tmp_path)
    assert compare_with_folder(make_run(convrec__gamma=1.5), tmp_path) == []

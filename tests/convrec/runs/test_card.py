"""The card of an exported checkpoint: base model, data, settings and validation scores."""

import json
from pathlib import Path

import yaml

from convrec.runs import card

CONFIG = {
    "run": {"recipe": "rank_grpo", "algorithm": "rank_grpo"},
    "actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-0.5B-Instruct"}, "rollout": {"n": 8}},
    "data": {"train_files": "/private/place/train.parquet", "val_files": ["validation.parquet"]},
    "convrec": {"reward": "exp_inf", "lr_schedule": None},
}


def make_run(folder: Path, *metrics: dict) -> Path:
    (folder / "metrics").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    lines = [json.dumps({"step": step, "data": data}) for step, data in enumerate(metrics, start=1)]
    (folder / "metrics" / "0001.jsonl").write_text("\n".join(lines))
    return folder


def test_card_has_base_data_settings_and_last_validation(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"val/ndcg": 0.1}, {"val/ndcg": 0.25, "val/ndcg_se": 0.0125}, {"val/ndcg": 0.9})
    card.write_card(tmp_path, run, 2)
    text = (tmp_path / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert {"license", "tags", "library_name", "pipeline_tag"} <= yaml.safe_load(head).keys()
    assert "`train.parquet`, `validation.parquet`" in body
    assert "private" not in text  # part of a path on this machine
    assert "| `actor_rollout_ref.rollout.n` | 8 |" in body
    assert "lr_schedule" not in body
    assert "| `val/ndcg` | 0.2500 ± 0.0125 |" in body


def test_a_validation_that_is_not_a_number_is_omitted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"val/ndcg": 0.1}, {"val/ndcg": None})
    assert "0.1000" in card.sections(run, 2)


def test_the_base_is_found_through_the_card_of_the_start_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    card.write_card(tmp_path, run, 1)
    assert card.find_hub_base(str(tmp_path)) == "Qwen/Qwen2.5-0.5B-Instruct"
    assert card.find_hub_base(str(tmp_path / "elsewhere")) is None
    assert "base_model" not in card.front_matter(str(tmp_path / "elsewhere"), ["a"])

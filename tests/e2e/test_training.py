"""Rank-GRPO runs that the demo does not cover: tied heads, mu = 2, baselines, and faults that must stop a run."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM

from convrec.checkpoints import resolve_model
from convrec.runs import read_metrics
from convrec.schema import split_prompt
from convrec.tiny_model import make_tiny_model
from data_prep.own import convert_own
from recipes.evaluation.single import evaluate

FILES = {"TRAIN_FILE": "train", "VAL_FILE": "validation", "CATALOG_FILE": "catalog"}


def test_tied_head_and_two_updates_a_batch(demo, recipe, tmp_path_factory, tiny_texts):
    """The head tied to the embedding is what vLLM's CPU build forgets on a weight update."""
    folder = tmp_path_factory.mktemp("tied")
    tied = make_tiny_model(folder / "model", **tiny_texts, tie_word_embeddings=True)
    status, stderr, log = recipe(
        folder / "run", MODEL_PATH=str(tied), TOTAL_STEPS="3", MU="2", LR="1e-2", REWARD="log_decay"
    )
    assert status == 0, stderr + log[-3000:]
    rows = [row for row in read_metrics(folder / "run") if "actor/policy_loss" in row]
    assert len(rows) == 3
    for row in rows:
        assert row["actor/rollout_diff_max"] < 1e-3
        assert row["timing_s/old_log_prob"] > 0.01  # mu > 1 needs the pass
    assert rows[-1]["actor/ratio_max/all"] > 1.0  # the second update of a batch is off-policy
    assert rows[-1]["actor/kl"] > 0


@pytest.fixture
def own_data(demo, tmp_path) -> dict[str, str]:
    """The demo's conversations as a user's own files: JSONL, and a catalog of titles without years."""
    titles = dict.fromkeys(row["title"] for row in pq.read_table(demo.files["CATALOG_FILE"]).to_pylist())
    (tmp_path / "films.jsonl").write_text("".join(json.dumps({"title": title}) + "\n" for title in titles))
    with open(tmp_path / "dialogues.jsonl", "w") as lines:
        for split in ("train", "validation", "test"):
            for row in pq.read_table(demo.out / "data" / f"{split}.parquet").slice(0, 300).to_pylist():
                conversation = split_prompt(row["prompt"][0]["content"])[1]
                truth = dict.fromkeys(title for title, _ in row["groundtruth_with_release_year"])
                own = {"conversation": conversation, "ground_truth": [*truth], "seen": row["seen_titles"]}
                lines.write(json.dumps(own | {"split": split, "conversation_id": row["sample_id"]}) + "\n")
    folder = tmp_path / "own"
    convert_own([tmp_path / "dialogues.jsonl"], tmp_path / "films.jsonl", folder)
    return {name: str(folder / f"{file}.parquet") for name, file in FILES.items()}


def test_a_baseline_on_data_of_ones_own_without_years_is_merged_and_evaluated(demo, recipe, own_data, tmp_path):
    """GSPO here; GRPO is what the killed runs of test_deaths.py train."""
    status, stderr, log = recipe(
        tmp_path / "run",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
        MODEL_PATH=str(demo.out / "sft"),
        TOTAL_STEPS="2",
        LR="1e-3",
        TRAIN_BATCH_SIZE="16",  # the model has hardly been trained: enough lists that some hit
        ROLLOUT_N="8",
        ALGORITHM="gspo",
        **own_data,
    )
    assert status == 0, stderr + log[-3000:]
    rows = [row for row in read_metrics(tmp_path / "run") if "actor/pg_loss" in row]
    assert [row["step"] for row in rows] == [1, 2]
    assert all("rank_grpo/return@1" in row for row in rows)
    assert max(row["actor/grad_norm"] for row in rows) > 0
    before = AutoModelForCausalLM.from_pretrained(resolve_model(demo.out / "sft")).state_dict()
    after = AutoModelForCausalLM.from_pretrained(resolve_model(tmp_path / "run"), dtype="float32").state_dict()
    moved = max((after[name] - before[name]).abs().max().item() for name in before)
    assert 1e-4 < moved < 2e-2  # two steps of Adam at lr 1e-3, and verl's merger rounds to bf16

    metrics = evaluate(
        model=tmp_path / "run",
        data=Path(own_data["TRAIN_FILE"]).with_name("test.parquet"),
        catalog=own_data["CATALOG_FILE"],
        out=tmp_path / "evaluation",
        train=own_data["TRAIN_FILE"],
        max_prompt_length=256,
        max_response_length=64,
        limit=64,
        progress=False,
    )
    results = metrics["results"]["paper"]
    assert results["model"]["n"] == 64  # the demo's model writes years, which are no items of this catalog
    assert 0 < results["popularity"]["ndcg@20"]["mean"] < 1


def test_a_rollout_that_is_not_the_policy_stops_the_run(demo, recipe, copy_of_project, tmp_path, tiny_texts):
    """The fault: after a weight update vLLM's CPU build keeps sampling from the tied head it was started with."""
    copy = copy_of_project("convrec/vllm_cpu.py", "        repack_tied_head(self.model_runner.model)\n", "")
    tied = make_tiny_model(tmp_path / "model", **tiny_texts, tie_word_embeddings=True)
    status, stderr, _ = recipe(tmp_path / "run", root=copy, MODEL_PATH=str(tied), TOTAL_STEPS="1")
    assert status == 1
    assert "the rollout does not sample from the policy" in stderr


def test_a_worker_without_the_registrations_stops_the_run(demo, recipe, copy_of_project, tmp_path):
    stale = copy_of_project("convrec/registration.py", "    register_policy_loss(NAME)(_needs_the_trainer)\n", "")
    status, stderr, _ = recipe(
        tmp_path / "run",
        f"+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH={stale}",
        MODEL_PATH=str(demo.out / "sft"),
        TOTAL_STEPS="1",
    )
    assert status == 1
    assert "lacks the policy_loss `rank_grpo`" in stderr
    assert str(stale) in stderr

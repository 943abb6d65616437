"""The peers of bench_training.py get the rows, the settings and the reward of a run of this project. Nothing trains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.paper_grpo import load_tokenizer, read_catalog
from benchmarks.peers import MEAN_LENGTH, Job, StepRecorder, fit_row, read_job, read_rows, trainer_options, write_job
from benchmarks.trl_grpo import make_reward
from convrec.data.chat import encode, render_prompt
from convrec.data.schema import RL_SCHEMA, format_prompt
from convrec.runs.folder import read_metrics

ROW = {
    "prompt": [{"role": "user", "content": format_prompt("USER: First.\nSYSTEM: Well.\nUSER: Heat is good.\n", 2)}],
    "seen_titles": ["Heat"],
    "groundtruth_with_release_year": [["Up", "2009"]],
    "sample_id": "a_t2",
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("catalog") / "catalog.parquet"
    pq.write_table(pa.table({"title": ["Heat", "Up", "Undated"], "year": [1995, 2009, None]}), file)
    return str(file)


@pytest.fixture(scope="module", params=[False, True], ids=["free responses", "whole responses"])
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, unread_model: Path, catalog: str
) -> Job:
    """The second one's responses are as long as they may be."""
    folder = tmp_path_factory.mktemp("job")
    train_file = folder / "train.parquet"
    pq.write_table(pa.Table.from_pylist([ROW] * 3, schema=RL_SCHEMA), train_file)
    variables = {
        "TRAIN_FILE": str(train_file),
        "VAL_FILE": str(train_file),
        "CATALOG_FILE": catalog,
        "MODEL_PATH": str(unread_model),
        "SAVE_PATH": str(folder / "run"),
        "TRAIN_BATCH_SIZE": "3",
        "ROLLOUT_N": "4",
        "MAX_RESPONSE_LENGTH": "30",
        "TOTAL_STEPS": "5",
        "LR": "2e-4",
        "KL_LOSS_COEF": "0.003",
        "NUM_ITEMS": "2",
    }
    return read_job(str(write_job(variables, micro_batch=8, has_whole_responses=request.param)))


def test_a_job_has_the_settings_of_a_run(job: Job, catalog: str) -> None:
    assert (job.batch, job.rollouts, job.steps, job.max_response_length) == (3, 4, 5, 30)
    assert job.min_response_length in (0, 30)
    assert (job.learning_rate, job.kl_loss_coef, job.temperature) == (2e-4, 0.003, 1.0)
    assert (job.reward["catalog_path"], job.reward["num_items"]) == (catalog, 2)
    assert len(read_rows(job)) == 3


def test_a_step_is_one_update_of_equal_micro_batches(job: Job) -> None:
    options = trainer_options(job)
    # 3 x 4 responses in passes of at most 8: the largest divisor that 8 has in common with 12 is 4
    assert options["per_device_train_batch_size"] == 4
    assert options["gradient_accumulation_steps"] == 3
    assert options["generation_batch_size"] == 12
    assert options["generation_kwargs"] == {"min_new_tokens": job.min_response_length}


def test_a_row_has_the_prompt_that_the_model_sees_in_a_run(line_tokenizer: Any) -> None:
    whole = len(encode(line_tokenizer, render_prompt(line_tokenizer, ROW["prompt"])))
    assert fit_row(ROW, line_tokenizer, whole)["prompt"] == ROW["prompt"]
    (shortened,) = fit_row(ROW, line_tokenizer, whole - 1)["prompt"]
    assert shortened["content"] == format_prompt("SYSTEM: Well.\nUSER: Heat is good.\n", 2)


def test_a_row_without_ground_truth_has_empty_lists(line_tokenizer: Any) -> None:
    row = fit_row({**ROW, "seen_titles": None, "groundtruth_with_release_year": None}, line_tokenizer, 10_000)
    assert (row["seen_titles"], row["groundtruth_with_release_year"]) == ([], [])


def test_the_reward_for_trl_is_the_dcg_of_each_list(catalog: str) -> None:
    reward = make_reward({"catalog_path": catalog, "num_items": 2, "matching": None})
    texts = ["Up (2009)\nHeat (1995)", "Heat (1995)\nNowhere (2001)"]
    scores = reward(
        completions=[[{"role": "assistant", "content": text}] for text in texts],
        seen_titles=[["Heat"], ["Heat"]],
        groundtruth_with_release_year=[[["Up", "2009"]], [["Up", "2009"]]],
        prompts=[ROW["prompt"]] * 2,
        trainer_state=None,
    )
    assert scores == [1.0, 0.0]


def test_the_steps_of_a_peer_are_read_as_those_of_a_run(tmp_path: Path) -> None:
    model = SimpleNamespace(generate=lambda ids, sampled: [*ids, sampled])
    recorder = StepRecorder(model, str(tmp_path))
    for step in (1, 2):
        recorder.on_step_begin(None, None, None)
        assert model.generate([1], sampled=2) == [1, 2]
        recorder.on_step_end(None, None, None)
        recorder.on_log(None, SimpleNamespace(global_step=step), None, logs={MEAN_LENGTH: 10.0 + step})
    recorder.on_log(None, SimpleNamespace(global_step=2), None, logs={"train_runtime": 3.0})
    rows = read_metrics(tmp_path)
    assert [(row["step"], row["response_length/mean"]) for row in rows] == [(1, 11.0), (2, 12.0)]
    assert all(0 <= row["timing_s/gen"] <= row["timing_s/step"] for row in rows)


def test_the_paper_s_catalog_has_the_items_with_a_year(catalog: str) -> None:
    assert read_catalog(catalog) == {("Heat", 1995), ("Up", 2009)}


def test_the_paper_s_tokenizer_writes_the_same_prompts(unread_model: Path, line_tokenizer: Any) -> None:
    tokenizer = load_tokenizer(unread_model)
    text = render_prompt(line_tokenizer, ROW["prompt"])
    assert render_prompt(tokenizer, ROW["prompt"]) == text
    assert encode(tokenizer, text) == encode(line_tokenizer, text)
    assert tokenizer.eos_token_id == line_tokenizer.eos_token_id

"""A run whose model may ask, end to end and under the constraint: training, evaluation with a user, a recommender."""

import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from convrec import Recommender
from convrec.base.files import read_json
from convrec.checkpoints.models import resolve_model
from convrec.features.asking.turns import format_question
from convrec.runs.folder import read_metrics
from data_prep.sample import write_sample

from .conftest import ROOT

pytestmark = pytest.mark.long
ASK = ["genre", "decade"]


@pytest.fixture(scope="module")
def start(trained, tmp_path_factory):
    """(the demo's SFT model, shown a few demonstrations that ask; the data's folder)."""
    folder = tmp_path_factory.mktemp("asking")
    data = write_sample(folder / "data", counts={"train": 200, "validation": 8, "test": 24}, ask=ASK)
    model = resolve_model(trained.out / "sft")
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows = pq.read_table(data / "sft_train.parquet").to_pylist()
    texts = [
        (tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False), row["completion"])
        for row in rows
        if row["completion"][0]["content"] in map(format_question, ASK)
    ]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for prompt, (completion,) in texts[:40]:
        before, after = (
            tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in (prompt, completion["content"] + tokenizer.eos_token)
        )
        labels = torch.tensor([[-100] * len(before) + after])
        network(torch.tensor([before + after]), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model", data


def test_a_model_that_may_ask_trains_is_evaluated_and_asks(start, recipe, tmp_path):
    model, data = start
    files = {"TRAIN_FILE": "train", "VAL_FILE": "validation", "CATALOG_FILE": "catalog"}
    run, variables = tmp_path / "run", {name: str(data / f"{file}.parquet") for name, file in files.items()}
    variables |= {"MODEL_PATH": str(model), "ASK": ",".join(ASK), "CONSTRAINED": "1", "TOTAL_STEPS": "2", "LR": "1e-5"}
    variables |= {"MAX_PROMPT_LENGTH": "320", "MAX_RESPONSE_LENGTH": "128"}
    status, error, log = recipe(run, "convrec.deterministic=true", "convrec.num_items=8", **variables)
    assert status == 0, error + log[-3000:]
    rows = [row for row in read_metrics(run) if "actor/policy_loss" in row]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["rank_grpo/questions"] < 2
        assert row["actor/rollout_diff_max"] < 1e-3  # the actor walks questions as the sampler did
        assert row["actor/ratio_mean/all"] == pytest.approx(1)  # one update of all rows, questions too
        assert row["actor/grad_norm"] > 0

    command = [sys.executable, "-m", "recipes", "evaluate", "--model", str(run), "--out", str(tmp_path / "evaluation")]
    command += ["--user", "rule", "--ask", *ASK, "--max-prompt-length", "320", "--max-response-length", "128"]
    command += ["--ks", "5", "8"]
    for option, file in (("--data", "test"), ("--catalog", "catalog"), ("--train", "train")):
        command += [option, str(data / f"{file}.parquet")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = read_json(tmp_path / "evaluation" / "metrics.json")["results"]["paper"]
    assert set(results) == {"model", "never", "fixed", "entropy"}
    assert (results["never"]["questions"]["mean"], results["fixed"]["questions"]["mean"]) == (0, 2)
    assert re.search(r"^useful questions +\S", done.stdout, re.MULTILINE)

    said = [{"role": "user", "content": "What should I watch next?"}]
    with Recommender.load(run, data / "catalog.parquet", max_items=8, max_prompt_length=320) as recommender:
        assert len(recommender.recommend(said, k=5)) == 5  # who takes no question gets none
        asked = []
        while question := (found := recommender.recommend(said, k=5, may_ask=True)).question:
            assert not found.items
            asked.append(question.attribute)
            said += [{"role": "assistant", "content": question.text}, {"role": "user", "content": question.answers[0]}]
        assert len(found) == 5
    assert asked  # it was shown nothing but questions last
    assert len(set(asked)) == len(asked) <= 2

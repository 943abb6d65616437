"""Judges end to end: SFT on demonstrations, GRPO of both modes, evaluation, and a served judge in the Reflect step."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from convrec.checkpoints.models import resolve_model
from convrec.data.validation import validate_sft_table
from convrec.judges.metrics import summarise_pairwise
from convrec.judges.prompt import phrases
from convrec.judges.schema import read_judge_table
from convrec.judges.verdict import parse_score_verdict
from convrec.runs.folder import latest_step, read_metrics
from data_prep import build as reflect_build
from data_prep.judge_demonstrations import build
from data_prep.judge_sample import write_sample
from data_prep.sample import write_sample as write_conversations
from recipes import evaluate
from recipes.tiny_model import make_tiny_model, read_texts

from .conftest import ROOT
from .two_nodes import free_port

pytestmark = pytest.mark.long

SFT_STEPS = 80
FILES = (("TRAIN_FILE", "train"), ("VAL_FILE", "validation"))
SIZES = {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "24"}


def run(script: str, *overrides: str, **variables: str) -> str:
    """bash SCRIPT with these variables; returns what it said on the terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"PYTHON": sys.executable, **variables}
    command = ["bash", str(ROOT / script), *overrides]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    log = Path(variables["SAVE_PATH"]) / "run.log"
    assert done.returncode == 0, done.stderr + (log.read_text(errors="replace")[-3000:] if log.exists() else "")
    return done.stderr


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, and in sft/ a tiny judge that has seen demonstrations of both modes."""
    folder = tmp_path_factory.mktemp("judges")
    data = write_sample(folder / "data", count=600)
    for split in ("train", "validation"):
        for mode in ("pairwise", "pointwise"):
            build(mode, data / mode / f"{split}.parquet", folder / f"{mode}_{split}.parquet")
        both = [pq.read_table(folder / f"{mode}_{split}.parquet") for mode in ("pairwise", "pointwise")]
        pq.write_table(pa.concat_tables(both), folder / f"sft_{split}.parquet")
    # the head tied to the embedding, as in small Qwens: some CPU builds of vLLM forget it on a weight update
    texts, sizes = read_texts([folder / "sft_train.parquet"]), {"vocab_size": 1024, "num_layers": 2}
    model = make_tiny_model(folder / "model", texts, phrases(), **sizes, tie_word_embeddings=True)
    run(
        "run_sft.sh",
        **{"MODEL_PATH": str(model), "SAVE_PATH": str(folder / "sft"), "LR": "4e-3", "MAX_LENGTH": "160"},
        **{name: str(folder / f"sft_{split}.parquet") for name, split in FILES},
        **dict.fromkeys(("TOTAL_STEPS", "SAVE_FREQ", "TEST_FREQ"), str(SFT_STEPS)),
        **{"TOTAL_EPOCHS": "100", "TRAIN_BATCH_SIZE": "32"},
    )
    return folder


def with_a_head_of_its_own(model: str, folder: Path) -> Path:
    """The same model, but its head is not its embedding, as in Qwen3-8B: FSDP2 gathers it by itself."""
    shutil.copytree(model, folder)
    judge = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    judge.config.tie_word_embeddings = False
    judge.lm_head.weight = torch.nn.Parameter(judge.lm_head.weight.detach().clone())
    judge.save_pretrained(folder)
    return folder


def train(mode: str, sft: Path, model: Path, files: dict[str, str]) -> list[dict[str, float]]:
    """Two steps of GRPO from this model into <mode>/; returns the metrics of the steps."""
    said = run(
        f"recipes/judge/run_{mode}.sh",
        "data.val_max_samples=16",
        "trainer.val_before_train=false",
        "actor_rollout_ref.model.use_fused_kernels=true",
        LR="1e-4",  # with ten times that a judge may talk of "fiction fiction fiction" after two steps
        **{"MODEL_PATH": str(model), "SAVE_PATH": str(sft / mode), "TRAIN_BATCH_SIZE": "8", "ROLLOUT_N": "4"},
        **dict.fromkeys(("TOTAL_STEPS", "SAVE_FREQ", "TEST_FREQ"), "2"),
        **SIZES,
        **files,
    )
    assert f"GRPO of a {mode} judge finished" in said
    assert latest_step(sft / mode) == 2
    rows = [row for row in read_metrics(sft / mode) if "actor/pg_loss" in row]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 <= row["reward/score"] <= 1
        assert row["reward/score"] <= 1 - row["reward/no_verdict"]
        assert 0 <= row["reward/zero_std"] <= 1
        assert row["training/rollout_probs_diff_max"] < 1e-3  # with a stale head they are other probabilities
    assert "val/no_verdict" in rows[-1]
    return rows


def test_pairwise_grpo_trains_and_is_evaluated_in_both_orders(sft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = sft / "data" / "pairwise"
    rows = train("pairwise", sft, sft / "sft", {n: str(data / f"{s}.parquet") for n, s in FILES})
    assert rows[0]["reward/score"] == pytest.approx(rows[0]["reward/accuracy"])
    assert rows[0]["reward/no_verdict"] < 0.5  # the form is learned from the demonstrations

    out = sft / "evaluation"
    arguments = ["--judge", "pairwise", "--model", str(sft / "pairwise"), "--data", str(data / "test.parquet")]
    arguments += ["--out", str(out), "--max-response-length", "24"]
    assert evaluate.main(arguments) == 0
    said = capsys.readouterr().out
    assert "accuracy_swapped" in said
    assert "for a constant verdict" in said
    assert evaluate.main(arguments) == 0
    assert "\n0 of " in capsys.readouterr().out  # nothing is generated twice
    metrics = json.loads((out / "metrics.json").read_text())
    table = pq.read_table(out / "rows.parquet").to_pylist()
    assert len(table) == len(read_judge_table(data / "test.parquet", "pairwise"))
    summary = summarise_pairwise(table)
    assert metrics["results"] == json.loads(json.dumps(summary))
    assert summary["no_verdict"]["mean"] < 0.5


def test_pointwise_grpo_trains_with_an_untied_head(sft: Path) -> None:
    data = sft / "data" / "pointwise"
    model = with_a_head_of_its_own(resolve_model(sft / "sft"), sft / "untied")
    rows = train("pointwise", sft, model, {n: str(data / f"{s}.parquet") for n, s in FILES})
    trained = load_file(Path(resolve_model(sft / "pointwise")) / "model.safetensors")
    assert not torch.equal(trained["lm_head.weight"], trained["model.embed_tokens.weight"])
    assert all(row["reward/true_helpfulness"] <= 4 for row in rows)


# ---- a trained judge, merged, served by vLLM, asked by the Reflect step


@pytest.fixture(scope="module")
def served(sft: Path) -> Iterator[str]:
    """The address of vLLM's OpenAI-compatible server with the SFT judge, under the name `judge`."""
    port = free_port()
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment |= {"VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve_model(sft / "sft")]
    command += ["--served-model-name", "judge", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "64"]
    with open(sft / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while True:
            assert server.poll() is None, (sft / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the server did not start in 5 minutes"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)  # its engine, should it still be there


@pytest.fixture(scope="module")
def conversations(sft: Path) -> Path:
    folder = write_conversations(sft / "conversations", counts={"train": 40, "validation": 4, "test": 4})
    films = pq.read_table(folder / "catalog.parquet").sort_by([("mentions", "descending")])
    pq.write_table(films.slice(0, 40), folder / "catalog.parquet")  # a model is asked about each
    return folder


def test_a_served_judge_rates_candidates_in_the_reflect_step(
    sft: Path, conversations: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address and a model name are all it takes; a build that asks about four conversations."""
    monkeypatch.setenv("JUDGE_BASE_URL", served)
    monkeypatch.setenv("JUDGE_MODEL", "judge")
    out = sft / "demonstrations"
    files = [f"--{name}={conversations / name}.parquet" for name in ("train", "validation", "catalog")]
    sizes = ["--share=0.1", "--candidates=20", "--max-epochs=2", "--remap=full"]
    judge = ["--teacher=retrieval", "--judge=pointwise", "--judged=3", '--sampling={"max_tokens": 24}']
    reflect_build.main(["all", "--out", str(out), *files, *sizes, *judge])
    answers = [json.loads(path.read_text())["answer"]["text"] for path in (out / "answers").rglob("*.json")]
    verdicts = {parse_score_verdict(text) for text in answers}
    assert verdicts - {None}, answers[:5]
    ratings = [row["ratings"] for row in pq.read_table(out / "reflect.parquet").to_pylist()]
    given = {rating for some in ratings for rating in some[:3]}
    assert given <= {verdict - 2 for verdict in verdicts if verdict is not None} | {0}
    assert all(rating == 0 for some in ratings for rating in some[3:])
    assert any(given) or verdicts <= {None, 2}
    validate_sft_table(out / "sft_train.parquet")

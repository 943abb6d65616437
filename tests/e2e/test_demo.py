"""The demo end to end: sample data, SFT, Rank-GRPO through verl, Ray, FSDP2 and vLLM, evaluation, report."""

import json
import math
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from convrec.lists.metrics import evaluate_row
from convrec.runs.folder import latest_step, read_metrics

from .conftest import OF_THE_PASS, RL_STEPS, ROOT, trained_steps


def test_ctrl_c_ends_every_process_and_says_how_to_go_on(demo):
    assert demo.first_status == 130
    assert "resumes" in demo.first_stderr
    assert not demo.left_behind, [process.cmdline() for process in demo.left_behind]


def test_demo_resumes_after_the_last_checkpoint(demo):
    assert 1 <= demo.step_when_stopped < RL_STEPS
    assert f"resuming after step {demo.step_when_stopped}" in demo.stderr
    assert latest_step(demo.out / "rank_grpo") == RL_STEPS
    # Ctrl-C may have come between a checkpoint and the end of its step, which is not trained again
    assert {*trained_steps(demo.out / "rank_grpo"), demo.step_when_stopped} == set(range(1, RL_STEPS + 1))


def test_summary_has_its_schema_and_the_path_is_the_last_line(demo):
    path = demo.out / "summary.json"
    assert demo.stdout.strip().splitlines()[-1] == str(path)
    summary = json.loads(path.read_text())
    assert set(summary["models"]) == {"popularity", "retrieval", "sft", "rank_grpo", "fused"}
    for model in summary["models"].values():
        for metric in ("recall", "ndcg"):
            for k in (5, 10, 20):
                value = model[f"{metric}@{k}"]
                assert 0 <= value["mean"] <= 1
                assert 0 <= value["se"] < 0.1
        assert 0 <= model["catalog_hit_ratio"] <= 1
    assert {name: gain.pop("minus") for name, gain in summary["gains"].items()} == {
        "rank_grpo": "sft",
        "fused": "retrieval",
    }
    assert summary["gains"]["rank_grpo"] == summary["gain"]
    assert set(summary["seconds"]) >= {"data", "model", "sft", "rank_grpo", "evaluation", "report"}
    assert summary["versions"]["verl"] == "0.9.1"
    report = (demo.out / "report.html").read_text()
    assert summary["report"] == str(demo.out / "report.html")
    for title in ("Rank-GRPO minus SFT", "Rank-GRPO, fused minus retrieval"):
        assert f"<h3>{title}</h3>" in report
    assert "http://" not in report.replace("http://www.w3.org", "")  # readable without a network


def test_the_terminal_is_quiet_and_names_the_log(demo):
    lines = [
        line for line in demo.stderr.replace("\r", "\n").splitlines() if line.strip() and not re.search(r"\d%", line)
    ]
    assert len(lines) < 60, "\n".join(lines)
    assert "run.log" in demo.stderr
    assert not [line for line in lines if "WARNING" in line or "pid=" in line or "leaked" in line]


def test_a_finished_demo_is_not_overwritten(demo):
    before = (demo.out / "summary.json").stat().st_mtime_ns
    command = [sys.executable, "-m", "recipes", "demo", "--out", str(demo.out)]
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert f"rm -r {demo.out}" in again.stderr
    assert (demo.out / "summary.json").stat().st_mtime_ns == before


def test_every_exported_model_has_a_card(demo):
    exported = [
        *demo.out.glob("sft/global_step_*/huggingface"),
        *demo.out.glob("rank_grpo/global_step_*/actor/huggingface"),
    ]
    assert len(exported) >= 2
    for folder in exported:
        text = (folder / "README.md").read_text()
        assert "license: " in text
        assert "| setting | value |" in text
        assert "val/ndcg" in text or "val/loss" in text


def test_steps_log_the_ranks_and_rollouts_match_the_policy(demo):
    rows = [row for row in read_metrics(demo.out / "rank_grpo") if "actor/policy_loss" in row]
    for row in rows:
        # fp32 on CPU; 4e-6 was seen, and a stale head gives whole units
        assert row["actor/rollout_diff_max"] < 1e-3
        assert row["actor/rollout_diff_mean"] <= row["actor/rollout_diff_max"]
        assert math.isclose(row["actor/ratio_mean/all"], 1.0)  # mu = 1
        assert {f"rank_grpo/return@{k}" for k in (1, 2, 5, 10, 15, 20)} <= set(row)
        assert {"actor/kl", "actor/entropy", "rank_grpo/catalog_hit_ratio", "rank_grpo/truncated"} <= set(row)
    # mu = 1 skips the old-log-prob pass; only the first step of a start makes it, to compare rollout and actor
    first_starts = {1, demo.step_when_stopped + 1}
    assert {row["step"] for row in rows if OF_THE_PASS in row} == first_starts
    assert first_starts < {row["step"] for row in rows}


def test_trackers_of_a_resumed_run_have_whole_curve_and_samples(demo):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = demo.out / "rank_grpo"
    logged = {row["step"]: row["rank_grpo/return@1"] for row in read_metrics(run) if "rank_grpo/return@1" in row}
    first, newest = sorted((run / "tensorboard").iterdir())
    assert (first.name, newest.name) == ("start1", "start2")
    events = EventAccumulator(str(newest)).Reload()
    assert {event.step: event.value for event in events.Scalars("rank_grpo/return@1")} == pytest.approx(logged)
    assert len(events.Scalars("rank_grpo/return@1")) == RL_STEPS
    assert "val/generations/text_summary" in events.Tags()["tensors"]
    assert len(list((run / "swanlab").glob("run-*"))) == 2  # a start each, of one group


def test_evaluation_agrees_with_the_validation_of_training(demo):
    """Training's val/ndcg (positions kept, `strict`) on its rows = our metrics on evaluation's own generations."""
    from convrec.data.schema import PROMPT_COLUMNS
    from convrec.lists.ranks import parse_items
    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher
    from convrec.training.dataset import read_rows
    from recipes.evaluation.options import EvaluationOptions
    from recipes.evaluation.single import evaluate

    last = [row for row in read_metrics(demo.out / "rank_grpo") if "val/ndcg" in row][-1]
    out = demo.out / "validation"
    options = EvaluationOptions(
        model=f"{demo.out / 'rank_grpo'}@last",
        data=demo.files["VAL_FILE"],
        catalog=demo.files["CATALOG_FILE"],
        out=str(out),
        max_prompt_length=256,
        max_response_length=100,
        protocols=("strict",),
        constrained=True,
        progress=False,
    )
    metrics = evaluate(options)
    held = metrics["constrained"]  # what breaks the constraint raises
    assert 2 * held["lists"] == metrics["generation"]["prompts"]
    assert held["lines"] == 20 * held["lists"]
    texts = {row["sample_id"]: row["text"] for row in pq.read_table(out / "rows.parquet").to_pylist()}
    matcher = Matcher(load_catalog(demo.files["CATALOG_FILE"]))
    rows = read_rows([demo.files["VAL_FILE"]], PROMPT_COLUMNS, 128, 3407).to_pylist()
    ndcg = [
        evaluate_row(
            parse_items(texts[row["sample_id"]]),
            [tuple(truth) for truth in row["groundtruth_with_release_year"]],
            row["seen_titles"],
            matcher,
            "strict",
            (20,),
        )["ndcg@20"]
        for row in rows
    ]
    assert last["step"] == RL_STEPS
    assert last["val/ndcg"] == pytest.approx(sum(ndcg) / len(ndcg), abs=1e-6)

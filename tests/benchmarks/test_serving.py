"""The requests, turns and figures of bench_serving.py. No service runs: tests/e2e/test_benchmarks.py runs it whole."""

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.bench_serving import (
    CANDIDATES,
    KINDS,
    LIST_ITEMS,
    TURNS,
    Answers,
    compute_percentiles,
    compute_ratios,
    find_error,
    iter_conversations,
    iter_turns,
    link_model,
)
from convrec.checkpoints.files import fingerprint
from convrec.inference.served_model import find_model
from recipes.serving.schema import ChatRequest, RecommendationRequest

SCHEMAS: dict[str, Any] = {"/v1/recommendations": RecommendationRequest, "/v1/chat/completions": ChatRequest}


@pytest.mark.parametrize("name", KINDS)
def test_the_service_accepts_the_request_of_a_kind(name: str) -> None:
    path, body = KINDS[name].make_request("I loved Heat.", 30)
    request = SCHEMAS[path].model_validate(body)
    assert "I loved Heat." in request.model_dump_json()
    if isinstance(request, RecommendationRequest):
        assert request.k == LIST_ITEMS
    else:
        assert request.max_tokens == 30
        assert request.temperature == 0


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name].peer])
def test_a_kind_is_compared_with_the_same_request_to_vllm(name: str) -> None:
    peer = KINDS[KINDS[name].peer]
    assert peer.service == "vllm"
    path, body = KINDS[name].make_request("I loved Heat.", 30)
    if path == "/v1/chat/completions":
        assert peer.make_request("I loved Heat.", 30) == (path, body)
    else:  # vLLM has no such route, so it writes a free list
        assert peer.make_request is KINDS["free_list"].make_request


def test_every_service_answers_a_kind() -> None:
    assert {kind.service for kind in KINDS.values()} == {*CANDIDATES, "vllm"}


def test_every_kind_has_as_many_turns_at_the_same_mean_time() -> None:
    kinds = list(KINDS)
    turns = list(iter_turns(kinds))
    assert Counter(turns) == dict.fromkeys(kinds, TURNS)
    places = {kind: sum(place for place, turn in enumerate(turns) if turn == kind) / TURNS for kind in kinds}
    assert set(places.values()) == {(len(turns) - 1) / 2}


def test_conversations_differ() -> None:
    conversations = [*itertools.islice(iter_conversations([f"Film {number}" for number in range(100)]), 500)]
    assert len(set(conversations)) > 490


def test_percentiles_are_within_the_latencies() -> None:
    # of 0, 1, ..., 100 seconds, p of a hundred steps lie below the p-th
    assert compute_percentiles([float(number) for number in range(100, -1, -1)]) == {"p50": 50, "p95": 95, "p99": 99}
    # of two, p50 lies in the middle, and p99 is 99/100 of the way to the longest
    assert compute_percentiles([1.0, 2.0]) == {"p50": 1.5, "p95": 1.95, "p99": 1.99}
    assert compute_percentiles([0.25]) == {"p50": 0.25, "p95": 0.25, "p99": 0.25}
    assert compute_percentiles([]) == {}


def test_figures_of_a_kind_are_per_second_and_per_answer() -> None:
    answers = Answers([1.0, 3.0], Counter({"503": 2}), seconds=4.0, tokens=30.0, cpu_seconds=2.0, idle_cpu_seconds=0.1)
    figures = answers.summarize()
    assert figures == {
        "answers": 2,
        "errors": {"503": 2},
        "per_second": 0.5,  # failures are no answers
        "p50": 2.0,
        "p95": 2.9,
        "p99": 2.98,
        "tokens": 15.0,
        "cores": 0.5,
        "idle_cores": 0.025,
    }


def test_a_kind_that_got_no_answer_has_figures_and_no_ratio() -> None:
    figures = Answers(errors=Counter({"ConnectError": 9}), seconds=1.0).summarize()
    assert (figures["answers"], figures["per_second"], figures["errors"]) == (0, 0, {"ConnectError": 9})
    answered = Answers([1.0], seconds=1.0).summarize()
    assert compute_ratios(figures, answered) == compute_ratios(answered, figures) == {}
    assert compute_ratios({"p50": 3.0, "p95": 4.0, "p99": 5.0}, answered) == {"p50": 3, "p95": 4, "p99": 5}


def test_a_short_list_is_a_failure() -> None:
    whole = {"items": [{}] * LIST_ITEMS}
    assert find_error(httpx.Response(200, json=whole)) == ""
    assert find_error(httpx.Response(200, json={"items": whole["items"][1:]})) == f"{LIST_ITEMS - 1} items"
    assert find_error(httpx.Response(200, json={"choices": []})) == ""
    assert find_error(httpx.Response(429, json={})) == "429"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Files that are checked and hashed, but not loaded, as a run's checkpoint with settings."""
    checkpoint = tmp_path / "trained" / "global_step_8"
    checkpoint.mkdir(parents=True)
    save_file({"weight": np.zeros(1, np.float32)}, checkpoint / "model.safetensors")
    (checkpoint / "config.json").write_text("{}")
    (checkpoint.parent / "config.yaml").write_text("convrec: {num_items: 5, candidates: 30}")
    return checkpoint


@pytest.mark.parametrize("candidates", sorted(set(CANDIDATES.values())))
def test_the_served_models_differ_in_their_candidates_only(candidates: int, model: Path, tmp_path: Path) -> None:
    served = find_model(link_model(str(model), candidates, tmp_path / "run"), Path(), None, None)
    assert served.candidates == candidates
    assert served.lists.num_items == 5
    assert fingerprint(Path(served.path)) == fingerprint(model)


def test_a_model_of_no_run_can_be_served_with_candidates(model: Path, tmp_path: Path) -> None:
    shutil.move(model, tmp_path / "model")
    served = find_model(link_model(str(tmp_path / "model"), 50, tmp_path / "run"), Path(), None, None)
    assert served.candidates == 50

"""Questions to a model that is answered here, by replicas on a Ray cluster: real vLLM, a real Ray."""

import sys
import time
from pathlib import Path

import pytest

from convrec.errors import UserError
from convrec.generation.local_model import LocalModel
from convrec.generation.placement import Placement

from .test_generate import greedy_by_transformers, make_model

SAMPLING = {"temperature": 0.0, "max_tokens": 16}


@pytest.mark.e2e
def test_a_local_model_answers_on_a_cluster_and_its_answers_are_kept(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", tied=True)
    prompts = ["Toy Story (1995)", "Amélie (2001)", "word " * 600, "Toy Story (1995)", "Film 1"]
    placement = Placement(2, address="local")  # a Ray of its own, started here
    before = set(Path("/tmp").glob("convrec-*"))  # of guards
    llm = LocalModel(str(folder), "--teacher-model ", tmp_path / "answers", placement, tmp_path / "vllm.log")
    try:
        answers = llm.ask_all(prompts, label="test", **SAMPLING)
        assert "ray" in sys.modules
        assert [bool(answer.error) for answer in answers] == [False, False, True, False, False]
        assert answers[2].error == f"{folder}: the prompt is too long"
        assert answers[0] == answers[3] != answers[1]
        assert answers[0].completion_tokens == len(greedy_by_transformers(folder, prompts[0], 16))
        assert (llm.usage.asked, llm.usage.cached, llm.usage.refused) == (4, 1, 1)
        more = llm.ask_all(["Film 2"], label="test", **SAMPLING)  # by the engines that are there
    finally:
        llm.close()
    deadline = time.monotonic() + 20
    while left := set(Path("/tmp").glob("convrec-*")) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    again = LocalModel(str(folder), "--teacher-model ", tmp_path / "answers", placement, tmp_path / "vllm.log")
    assert again.ask_all([prompts[0], "Film 2"], **SAMPLING) == [answers[0], *more]  # without an engine
    assert again.usage.asked == 0


def test_a_model_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--judge-model .*missing: no such folder"):
        LocalModel(str(tmp_path / "missing"), "--judge-model ", tmp_path, Placement(), tmp_path / "log")

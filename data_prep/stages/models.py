"""The models that stages ask, and the command line's options of them."""

import argparse
import json
from pathlib import Path
from typing import Any

from convrec.judges.prompt import MAX_RESPONSE_TOKENS
from convrec.llm import LLM, endpoint
from convrec.llm.client import MAX_RETRIES
from data_prep.stages.asking import Asker, FailedQuestions

MODEL_JUDGES = ("list", "pointwise")
MAX_TOKENS = {"teacher": 1024, "metadata": 256, "list": 4096, "pointwise": MAX_RESPONSE_TOKENS}


def asker_of(given: argparse.Namespace, role: str, kind: str) -> tuple[Asker, dict[str, Any]]:
    """What asks the model of a role, and what its answers depend on. kind: of MAX_TOKENS."""
    sampling = {"temperature": 0.0, "max_tokens": MAX_TOKENS[kind]} | given.sampling
    sampling = {key: value for key, value in sampling.items() if value is not None}
    model = model_of(given, role)
    failed = FailedQuestions(Path(given.out), kind if kind in ("teacher", "metadata") else "reflect")
    return Asker(model, sampling, failed), {"model": model.endpoint.model, "sampling": sampling}


def model_of(given: argparse.Namespace, role: str) -> LLM:
    """The model behind the role's address. Raises UserError where there is none."""
    cache = given.cache or Path(given.out) / "answers"
    options = {"concurrency": given.concurrency, "max_retries": given.retries, "timeout": given.timeout}
    return LLM(endpoint(role), cache, most_failed=given.skip_failed, **options)


def add_models(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--concurrency", type=int, default=16, help="models: requests in flight (%(default)s)")
    add("--retries", type=int, default=MAX_RETRIES, help="models: of one request (%(default)s)")
    add("--timeout", type=float, default=600.0, help="models: seconds for one answer (%(default)s)")
    add("--skip-failed", type=float, default=0.05, help="models: share of a stage's questions that may stay without "
        "an answer; OUT/failed.jsonl names them (%(default)s)")  # fmt: skip
    add("--cache", help="models: folder of the answers (OUT/answers)")
    add("--sampling", type=_sampling, default={}, help="models: parameters as JSON, '{\"top_p\": 0.9}'; null: not sent")


def _sampling(text: str) -> dict[str, Any]:
    value = json.loads(text)  # a ValueError becomes argparse's message
    if not isinstance(value, dict):
        raise ValueError("an object")
    if ours := sorted(value.keys() & {"model", "messages", "stream"}):
        raise argparse.ArgumentTypeError(f"{', '.join(ours)} is no sampling parameter")
    return value

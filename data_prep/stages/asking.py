"""Ask a model questions whose answers must have a certain format.

Malformed answers are counted and the questions asked once more. Questions without an answer after the client's retries
are recorded in failed.jsonl.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convrec.base.files import write_jsonl
from convrec.base.shipped import read_table
from convrec.judges.prompt import MAX_RESPONSE_TOKENS
from convrec.judges.verdict import strip_thinking
from convrec.llm import LLM, Answer, Messages, NoAnswer, endpoint, merge_sampling
from data_prep.options.demonstrations import DemonstrationsOptions

BLOCK = 2048  # conversations whose questions and answers are in memory at once
FAILED = "failed.jsonl"
PROMPTS: dict[str, Any] = read_table(__file__, "prompts.yaml")


def write_failed(folder: Path, stage: str, entries: Sequence[dict[str, Any]]) -> None:
    """Replace a stage's entries in FOLDER/failed.jsonl.

    Args:
        folder: of the stages.
        stage: its name.
        entries: {"stage", "row", "prompt", "status", "error"} for each question without an answer. status: HTTP status,
            0 if there was no response. error: the server's message.
    """
    entries = [*(entry for entry in read_failed(folder) if entry["stage"] != stage), *entries]
    if entries:
        write_jsonl(folder / FAILED, entries)
    else:
        (folder / FAILED).unlink(missing_ok=True)


def read_failed(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of failed.jsonl; [] if there is none."""
    path = folder / FAILED
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@dataclass
class Asker:
    """Asks one model the questions of one stage.

    Attributes:
        llm: the model.
        sampling: sampling parameters of its answers.
        folder: of the stages; failed questions are recorded there.
        stage: name of the stage.
        failed: entries of the questions without an answer.
        counts: numbers of answers, refused requests and malformed answers.
    """

    llm: LLM
    sampling: dict[str, Any]
    folder: Path
    stage: str
    failed: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: {"answers": 0, "refused": 0, "malformed": 0, "malformed_again": 0}
    )

    def ask(
        self,
        prompts: Sequence[Messages],
        is_good: Callable[[int, str], bool],
        correction: str,
        label: str,
        *,
        thinks: bool = False,
        names: Sequence[str] | None = None,
    ) -> list[list[str]]:
        """Ask the prompts; ask again once if an answer is malformed, showing the model its answer and the correction.

        Args:
            prompts: the questions.
            is_good: whether the answer to prompt `index` is well-formed.
            correction: says what is wrong with a malformed answer.
            label: of the progress bar.
            thinks: whether the model always thinks: an answer cut off before the end of thinking is then thinking only,
                even if the server's template opened it.
            names: the row or item of each prompt, for `failed`.

        Returns:
            For each prompt its answers, one or two: the text after the model's thinking, "" if thinking does not end. A
            refused request (too long, for example) and one without a response have the answer "" and are not repeated.
        """
        firsts = self._ask(prompts, label, thinks, names)
        self.counts["answers"] += len(prompts)
        self.counts["refused"] += sum(bool(answer.error) and not isinstance(answer, NoAnswer) for answer in firsts)
        texts = [[answer.text] for answer in firsts]
        again = [i for i, answer in enumerate(firsts) if not answer.error and not is_good(i, answer.text)]
        self.counts["malformed"] += len(again)
        if again:
            corrections = [
                [
                    *prompts[i],
                    {"role": "assistant", "content": firsts[i].text or "(no answer)"},  # some servers refuse ""
                    {"role": "user", "content": correction},
                ]
                for i in again
            ]
            seconds = self._ask(corrections, f"{label}, again", thinks, names and [names[i] for i in again])
            for i, answer in zip(again, seconds, strict=True):
                texts[i].append(answer.text)
                self.counts["malformed_again"] += not is_good(i, answer.text)
        return texts

    def _ask(self, prompts: Sequence[Messages], label: str, thinks: bool, names: Sequence[str] | None) -> list[Answer]:
        try:
            answers = self.llm.ask_all(prompts, label=label, **self.sampling)
        finally:  # also if too many failed
            failed = {json.dumps(prompt): answer for prompt, answer in self.llm.failures.values()}
            for i, prompt in enumerate(prompts) if failed else ():
                if answer := failed.get(json.dumps(prompt)):
                    entry = {"prompt": prompt, "status": answer.status, "error": answer.error}
                    self.failed.append({"stage": self.stage, "row": names and names[i]} | entry)
            write_failed(self.folder, self.stage, self.failed)
        return [
            replace(answer, text=strip_thinking(answer.text, thinks and answer.finish_reason == "length"))
            for answer in answers
        ]

    @property
    def model(self) -> str:
        """The model's name, on which its answers depend."""
        return self.llm.endpoint.model

    def summary(self) -> dict[str, Any]:
        """Return the counts and the usage of the model, for the stage's summary."""
        return self.counts | {"failed": len(self.failed), "usage": str(self.llm.usage)}


def describe_failed(folder: Path) -> str:
    """Say how many questions have no answer, and what to do; "" if there are none."""
    stages = Counter(entry["stage"] for entry in read_failed(folder))
    if not stages:
        return ""
    counts = ", ".join(f"{count:,} in {stage}" for stage, count in stages.items())
    return (
        f"{folder / FAILED} lists the questions without an answer ({counts}). The same command asks them again (with "
        "--redo if the stage is finished); all other answers come from the cache"
    )


MODEL_JUDGES = ("list", "pointwise")
MAX_TOKENS = {"teacher": 1024, "metadata": 256, "list": 4096, "pointwise": MAX_RESPONSE_TOKENS}


def make_asker(options: DemonstrationsOptions, role: str, kind: str) -> Asker:
    """Make the Asker for the model of a role.

    Args:
        options: of the command.
        role: "teacher" or "judge".
        kind: a key of MAX_TOKENS.
    """
    sampling = merge_sampling({"temperature": 0.0, "max_tokens": MAX_TOKENS[kind]}, options.sampling)
    stage = kind if kind in ("teacher", "metadata") else "reflect"
    return Asker(make_llm(options, role), sampling, Path(options.out), stage)


def make_llm(options: DemonstrationsOptions, role: str) -> LLM:
    """Return the client for the endpoint of a role.

    Args:
        options: of the command; without --cache, answers are kept in OUT/answers.
        role: "teacher" or "judge"; its variables are ROLE_BASE_URL and so on.

    Raises:
        UserError: no endpoint is set, or a variable is invalid.
    """
    cache = options.cache or Path(options.out) / "answers"
    return LLM(
        endpoint(role),
        cache,
        concurrency=options.concurrency,
        max_retries=options.retries,
        timeout=options.timeout,
        most_failed=options.skip_failed,
    )

"""Questions to a model whose answers must have a form: malformed ones are counted and asked again once; what gets no
answer in spite of the client's retries is written down."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convrec.base.files import write_jsonl
from convrec.base.shipped import read_table
from convrec.judges.prompt import MAX_RESPONSE_TOKENS
from convrec.judges.verdict import outside_thinking
from convrec.llm import LLM, Answer, Messages, NoAnswer, endpoint, merge_sampling
from data_prep.options.demonstrations import DemonstrationsOptions

BLOCK = 2048  # conversations whose questions and answers are held at once
FAILED = "failed.jsonl"
PROMPTS: dict[str, Any] = read_table(__file__, "prompts.yaml")


def write_failed(folder: Path, stage: str, entries: Sequence[dict[str, Any]]) -> None:
    """Put a stage's entries in place of those of its last run into FOLDER/failed.jsonl: {"stage", "row", "prompt",
    "status", "error"} of each question that got no answer. status: of HTTP, 0 without one; error: the server's words.
    """
    entries = [*(entry for entry in read_failed(folder) if entry["stage"] != stage), *entries]
    if entries:
        write_jsonl(folder / FAILED, entries)
    else:
        (folder / FAILED).unlink(missing_ok=True)


def read_failed(folder: Path) -> list[dict[str, Any]]:
    path = folder / FAILED
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@dataclass
class Asker:
    """One model, the sampling parameters of its answers, how many answers were malformed, and what got none, which is
    written down for this stage of this folder."""

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
        """The answers to each prompt: one, or two where is_good(index, text) did not hold for the first.

        An answer is what follows the model's thinking, "" when that does not end. The second question shows the model
        its answer and says what is wrong. A refused request (too long, say) has the answer "" and is not asked again;
        so has one that got no answer, and `failed` has its name (`names`: a row or item for each prompt).
        thinks: the model always thinks, so that an answer cut off without the end of thinking is thinking alone, also
        where the server's template has opened it.
        """
        firsts = self._ask(prompts, label, thinks, names)
        self.counts["answers"] += len(prompts)
        self.counts["refused"] += sum(bool(answer.error) and not isinstance(answer, NoAnswer) for answer in firsts)
        texts = [[answer.text] for answer in firsts]
        again = [i for i, answer in enumerate(firsts) if not answer.error and not is_good(i, answer.text)]
        self.counts["malformed"] += len(again)
        if again:
            retold = [
                [
                    *prompts[i],
                    {"role": "assistant", "content": firsts[i].text or "(no answer)"},  # some servers refuse ""
                    {"role": "user", "content": correction},
                ]
                for i in again
            ]
            seconds = self._ask(retold, f"{label}, again", thinks, names and [names[i] for i in again])
            for i, answer in zip(again, seconds, strict=True):
                texts[i].append(answer.text)
                self.counts["malformed_again"] += not is_good(i, answer.text)
        return texts

    def _ask(self, prompts: Sequence[Messages], label: str, thinks: bool, names: Sequence[str] | None) -> list[Answer]:
        try:
            answers = self.llm.ask_all(prompts, label=label, **self.sampling)
        finally:  # also when too many failed
            failed = {json.dumps(prompt): answer for prompt, answer in self.llm.failures.values()}
            for i, prompt in enumerate(prompts) if failed else ():
                if answer := failed.get(json.dumps(prompt)):
                    what = {"prompt": prompt, "status": answer.status, "error": answer.error}
                    self.failed.append({"stage": self.stage, "row": names and names[i]} | what)
            write_failed(self.folder, self.stage, self.failed)
        return [
            replace(answer, text=outside_thinking(answer.text, thinks and answer.finish_reason == "length"))
            for answer in answers
        ]

    @property
    def model(self) -> str:
        """The model's name, on which its answers depend."""
        return self.llm.endpoint.model

    def summary(self) -> dict[str, Any]:
        return self.counts | {"failed": len(self.failed), "usage": str(self.llm.usage)}


def failed_again(folder: Path) -> str:
    """What to say of the questions that got no answer; "" without any."""
    stages = Counter(entry["stage"] for entry in read_failed(folder))
    if not stages:
        return ""
    counts = ", ".join(f"{count:,} of {stage}" for stage, count in stages.items())
    return (
        f"{folder / FAILED} names the questions that got no answer ({counts}). The same command asks them again, with "
        "--redo where the stage is finished; the other answers are taken from the cache"
    )


MODEL_JUDGES = ("list", "pointwise")
MAX_TOKENS = {"teacher": 1024, "metadata": 256, "list": 4096, "pointwise": MAX_RESPONSE_TOKENS}


def make_asker(options: DemonstrationsOptions, role: str, kind: str) -> Asker:
    """Return what asks the model of a role. kind: of MAX_TOKENS."""
    sampling = merge_sampling({"temperature": 0.0, "max_tokens": MAX_TOKENS[kind]}, options.sampling)
    stage = kind if kind in ("teacher", "metadata") else "reflect"
    return Asker(make_llm(options, role), sampling, Path(options.out), stage)


def make_llm(options: DemonstrationsOptions, role: str) -> LLM:
    """The model behind the role's address. Raises UserError where there is none."""
    cache = options.cache or Path(options.out) / "answers"
    return LLM(
        endpoint(role),
        cache,
        concurrency=options.concurrency,
        max_retries=options.retries,
        timeout=options.timeout,
        most_failed=options.skip_failed,
    )

"""Questions to a model whose answers must have a form: malformed ones are counted and asked again once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from convrec.judges.verdict import outside_thinking
from convrec.llm import LLM, Answer, Messages

BLOCK = 2048  # conversations whose questions and answers are held at once


@dataclass
class Asker:
    """One model, the sampling parameters of its answers, and how many answers were malformed."""

    llm: LLM
    sampling: dict[str, Any]
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
    ) -> list[list[str]]:
        """The answers to each prompt: one, or two where is_good(index, text) did not hold for the first.

        An answer is what follows the model's thinking, "" when that does not end. The second question shows the model
        its answer and says what is wrong. A refused request (too long, say) has the answer "" and is not asked again.
        thinks: the model always thinks, so that an answer cut off without the end of thinking is thinking alone, also
        where the server's template has opened it.
        """
        firsts = self._ask(prompts, label, thinks)
        self.counts["answers"] += len(prompts)
        self.counts["refused"] += sum(bool(answer.error) for answer in firsts)
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
            seconds = self._ask(retold, f"{label}, again", thinks)
            for i, answer in zip(again, seconds, strict=True):
                texts[i].append(answer.text)
                self.counts["malformed_again"] += not is_good(i, answer.text)
        return texts

    def _ask(self, prompts: Sequence[Messages], label: str, thinks: bool) -> list[Answer]:
        answers = self.llm.ask_all(prompts, label=label, **self.sampling)
        return [
            replace(answer, text=outside_thinking(answer.text, thinks and answer.finish_reason == "length"))
            for answer in answers
        ]

    def summary(self) -> dict[str, Any]:
        return self.counts | {"usage": str(self.llm.usage)}

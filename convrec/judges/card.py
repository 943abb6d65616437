"""The model card of a trained judge: its criteria, its prompt and its answer format."""

from pathlib import Path

from convrec.base.files import write_text
from convrec.judges.criteria import FILE, Criteria, format_criteria
from convrec.judges.prompt import build_judge_prompt, format_answer_request
from convrec.runs.card import CARD, front_matter

_CARD = """\
{head}# A {mode} judge
Trained by GRPO from `{base_model}` ({data}).

It judges by these criteria (`{file}` next to the weights; `--criteria {file}` passes them to other commands):
```yaml
{criteria}```

Its prompt is one user message; it answers with `{answer}`:
````text
{prompt}
````

{run}"""


def write_card(folder: Path, mode: str, criteria: Criteria, base_model: str, data: str, run: str = "") -> None:
    """Write `README.md` and `criteria.yaml` to a model's folder.

    Args:
        folder: the model's folder.
        mode: pointwise or pairwise.
        criteria: the criteria that it was trained on.
        base_model: the model that training started from.
        data: description of the training data.
        run: further sections, from convrec.runs.card.sections.
    """
    responses = ["..."] if mode == "pointwise" else ["...", "..."]
    (message,) = build_judge_prompt(mode, [{"role": "user", "content": "..."}], responses, criteria)
    text = format_criteria(criteria, mode)
    card = _CARD.format(
        head=front_matter(base_model, ["judge", mode]),
        run=run,
        mode=mode,
        base_model=base_model,
        data=data,
        file=FILE,
        criteria=text,
        answer=format_answer_request(mode, criteria.scores).rpartition("\n")[2],
        prompt=message["content"],
    )
    write_text(folder / FILE, text)
    write_text(folder / CARD, card)

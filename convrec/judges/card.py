"""The card of a trained judge: what it judges by, how it is asked and what it answers."""

from pathlib import Path

from convrec.base.files import write_text
from convrec.judges.criteria import FILE, Criteria, criteria_text
from convrec.judges.prompt import form_of_answer, judge_prompt
from convrec.runs.card import CARD, front_matter

_CARD = """\
{head}# A {mode} judge
Trained by GRPO from `{base_model}` ({data}).

It judges by these criteria (`{file}` beside the weights; `--criteria {file}` gives them to others):
```yaml
{criteria}```

It is asked in one user message, in these words, and answers with `{answer}`:
````text
{prompt}
````

{run}"""


def write_card(folder: Path, mode: str, criteria: Criteria, base_model: str, data: str, run: str = "") -> None:
    """`README.md` and `criteria.yaml` in a model's folder. data: what it was trained on; run: `card.sections` of it."""
    responses = ["..."] if mode == "pointwise" else ["...", "..."]
    (message,) = judge_prompt(mode, [{"role": "user", "content": "..."}], responses, criteria)
    text = criteria_text(criteria, mode)
    card = _CARD.format(
        head=front_matter(base_model, ["judge", mode]),
        run=run,
        mode=mode,
        base_model=base_model,
        data=data,
        file=FILE,
        criteria=text,
        answer=form_of_answer(mode, criteria.scores).rpartition("\n")[2],
        prompt=message["content"],
    )
    write_text(folder / FILE, text)
    write_text(folder / CARD, card)

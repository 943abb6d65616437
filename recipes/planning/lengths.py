"""Measure the lengths of a run's prompts and lists in the first rows of its files."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from convrec.runs.folder import listed
from convrec.settings.run import Run
from convrec.settings.training import RLConfig, TrainingConfig

SAMPLED_ROWS = 512
TEMPLATE_TOKENS = 32  # assumed number of tokens that a chat template adds to a prompt and an answer


@dataclass(frozen=True)
class Lengths:
    """The lengths of a run's sequences, in tokens.

    Attributes:
        prompt: mean length of a prompt.
        response: mean length of a response; None in RL, where the model writes the responses.
        longest: longest prompt and response together; in RL with a response of maximum length.
    """

    prompt: float
    response: float | None
    longest: int


def sample_lengths(run: Run[TrainingConfig]) -> Lengths | None:
    """Measure the first SAMPLED_ROWS rows of the training data.

    Errors in the data are reported by the checks of the data.

    Returns:
        The lengths; None if the data or the tokenizer cannot be read here.
    """
    from tokenizers import Tokenizer

    tokenizer_file = Path(run.tokenizer_path or run.settings.model).expanduser() / "tokenizer.json"
    rows = _read_texts(run)
    if not rows or not tokenizer_file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> list[int]:
        return [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    prompts = [tokens + TEMPLATE_TOKENS for tokens in count([prompt for prompt, _ in rows])]
    if isinstance(run.settings, RLConfig):
        shortened = [min(tokens, run.settings.max_prompt_length) for tokens in prompts]
        return Lengths(_mean(shortened), None, max(shortened) + run.settings.max_response_length)
    responses = count([completion for _, completion in rows])
    whole = [min(prompt + response, _max_length(run)) for prompt, response in zip(prompts, responses, strict=True)]
    return Lengths(_mean(whole) - _mean(responses), _mean(responses), max(whole))


def _max_length(run: Run[TrainingConfig]) -> int:
    return int(run.verl_config.data.max_length)


def _mean(counts: Sequence[int]) -> float:
    return sum(counts) / len(counts)


def _read_texts(run: Run[TrainingConfig]) -> list[tuple[str, str]]:
    """Return (prompt, completion) of the first rows; the completion is "" in RL."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    columns = ["prompt"] if isinstance(run.settings, RLConfig) else ["prompt", "completion"]
    file = listed(run.settings.train_file)[0]
    try:
        batches = pq.ParquetFile(file).iter_batches(batch_size=SAMPLED_ROWS, columns=columns)
        rows = [row for batch in islice(batches, 1) for row in batch.to_pylist()]
        return [(_text(row["prompt"]), _text(row.get("completion"))) for row in rows]
    except (OSError, ArrowException, TypeError, KeyError):
        return []


def _text(messages: list[dict[str, str]] | None) -> str:
    return "\n".join(message["content"] for message in messages or ())

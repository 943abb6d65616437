"""The data of phase `step`."""

from pathlib import Path

import pyarrow.parquet as pq
from transformers import AutoTokenizer

from convrec.data.chat import encode
from convrec.data.schema import RL_SCHEMA, split_prompt
from data_prep.sample import write_sample
from recipes.selftest.checks import TINY, Machine
from recipes.selftest.step import PROMPT_TOKENS, lengthen_prompts, write_long_prompts
from recipes.tiny_model import read_texts


def row(text: str) -> dict[str, list[dict[str, str]]]:
    return {"prompt": [{"role": "user", "content": f"Here is the conversation: {text}"}]}


def test_short_prompt_is_lengthened_with_earlier_conversations() -> None:
    """Tokens are words: the instruction has 4, the three conversations 1, 2 and 3."""
    rows = [row("a "), row("b b "), row("c c c ")]
    texts = [
        split_prompt(longer["prompt"][0]["content"])[1]
        for longer in lengthen_prompts(rows, 8, lambda text: len(text.split()))
    ]
    assert texts == ["c c c a ", "c c c a b b ", "b b c c c "]


def test_written_prompts_have_the_length_of_released_ones(tmp_path: Path) -> None:
    data = write_sample(tmp_path / "data", counts={"train": 40, "validation": 1, "test": 1})
    model = Machine(tmp_path, gpus=0).make_model(TINY | {"vocab_size": 2000}, read_texts([data / "train.parquet"]))
    table = pq.read_table(write_long_prompts(data / "train.parquet", model))
    assert table.schema.equals(RL_SCHEMA)
    tokenizer = AutoTokenizer.from_pretrained(model)
    lengths = [len(encode(tokenizer, row["prompt"][0]["content"])) for row in table.to_pylist()]
    assert len(lengths) == 40
    assert min(lengths) >= PROMPT_TOKENS  # the run cuts them to its MAX_PROMPT_LENGTH, 512

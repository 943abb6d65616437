"""The prompts of the rollout, and the rows on which SFT trains."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from convrec.base.errors import UserError
from convrec.data import chat
from convrec.data.schema import PROMPT_COLUMNS, RL_SCHEMA, SFT_SCHEMA, format_prompt
from convrec.training import dataset
from convrec.training.dataset import ConvRecDataset, DemonstrationDataset, draw_rows, encode, read_rows, render_prompt
from recipes.tiny_model import train_tokenizer
from tests.user_errors import refuses

INSTRUCTION = format_prompt("")
LONG = (
    "USER: " + "I watch a lot of films and like to talk about them. " * 40 + "\nSYSTEM: Which?\nUSER: Heat, please.\n"
)
ANSWER = "Heat (1995)\nAmélie (2001)\n(500) Days of Summer (2009)"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([INSTRUCTION + LONG + ANSWER] * 3, vocab_size=600)


def _row(conversation: str, number: int = 0) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": format_prompt(conversation)}],
        "seen_titles": ["Alien"],
        "groundtruth_with_release_year": [["Heat", "1995"]],
        "sample_id": f"row-{number}",
        "completion": [{"role": "assistant", "content": ANSWER}],
    }


def _config(**changes: Any) -> DictConfig:
    return OmegaConf.create({"max_prompt_length": 4096, "max_length": 4096, "seed": 1, **changes})


def _rl(tmp_path: Path, tokenizer: Any, rows: list[dict[str, Any]], max_samples: int = -1, **changes: Any) -> Any:
    file = tmp_path / "rl.parquet"
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), file)
    return ConvRecDataset(str(file), tokenizer, _config(**changes), max_samples=max_samples)


def _sft(tmp_path: Path, tokenizer: Any, rows: list[dict[str, Any]], **changes: Any) -> DemonstrationDataset:
    file = tmp_path / "sft.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SFT_SCHEMA), file)
    return DemonstrationDataset(str(file), tokenizer, _config(**changes))


def test_files_of_different_arrow_types_are_one_table(tmp_path: Path) -> None:
    rows = [_row("USER: hi\n")]
    large = pa.list_(pa.struct([("role", pa.large_string()), ("content", pa.large_string())]))
    pandas_3 = pa.schema(
        [
            ("sample_id", pa.large_string()),
            ("prompt", large),
            ("seen_titles", pa.large_list(pa.large_string())),
            ("groundtruth_with_release_year", pa.list_(pa.list_(pa.large_string()))),
            ("completion", large),
        ]
    )
    unseen = [rows[0] | {"seen_titles": []}]
    pq.write_table(pa.Table.from_pylist(rows, SFT_SCHEMA), tmp_path / "plain.parquet")
    pq.write_table(pa.Table.from_pylist(rows, pandas_3), tmp_path / "large.parquet")
    pq.write_table(pa.Table.from_pylist(unseen), tmp_path / "inferred.parquet")  # seen_titles is list<null>
    files = [str(tmp_path / f"{name}.parquet") for name in ("plain", "large", "inferred")]
    table = read_rows(files, PROMPT_COLUMNS, -1, None)
    assert table.schema.equals(RL_SCHEMA)
    expected = pa.Table.from_pylist([rows[0], rows[0], unseen[0]], RL_SCHEMA)
    assert table.to_pylist() == expected.to_pylist()


def _sent_by_verl(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Return the prompt tokens that verl's agent loop makes from a row."""
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

    return list(ContinuousTokenBuilder(tokenizer).build_initial_tokens(messages))


def test_a_row_has_the_fields_of_rollout_and_reward(tmp_path: Path, tokenizer: Any) -> None:
    row = _row("USER: Heat, please.\n")
    item = _rl(tmp_path, tokenizer, [row])[0]
    assert item["raw_prompt"] == row["prompt"]
    assert item["reward_model"]["ground_truth"] == {"groundtruth": [["Heat", "1995"]], "seen": ["Alien"]}
    assert item["extra_info"]["sample_id"] == "row-0"


@pytest.mark.parametrize("limit", [4096, 160])
def test_prompt_tokens_agree_between_verl_rollout_and_sft(tmp_path: Path, tokenizer: Any, limit: int) -> None:
    row = _row(LONG)
    prompt = _rl(tmp_path, tokenizer, [row], max_prompt_length=limit)[0]["raw_prompt"]
    sent = _sent_by_verl(tokenizer, prompt)
    assert sent == encode(tokenizer, render_prompt(tokenizer, prompt))
    assert len(sent) <= limit

    answer = encode(tokenizer, ANSWER + "<|im_end|>")
    demonstration = _sft(tmp_path, tokenizer, [row], max_length=limit + len(answer))[0]
    assert demonstration["input_ids"].tolist() == sent + answer


def test_truncation_keeps_the_instruction_and_the_end(tmp_path: Path, tokenizer: Any) -> None:
    (message,) = _rl(tmp_path, tokenizer, [_row(LONG)], max_prompt_length=160)[0]["raw_prompt"]
    assert message["content"].startswith(INSTRUCTION)
    assert message["content"].endswith("USER: Heat, please.\n")
    assert len(message["content"]) < len(format_prompt(LONG))


def test_a_limit_below_the_instruction_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(UserError, match="MAX_PROMPT_LENGTH"):
        _rl(tmp_path, tokenizer, [_row(LONG)], max_prompt_length=10)[0]


def test_max_samples_draws_the_same_rows_in_order(tmp_path: Path, tokenizer: Any) -> None:
    rows = [_row("USER: Heat, please.\n", number) for number in range(20)]
    drawn = [
        [item["extra_info"]["sample_id"] for item in _rl(tmp_path, tokenizer, rows, max_samples=5, seed=seed)]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 5
    assert drawn[0] == sorted(drawn[0], key=lambda name: int(name.removeprefix("row-")))


def repeat_above_2_gib(table: pa.Table) -> pa.Table:
    """Repeat the rows of a table, in chunks that share their memory, up to 2.5 GiB of text."""
    return pa.concat_tables([table] * (5 * 2**29 // table.nbytes + 1))


def allocated_by(call: Callable[[], Any]) -> int:
    """Return the bytes that Arrow allocates in a call, including freed ones."""
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated()
    call()
    return pool.total_bytes_allocated() - before


def test_row_of_a_table_over_2_gib_is_read_without_copying(tmp_path: Path, tokenizer: Any) -> None:
    """`Table.take` allocates the whole table for a row, and fails above 2 GiB: offset overflow."""
    word = "film " * 2**20  # 5 MiB a row; two rows behind it, which are short
    rows = [_row(f"USER: {word}\n"), *(_row(f"USER: {name}?\n", number) for number, name in ((1, "Heat"), (2, "Up")))]
    rl, sft = _rl(tmp_path, tokenizer, rows), _sft(tmp_path, tokenizer, rows)
    rl.dataframe = repeat_above_2_gib(rl.dataframe)
    sft.table = repeat_above_2_gib(sft.table)
    assert rl.dataframe.nbytes > 2**31 < sft.table.nbytes
    last = len(rl) - 2
    for examples in (rl, sft):
        assert len(examples) > 1000
        assert allocated_by(lambda examples=examples: examples[last]) < 2**16
    assert rl[last]["extra_info"]["sample_id"] == "row-1"
    assert "Heat?" in tokenizer.decode(sft[last]["input_ids"])


def test_rows_are_drawn_from_a_table_of_more_than_2_gib(tmp_path: Path) -> None:
    rows = [_row(f"USER: {'film ' * 2**20}\n"), *(_row("USER: Heat?\n", number) for number in range(1, 100))]
    table = repeat_above_2_gib(pa.Table.from_pylist(rows, SFT_SCHEMA))
    drawn: list[pa.Table] = []
    num_bytes = allocated_by(lambda: drawn.append(draw_rows(table, 100, seed=1)))
    assert len(drawn[0]) == 100
    assert num_bytes < 2**27  # a row with 5 MiB is one of a hundred
    places = np.sort(np.random.default_rng(1).choice(len(table), size=100, replace=False))
    assert drawn[0]["sample_id"].to_pylist() == [f"row-{place % 100}" for place in places]


def test_loss_covers_exactly_the_completion_and_end_of_turn(tmp_path: Path, tokenizer: Any) -> None:
    row = _row("USER: Heat, please.\n")
    item = _sft(tmp_path, tokenizer, [row])[0]
    learned = item["input_ids"][item["loss_mask"] == 1]
    assert tokenizer.decode(learned) == ANSWER + "<|im_end|>"
    assert learned[-1] == tokenizer.eos_token_id
    prompt = item["input_ids"][item["loss_mask"] == 0]
    assert tokenizer.decode(prompt) == render_prompt(tokenizer, row["prompt"])
    assert item["loss_mask"].diff().clamp(max=0).sum() == 0, "all of the prompt is before all of the completion"
    assert torch.equal(item["position_ids"], torch.arange(len(item["input_ids"])))


def test_a_template_that_strips_messages_can_be_trained(tmp_path: Path, tokenizer: Any) -> None:
    """Llama's template strips them."""
    template = tokenizer.chat_template.replace("message['content']", "message['content'] | trim")
    assert template != tokenizer.chat_template
    trimming = copy.deepcopy(tokenizer)
    trimming.chat_template = template
    row = _row("USER: Heat, please.\n") | {"completion": [{"role": "assistant", "content": ANSWER + " \n"}]}
    item = _sft(tmp_path, trimming, [row])[0]
    assert trimming.decode(item["input_ids"][item["loss_mask"] == 1]) == ANSWER + "<|im_end|>"
    trimming.chat_template = template.replace("message['content'] | trim", "'no'")
    with refuses("training.chat-template", "row-0"):
        _sft(tmp_path, trimming, [row])[0]


def test_a_long_demonstration_loses_prompt_not_completion(tmp_path: Path, tokenizer: Any) -> None:
    item = _sft(tmp_path, tokenizer, [_row(LONG)], max_length=200)[0]
    assert len(item["input_ids"]) <= 200
    text = tokenizer.decode(item["input_ids"])
    assert ANSWER in text
    assert INSTRUCTION in text
    assert "USER: Heat, please." in text


def test_a_demonstration_that_fits_is_tokenized_once(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for the prompt and one for the completion, even if the prompt has more bytes than allowed tokens."""
    texts: list[str] = []

    def note(tokenizer: Any, text: str) -> list[int]:
        texts.append(text)
        return encode(tokenizer, text)

    for module in (dataset, chat):
        monkeypatch.setattr(module, "encode", note)
    item = _sft(tmp_path, tokenizer, [_row(LONG)], max_length=1500)[0]
    assert len(texts) == 2
    assert tokenizer.decode(item["input_ids"]) == "".join(sorted(texts, key=len, reverse=True))


def test_a_completion_that_is_too_long_is_named(tmp_path: Path, tokenizer: Any) -> None:
    with refuses("training.completion-too-long", "row-0", "MAX_LENGTH"):
        _sft(tmp_path, tokenizer, [_row("USER: Heat, please.\n")], max_length=8)[0]


def test_validation_samples_each_conversation_once(tmp_path: Path, tokenizer: Any) -> None:
    rows = [_row("USER: Heat?\n", 0), _row("USER: Alien?\n", 1), _row("USER: Heat?\n", 2)]
    rows[2] |= {"groundtruth_with_release_year": [["Up", "2009"]], "seen_titles": []}
    dataset = _rl(tmp_path, tokenizer, rows)
    dataset.use_for_validation()
    assert [item["extra_info"]["sample_id"] for item in (dataset[0], dataset[1])] == ["row-0", "row-1"]
    assert len(dataset) == 2
    assert dataset[0]["reward_model"]["ground_truth"] == {
        "rows": [
            {"groundtruth": [["Heat", "1995"]], "seen": ["Alien"]},
            {"groundtruth": [["Up", "2009"]], "seen": []},
        ]
    }


def test_an_existing_loader_yields_each_conversation_once(tmp_path: Path, tokenizer: Any) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.utils.dataset.rl_dataset import collate_fn

    dataset = _rl(tmp_path, tokenizer, [_row(f"USER: {name}?\n", n) for n, name in enumerate("abab")])
    loader = StatefulDataLoader(dataset, batch_size=len(dataset), shuffle=True, drop_last=False, collate_fn=collate_fn)
    dataset.use_for_validation()
    (batch,) = loader
    assert sorted(len(item["ground_truth"]["rows"]) for item in batch["reward_model"]) == [2, 2]


@pytest.mark.parametrize("together", [True, False])
def test_validation_rows_do_not_depend_on_the_runs_seed(tmp_path: Path, tokenizer: Any, together: bool) -> None:
    rows = [_row(f"USER: {number}?\n", number) for number in range(40)]
    drawn = []
    for seed in (1, 2):
        dataset = _rl(tmp_path, tokenizer, rows, max_samples=5, seed=seed)
        dataset.use_for_validation(together)
        drawn.append([dataset[item]["extra_info"]["sample_id"] for item in range(len(dataset))])
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 5

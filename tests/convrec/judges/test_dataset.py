"""A judge's prompt is the same in training, SFT and evaluation; rows that do not fit are dropped, never cut."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from convrec.data.chat import encode, render_prompt
from convrec.data.schema import DEMONSTRATION_SCHEMA
from convrec.judges import pairwise_reward as judge_pairwise
from convrec.judges import pointwise_reward as judge_pointwise
from convrec.judges.criteria import Criteria
from convrec.judges.dataset import PairwiseDataset, PointwiseDataset
from convrec.judges.schema import build_prompt, judge_schema, make_row
from convrec.training.dataset import DemonstrationDataset
from data_prep.judge_demonstrations import demonstrations
from recipes.tiny_model import train_tokenizer
from tests.user_errors import refuses

USER = [{"role": "user", "content": "A horror film?"}]
PAIRS = [make_row(USER, ["Alien." * n, "Up."], label, "test") for n, label in ((1, "A"), (60, "B"), (2, "B"))]
RATINGS = [make_row(USER, ["Alien."], score, "") for score in range(5)]
# Like Qwen3's: the template has the switch, and writes thinking with certain line breaks.
THINKING_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% set content = message.content.split('</think>')[-1].lstrip('\\n') %}"
    "{% set thinking = message.content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{{ '<|im_start|>assistant\\n<think>\\n' + thinking + '\\n</think>\\n\\n' + content + '<|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["Alien is a horror film. Up is not."] * 40, vocab_size=500)


def dataset(kind: type, rows: list[dict[str, Any]], tokenizer: Any, tmp_path: Path, **changes: Any) -> Any:
    mode = kind.mode  # type: ignore[attr-defined]
    pq.write_table(pa.Table.from_pylist(rows, judge_schema(mode)), tmp_path / "rows.parquet")
    config = OmegaConf.create({"max_prompt_length": 4096, "seed": 1} | changes)
    return kind(str(tmp_path / "rows.parquet"), tokenizer, config)


def test_rows_have_the_form_of_rollout_and_reward(tokenizer: Any, tmp_path: Path) -> None:
    pairs = dataset(PairwiseDataset, PAIRS, tokenizer, tmp_path)
    item = pairs[1]
    assert item["raw_prompt"] == build_prompt(PAIRS[1], "pairwise")
    truth = item["reward_model"]["ground_truth"]
    assert truth == {"preference": "B"}
    assert item["data_source"] == "test"
    assert judge_pairwise.compute_score("test", "<better>B</better>", truth)["score"] == 1
    ratings = dataset(PointwiseDataset, RATINGS, tokenizer, tmp_path)
    truths = [ratings[n]["reward_model"]["ground_truth"] for n in range(5)]
    assert [judge_pointwise.parse_score(truth) for truth in truths] == [0, 1, 2, 3, 4]
    assert ratings[0]["data_source"] == "judge"


def test_template_that_opens_thinking_hides_unfinished_thinking(tokenizer: Any, tmp_path: Path) -> None:
    """The reward gets this with each answer, since an answer cut off while thinking has no think tag."""
    cut_off = "So <better>A</better>, or"
    plain, scores = tokenizer.chat_template, []
    try:
        for opened in ("", "<think>\\n"):
            end = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n" + opened + "' }}{% endif %}"
            tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}" + end
            item = dataset(PairwiseDataset, PAIRS[:1], tokenizer, tmp_path)[0]
            truth, extra = item["reward_model"]["ground_truth"], item["extra_info"]
            scores.append(judge_pairwise.compute_score("test", cut_off, truth, extra)["score"])
    finally:
        tokenizer.chat_template = plain
    assert scores == [1.0, 0.0]


def test_prompts_too_long_are_dropped_and_counted(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longest = len(encode(tokenizer, render_prompt(tokenizer, build_prompt(PAIRS[2], "pairwise"))))
    data = dataset(PairwiseDataset, PAIRS, tokenizer, tmp_path, max_prompt_length=longest)
    assert [row["output"] for row in data.dataframe] == [PAIRS[0]["output"], PAIRS[2]["output"]]
    assert f"dropped 1 of 3 prompts over MAX_PROMPT_LENGTH={longest}" in capsys.readouterr().out
    with refuses("judges.prompts-too-long", "rows.parquet", "MAX_PROMPT_LENGTH=8"):
        dataset(PairwiseDataset, PAIRS, tokenizer, tmp_path, max_prompt_length=8)


def test_files_with_different_criteria_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    for path, task in zip(files, ("Rate it.", "Rate how polite it is."), strict=True):
        schema = judge_schema("pointwise", Criteria(task, ("Be fair.",)))
        pq.write_table(pa.Table.from_pylist(RATINGS, schema), path)
    with refuses("judges.mixed-criteria", *files):
        PointwiseDataset(files, tokenizer, OmegaConf.create({"max_prompt_length": 4096, "seed": 1}))


def test_max_samples_draws_rows_with_the_seed(tokenizer: Any, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RATINGS, judge_schema("pointwise")), tmp_path / "rows.parquet")
    config = OmegaConf.create({"max_prompt_length": 4096, "seed": 1})
    first = PointwiseDataset(str(tmp_path / "rows.parquet"), tokenizer, config, max_samples=2)
    second = PointwiseDataset(str(tmp_path / "rows.parquet"), tokenizer, config, max_samples=2)
    assert len(first) == 2
    assert first.dataframe == second.dataframe


@pytest.mark.parametrize("template", [None, THINKING_TEMPLATE])
def test_sft_masks_the_rollout_prompt_and_trains_on_whole_answer(
    template: str | None, tokenizer: Any, tmp_path: Path
) -> None:
    pq.write_table(
        pa.Table.from_pylist(demonstrations([{**PAIRS[0], "reason": "why"}], "pairwise"), DEMONSTRATION_SCHEMA),
        tmp_path / "sft.parquet",
    )
    plain = tokenizer.chat_template
    try:
        tokenizer.chat_template = template or plain
        data = DemonstrationDataset(str(tmp_path / "sft.parquet"), tokenizer, OmegaConf.create({"max_length": 4096}))
        item = data[0]
        prompt = render_prompt(tokenizer, build_prompt(PAIRS[0], "pairwise"), enable_thinking=True)
    finally:
        tokenizer.chat_template = plain
    ids, mask = item["input_ids"], item["loss_mask"].bool()
    assert tokenizer.decode(ids[~mask]) == prompt
    assert tokenizer.decode(ids[mask]) == "<think>\nwhy\n</think>\n\n<better>A</better><|im_end|>"


def test_demonstrations_too_long_are_dropped_not_cut(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(
        pa.Table.from_pylist(demonstrations(PAIRS, "pairwise"), DEMONSTRATION_SCHEMA), tmp_path / "sft.parquet"
    )
    whole = DemonstrationDataset(str(tmp_path / "sft.parquet"), tokenizer, OmegaConf.create({"max_length": 4096}))
    lengths = [len(whole[n]["input_ids"]) for n in range(3)]
    config = OmegaConf.create({"max_length": max(lengths[0], lengths[2])})
    data = DemonstrationDataset(str(tmp_path / "sft.parquet"), tokenizer, config)
    assert [len(data[n]["input_ids"]) for n in range(len(data))] == [lengths[0], lengths[2]]
    assert "1 of 3 demonstrations over MAX_LENGTH" in capsys.readouterr().out
    with refuses("training.demonstrations-too-long", "MAX_LENGTH=20"):
        DemonstrationDataset(str(tmp_path / "sft.parquet"), tokenizer, OmegaConf.create({"max_length": 20}))

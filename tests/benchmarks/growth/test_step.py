"""What the steps of the growth benchmark train on: prompts of a length, catalogs and tables of a size."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.growth.step import CONTEXT_TOKENS, fill_prompt, prepare_prompts, prepare_rows, prepare_titles
from convrec.data.chat import encode, render_prompt
from convrec.data.schema import RL_SCHEMA, format_prompt
from convrec.data.validation import validate_rl_table
from convrec.titles.catalog import load_catalog

TEXT = "USER: A film like Heat please.\nSYSTEM: Toy Story?\nUSER: No.\n"
TITLES = [("Heat", 1995), ("Up", 2009)]


def make_row(number: int) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": format_prompt(TEXT, 2)}],
        "seen_titles": ["Heat"],
        "groundtruth_with_release_year": [["Up", "2009"]],
        "sample_id": f"a{number}_t2",
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, unread_model: Path) -> Path:
    """A folder of files with a demo: three rows, two titles, a model."""
    folder = tmp_path_factory.mktemp("files")
    data = folder / "demo" / "data"
    data.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([make_row(number) for number in range(3)], RL_SCHEMA), data / "train.parquet")
    titles = {"title": [title for title, _ in TITLES], "year": pa.array([year for _, year in TITLES], pa.int32())}
    pq.write_table(pa.table(titles | {"mentions": [1, 2]}), data / "catalog.parquet")
    (folder / "demo" / "sft").symlink_to(unread_model)
    return folder


@pytest.mark.parametrize("more", [-10, 0, 300])
def test_a_prompt_is_cut_or_repeated_to_a_length(line_tokenizer: Any, more: int) -> None:
    prompt = make_row(0)["prompt"]

    def count_tokens(messages: list[dict[str, str]]) -> int:
        return len(encode(line_tokenizer, render_prompt(line_tokenizer, messages)))

    num_tokens = count_tokens(prompt) + more
    (filled,) = fill_prompt(prompt, line_tokenizer, num_tokens)
    most_left_out = len(encode(line_tokenizer, "SYSTEM: please.\n"))  # a speaker with one word
    assert num_tokens - most_left_out <= count_tokens([filled]) <= num_tokens
    assert filled["content"].startswith(format_prompt("", 2))
    assert filled["content"].endswith("SYSTEM: Toy Story?\nUSER: No.\n")


def test_rows_with_long_prompts_can_train(files: Path) -> None:
    prepare_prompts(700, files)
    assert not validate_rl_table(files / "prompts-700.parquet").warnings
    rows = pq.read_table(files / "prompts-700.parquet").to_pylist()
    assert [row["sample_id"] for row in rows] == ["a0_t2", "a1_t2", "a2_t2"]
    assert all(row["prompt"][0]["content"].count("Toy Story") > 1 for row in rows)


def test_the_model_has_room_for_the_longest_prompt(files: Path, unread_model: Path) -> None:
    prepare_prompts(700, files)
    config = json.loads((files / "long-model" / "config.json").read_text())
    assert config.pop("max_position_embeddings") == CONTEXT_TOKENS > 2048
    original = json.loads((unread_model / "config.json").read_text())
    original.pop("max_position_embeddings")
    assert config == original


def test_a_catalog_is_filled_up_with_generated_titles(files: Path) -> None:
    prepare_titles(50, files)
    catalog = load_catalog(files / "titles-50.parquet")
    assert len(catalog) == 50
    assert list(zip(catalog.titles, catalog.years, strict=True))[:2] == TITLES


def test_rows_are_repeated_under_names_of_their_own(files: Path) -> None:
    prepare_rows(7, files)
    assert not validate_rl_table(files / "demo-rows-7.parquet").warnings
    rows = pq.read_table(files / "demo-rows-7.parquet").to_pylist()
    assert len({row["sample_id"] for row in rows}) == 7
    assert [row["prompt"] for row in rows] == [make_row(0)["prompt"]] * 7

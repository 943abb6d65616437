"""The template arguments that a run fixes in its config, and the models that it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from convrec.base.errors import UserError
from convrec.settings.run import Run
from recipes.launch.settings import compose, save_config
from recipes.preflight import pretrained
from tests.conftest import mark_complete

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
BEGINS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
MODE = "<|im_start|>system\n{{ '/no_think' if enable_thinking is false else '/think' }}<|im_end|>\n" + TURNS + BEGINS
DATED = "{% set day = date_string or strftime_now('%d %b %Y') %}Today: {{ day }}\n" + TURNS + BEGINS
CLOCK = "Today: {{ strftime_now('%d %b %Y') }}\n" + TURNS + BEGINS
FIXED = "26 Jul 2024"


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "pretrained")


@pytest.fixture
def good_sft(sample: Path) -> dict[str, str]:
    return {"TRAIN_FILE": str(sample / "sft_train.parquet"), "VAL_FILE": str(sample / "sft_validation.parquet")}


@pytest.fixture
def prepared(good: dict[str, str], set_variables: Any, folder: Path) -> Callable[..., tuple[DictConfig, list[str]]]:
    def prepare(*overrides: str, recipe: str = "rank_grpo", **named: Any) -> tuple[DictConfig, list[str]]:
        set_variables(good | {"MODEL_PATH": str(folder)} | named.pop("variables", {}))
        run = compose(recipe, list(overrides))
        return run.verl_config, pretrained.prepare(run, **named)

    return prepare


def write_template(folder: Path, text: str) -> None:
    (folder / "chat_template.jinja").write_text(text)


def change_json(folder: Path, name: str, **settings: Any) -> None:
    file = folder / name
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({key: value for key, value in (before | settings).items() if value is not None}))


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        (TURNS + BEGINS, {}, []),
        (MODE, {"enable_thinking": False}, ["thinking is turned off for lists"]),
        (DATED, {"date_string": FIXED}, [f"it is {FIXED} (data.apply_chat_template_kwargs.date_string)"]),
        (CLOCK, {}, [f"it is {FIXED} (custom_chat_template)"]),
    ],
)
def test_a_run_keeps_the_arguments_of_its_template(
    prepared: Callable[..., tuple[DictConfig, list[str]]],
    folder: Path,
    recipe: str,
    text: str,
    expected: dict[str, Any],
    notes: list[str],
) -> None:
    write_template(folder, text)
    config, lines = prepared(recipe=recipe)
    assert config.data.apply_chat_template_kwargs == expected
    assert len(lines) == len(notes)
    assert all(note in line for note, line in zip(notes, lines, strict=True))
    template = Run.from_config(config).model_section.custom_chat_template
    assert (template or "").endswith(text if text == CLOCK else "")
    assert bool(template) == (text == CLOCK)


def test_sft_learns_a_list_from_its_first_item_on(
    prepared: Callable[..., tuple[DictConfig, list[str]]], folder: Path, good_sft: dict[str, str]
) -> None:
    """The template writes an empty thought before each answer, as Qwen3's does."""
    from transformers import AutoTokenizer

    from convrec.training.dataset import DemonstrationDataset

    write_template(folder, THINKS)
    config, _ = prepared(recipe="sft", variables=good_sft)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    data = DemonstrationDataset(config.data.train_files, tokenizer, config.data)
    item, row = data[0], data.table.slice(0, 1).to_pylist()[0]
    is_learned = item["loss_mask"].bool()
    assert tokenizer.decode(item["input_ids"][is_learned]) == row["completion"][0]["content"] + "<|im_end|>"
    assert tokenizer.decode(item["input_ids"][~is_learned]).endswith("assistant\n<think>\n\n</think>\n\n")


def test_a_judge_thinks(prepared: Callable[..., tuple[DictConfig, list[str]]], folder: Path) -> None:
    write_template(folder, MODE)
    config, lines = prepared(recipe="judge_pointwise", lists=False)
    assert config.data.apply_chat_template_kwargs == {"enable_thinking": True}
    assert lines == []


def test_a_run_takes_over_the_template_arguments_of_its_model(
    prepared: Callable[..., tuple[DictConfig, list[str]]], folder: Path, tmp_path: Path
) -> None:
    write_template(folder, DATED)
    first, _ = prepared("+data.apply_chat_template_kwargs.date_string='1 May 2020'", recipe="sft")
    run = tmp_path / "first"
    mark_complete(run, 3)
    save_config(first, run)
    saved = shutil.copytree(folder, run / "global_step_3" / "huggingface")
    second, lines = prepared(variables={"MODEL_PATH": str(saved)})
    assert second.data.apply_chat_template_kwargs == {"date_string": "1 May 2020"}
    assert lines == []


def test_config_json_gives_the_stops_without_a_generation_config(
    prepared: Callable[..., tuple[DictConfig, list[str]]], folder: Path
) -> None:
    (folder / "generation_config.json").unlink()
    change_json(folder, "tokenizer_config.json", eos_token="<|endoftext|>")
    prepared()


@pytest.mark.parametrize("recipe", ["rank_grpo", "sft"])
@pytest.mark.parametrize(
    ("tokenizer_eos", "model_eos", "message"),
    [
        # a base model: the template is ChatML's, and the end of a text ends it
        (
            "<|endoftext|>",
            "<|endoftext|>",
            r"ends an assistant's turn with '<\|im_end\|>' .*\"eos_token_id\": \[\d+, \d+\]",
        ),
        # as transformers reads SmolLM2's GGUF
        ("<|im_start|>", "<|endoftext|>", r"ends an assistant's turn with '<\|im_end\|>' "),
        ("<|im_end|>", 5, r"stops at token 5, .* which is not a special token"),
        ("<|im_end|>", 4000, "stops at token 4000 .* which its tokenizer does not have"),
    ],
)
def test_a_model_that_cannot_stop_is_refused(
    prepared: Callable[..., tuple[DictConfig, list[str]]],
    folder: Path,
    recipe: str,
    tokenizer_eos: str,
    model_eos: str | int,
    message: str,
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    stop = tokenizer.convert_tokens_to_ids(model_eos) if isinstance(model_eos, str) else model_eos
    change_json(folder, "tokenizer_config.json", eos_token=tokenizer_eos)
    change_json(folder, "generation_config.json", eos_token_id=[stop])
    with pytest.raises(UserError, match=message) as error:
        prepared(recipe=recipe)
    assert "\n" not in str(error.value)


def test_a_template_that_ends_no_turn_is_refused(
    prepared: Callable[..., tuple[DictConfig, list[str]]], folder: Path
) -> None:
    write_template(folder, "{% for m in messages %}{{ m.content }}\n{% endfor %}")
    with pytest.raises(UserError, match="writes nothing after an assistant's turn"):
        prepared()

"""Chat templates that think, write the date or end a turn with another token, with a tiny model's tokenizer."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from convrec.data import template
from convrec.data.chat import render_prompt
from convrec.data.tokenizer import load_tokenizer
from recipes.tiny_model import make_tiny_model
from tests.user_errors import refuses

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
BEGINS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = TURNS + BEGINS

NO_THOUGHT = "<think>\n\n</think>\n\n"
# As in Qwen3's: an empty thought before the last answer, or at the end of the prompt if thinking is off.
THINKS = (
    "{% set off = enable_thinking is defined and enable_thinking is false %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}" + NO_THOUGHT.replace("\n", "{{ '\\n' }}") + "{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if off %}" + NO_THOUGHT.replace("\n", "{{ '\\n' }}") + "{% endif %}{% endif %}"
)
# The same, but with thinking off only the prompt has the empty thought.
THINKS_IN_PROMPT = THINKS.replace("{% if m.role == 'assistant' %}", "{% if m.role == 'assistant' and not off %}")
# As in SmolLM3's: a mode in the system's turn, which no answer shows.
MODE = "<|im_start|>system\n{{ '/no_think' if enable_thinking is false else '/think' }}<|im_end|>\n" + PLAIN
# As in Granite's: another name for the argument.
OTHER_NAME = (
    "{% if thinking is not defined or thinking %}<|im_start|>system\nThink first.<|im_end|>\n{% endif %}" + PLAIN
)
# As in DeepSeek-R1's distilled models': every answer starts with a thought, and nothing turns that off.
ALWAYS_THINKS = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
TAGS_ALWAYS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<final>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}" + BEGINS
)
# As in Llama 3.2's: the date is an argument.
DATED = (
    '{% if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}'
    "<|im_start|>system\nToday Date: {{ date_string }}<|im_end|>\n" + PLAIN
)
# As in Granite's and SmolLM3's: the clock, without an argument to replace it; another format if tools are named.
CLOCK = (
    "<|im_start|>system\n{% set today = strftime_now('%B %d, %Y') %}Today's Date: {{ today }}."
    "{% if tools %}{{ strftime_now('%Y') }}{% endif %}<|im_end|>\n" + PLAIN
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    return make_tiny_model(tmp_path_factory.mktemp("model") / "m", ["Heat (1995)\n" * 40], vocab_size=400, **sizes)


@pytest.fixture
def load(folder: Path) -> Callable[[str], Any]:
    return lambda text: load_tokenizer(str(folder), chat_template=text)[0]


@pytest.fixture
def another_day(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set transformers' clock to a year."""

    def set_year(year: int) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return datetime(year, 3, 1)

        monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)

    return set_year


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLAIN, {}),
        (THINKS, {"enable_thinking": False}),
        (THINKS_IN_PROMPT, {"enable_thinking": False}),
        (MODE, {"enable_thinking": False}),
        (OTHER_NAME, {"thinking": False}),
    ],
)
def test_thinking_is_turned_off_if_a_template_has_it(
    load: Callable[[str], Any], text: str, expected: dict[str, bool]
) -> None:
    tokenizer = load(text)
    arguments = template.build_list_arguments(tokenizer, {})
    assert arguments == expected
    template.check_answer("model", tokenizer, arguments)
    assert template.build_list_arguments(tokenizer, arguments) == arguments


def test_a_users_own_arguments_stay(load: Callable[[str], Any]) -> None:
    arguments = {"enable_thinking": True, "date_string": "1 May 2020"}
    assert template.build_list_arguments(load(THINKS), arguments) == arguments
    assert template.build_list_arguments(load(DATED), arguments) == arguments


@pytest.mark.parametrize(
    ("text", "arguments", "code", "values"),
    [
        (THINKS, {"enable_thinking": True}, "template.text-before-answer", ["<think>", "enable_thinking"]),
        (ALWAYS_THINKS, {}, "template.starts-thinking", ["<think>\\n'", "custom_chat_template"]),
        (TAGS_ALWAYS, {}, "template.text-before-answer", ["'<final>'", "custom_chat_template"]),
    ],
)
def test_template_that_alters_the_start_of_a_list_is_refused(
    load: Callable[[str], Any], text: str, arguments: dict[str, bool], code: str, values: list[str]
) -> None:
    tokenizer = load(text)
    with refuses(code, "model: ", *values) as error:
        template.check_answer("model", tokenizer, template.build_list_arguments(tokenizer, arguments))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected", "date"),
    [(DATED, {"date_string": "26 Jul 2024"}, "26 Jul 2024"), (CLOCK, {}, "July 26, 2024"), (PLAIN, {}, "")],
)
def test_a_prompt_is_the_same_on_another_day(
    load: Callable[[str], Any], another_day: Callable[[int], None], text: str, expected: dict[str, str], date: str
) -> None:
    prompts = set()
    for year in (2030, 2031):
        another_day(year)
        tokenizer = load(text)
        arguments = template.build_list_arguments(tokenizer, {})
        assert arguments == expected
        prompts.add(render_prompt(tokenizer, template.QUESTION, **arguments))
    (prompt,) = prompts
    assert date in prompt
    assert "203" not in prompt


def test_a_frozen_clock_has_every_format_and_is_saved(
    load: Callable[[str], Any], tmp_path: Path, another_day: Callable[[int], None]
) -> None:
    another_day(2030)
    tokenizer = load(CLOCK)
    assert template.is_frozen(tokenizer)
    assert "2024.2024" in render_prompt(tokenizer, template.QUESTION, tools=[{"name": "search"}])
    tokenizer.save_pretrained(tmp_path)
    from transformers import AutoTokenizer

    again = AutoTokenizer.from_pretrained(tmp_path)
    assert template.is_frozen(again)
    before = again.chat_template
    template.freeze_date(again)
    assert again.chat_template == before


def test_inference_uses_the_arguments_of_the_run(load: Callable[[str], Any]) -> None:
    thinks = load(THINKS)
    dated = load(DATED)
    assert template.build_inference_arguments(thinks, None) == {"enable_thinking": False}
    assert template.build_inference_arguments(thinks, {}) == {}  # the model has learned the tags in its run
    assert template.build_inference_arguments(dated, {"date_string": "1 May 2020"}) == {"date_string": "1 May 2020"}


@pytest.mark.parametrize(
    ("start", "whole", "expected"),
    [
        ("user\nassistant\n", "user\nassistant\nHeat<end>", "Heat<end>"),
        ("[INST] user [/INST]", "[INST] user [/INST] Heat</s>", "Heat</s>"),
        ("assistant\n" + NO_THOUGHT, "assistant\nHeat<end>", "Heat<end>"),
        ("assistant\n" + NO_THOUGHT, "assistant\n<better>A</better><end>", "<better>A</better><end>"),
        ("assistant\n</think>", "assistant\nHeat<end>", "Heat<end>"),
        ("assistant\n<think>\n", "assistant\nHeat<end>", None),
        ("assistant\n<think>\nHm.\n</think>\n", "assistant\nHeat<end>", None),
        ("<model>\n", "<assistant>\nHeat<end>", None),
    ],
)
def test_an_answer_follows_its_prompt_or_an_empty_thought(start: str, whole: str, expected: str | None) -> None:
    assert template.extract_answer(start, whole) == expected


@pytest.mark.parametrize(("text", "end"), [(PLAIN, "<|im_end|>"), (THINKS, "<|im_end|>"), ("{{ messages }}", None)])
def test_the_token_after_an_answer_is_found(load: Callable[[str], Any], text: str, end: str | None) -> None:
    tokenizer = load(PLAIN)
    tokenizer.chat_template = text
    if end is None:
        tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    end_id = template.find_turn_end_id(tokenizer, {})
    assert (None if end_id is None else tokenizer.convert_ids_to_tokens(end_id)) == end

"""What a chat template does with an answer that is a list, and with the date: found by rendering, before a run starts.

Three templates go wrong in silence. One that thinks writes `<think>` tags in front of an answer, which SFT would learn
as the first lines of a list. One that writes today's date makes other prompts tomorrow. One that ends a turn with a
token at which nothing stops lets the model write on until its lists are cut.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from convrec.base.errors import UserError
from convrec.data.chat import Message, encode, render_prompt

# The date that every prompt has where a template asks for one: Llama 3.2's own default. One date for all runs makes
# their prompts, and the answers that are stored for them, comparable.
FIXED_DATE = datetime(2024, 7, 26)
OTHER_DATE = datetime(2001, 2, 3)
DATE_ARGUMENTS = ("date_string", "today", "current_date", "date")
THINKING_ARGUMENTS = ("enable_thinking", "thinking")
EMPTY_THOUGHT = re.compile(r"(?:<[^<>/]+>\s*)?</[^<>/]+>\s*\Z")  # at the end of a prompt
MACRO = "{%- macro strftime_now(format) -%}"
QUESTION: list[Message] = [{"role": "user", "content": "Which films are like Heat (1995)?"}]
ANSWER = "Ran (1985)\nThief (1981)"
CONVERSATION: list[Message] = [*QUESTION, {"role": "assistant", "content": ANSWER}]


def freeze_date(tokenizer: Any) -> None:
    """Have a template that calls the clock write FIXED_DATE, whatever day it is.

    A template that takes the date as an argument is left alone: `list_arguments` gives it one. Calling it again does
    nothing.
    """
    if _writes_date(tokenizer, {}) and not _date_argument(tokenizer, {}):
        tokenizer.chat_template = _with_fixed_clock(tokenizer, tokenizer.chat_template)


def list_arguments(tokenizer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the chat template for lists: `given`, no thinking, and a date that does not change.

    Args:
        given: the user's own arguments, which are kept.
    """
    return _without_thinking(tokenizer, date_arguments(tokenizer, given))


def date_arguments(tokenizer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given` with a date that does not change, where the template takes one as an argument."""
    return {**given, **_date_argument(tokenizer, given)} if _writes_date(tokenizer, given) else dict(given)


def inference_arguments(tokenizer: Any, trained_with: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments with which a model is asked.

    Args:
        trained_with: those of its run; None for a model that no run of ours has trained, which is asked for lists.
    """
    return list_arguments(tokenizer, {}) if trained_with is None else date_arguments(tokenizer, trained_with)


def is_frozen(tokenizer: Any) -> bool:
    """Whether `freeze_date` has changed the template, in this process or before it was saved."""
    return _template_text(tokenizer).startswith(MACRO)


def answer_after(start: str, whole: str) -> str | None:
    """Return what the model writes after its prompt; None where the template does not continue the prompt.

    With thinking off, some templates end a prompt with an empty thought that they leave out of a finished turn. The
    answer follows it anyway. A space that a template writes before an answer (Mistral 7B) is left out: its tokenizer
    writes it by itself.

    Args:
        start: the prompt as it is rendered, up to where the assistant begins.
        whole: the same conversation with the assistant's turn.
    """
    if whole.startswith(start):
        return whole[len(start) :].lstrip(" ")
    thought = EMPTY_THOUGHT.search(start)
    if thought is None or not whole.startswith(start[: thought.start()]):
        return None
    return whole[thought.start() :]


def check_answer(name: str, tokenizer: Any, arguments: Mapping[str, Any]) -> None:
    """Raise UserError for a template under which a list would not begin with its first item.

    Args:
        name: how messages call the model.
        arguments: of the template, as the run passes them.
    """
    start = render_prompt(tokenizer, QUESTION, **arguments)
    written = answer_after(start, _render(tokenizer, CONVERSATION, arguments))
    fix = (
        "take an instruct model that does not think, or a template of your own that can be told not to "
        "(custom_chat_template of the model's section)"
    )
    if turned_on := [argument for argument in THINKING_ARGUMENTS if arguments.get(argument)]:
        fix = f"leave out data.apply_chat_template_kwargs.{turned_on[0]}"
    if written is None:
        raise UserError(
            f"{name}: its chat template opens an answer with {start[-20:]!r} and shows a finished one without: the "
            f"model thinks before every list, and ranks would be read from its thoughts; {fix}"
        )
    if not written.lstrip().startswith(ANSWER):
        before = written.partition(ANSWER)[0]
        raise UserError(
            f"{name}: its chat template writes {before!r} in front of an answer, which would be the first ranks of "
            f"every list; {fix}"
        )


def turn_end_id(tokenizer: Any, arguments: Mapping[str, Any]) -> int | None:
    """Return the token that the template writes after an assistant's turn; None where it writes nothing."""
    after = _render(tokenizer, CONVERSATION, arguments).rpartition(ANSWER)[2].strip()
    ids = encode(tokenizer, after) if after else []
    return ids[0] if ids else None


def _render(tokenizer: Any, messages: list[Message], arguments: Mapping[str, Any]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **arguments)


def _without_thinking(tokenizer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn thinking off by the argument that the template has for it, if it has one and the user has not set it."""
    for argument in THINKING_ARGUMENTS:
        if argument in given or not _names(tokenizer, argument):
            continue
        without = {**given, argument: False}
        if _both_renderings(tokenizer, without) != _both_renderings(tokenizer, given):
            return without
    return dict(given)


def _both_renderings(tokenizer: Any, arguments: Mapping[str, Any]) -> tuple[str, str]:
    return render_prompt(tokenizer, QUESTION, **arguments), _render(tokenizer, CONVERSATION, arguments)


def _names(tokenizer: Any, argument: str) -> bool:
    return bool(re.search(rf"\b{argument}\b", _template_text(tokenizer)))


def _template_text(tokenizer: Any) -> str:
    """The template's source; "" for a tokenizer whose template is code, as mistral-common's."""
    template = getattr(tokenizer, "chat_template", None)
    return template if isinstance(template, str) else ""


# ---- the date


def _clock(date: datetime, formats: set[str]) -> Any:
    """What a template calls for the time, and which formats it asked for."""

    def strftime_now(format: str) -> str:
        formats.add(format)
        return date.strftime(format)

    return strftime_now


def _render_at(tokenizer: Any, date: datetime, given: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A prompt as it would be on that day, and the formats in which the template asked for it."""
    formats: set[str] = set()
    text = render_prompt(tokenizer, QUESTION, **{"strftime_now": _clock(date, formats), **given})
    return text, sorted(formats)


def _writes_date(tokenizer: Any, given: Mapping[str, Any]) -> bool:
    if "strftime_now" not in _template_text(tokenizer):
        return False
    return _render_at(tokenizer, FIXED_DATE, given)[0] != _render_at(tokenizer, OTHER_DATE, given)[0]


def _date_argument(tokenizer: Any, given: Mapping[str, Any]) -> dict[str, str]:
    """The argument with which the template writes the same date every day; {} where it takes none."""
    _, formats = _render_at(tokenizer, FIXED_DATE, given)
    for argument in DATE_ARGUMENTS:
        fixed = {argument: FIXED_DATE.strftime(formats[0])}
        if _names(tokenizer, argument) and not _writes_date(tokenizer, {**given, **fixed}):
            return fixed
    return {}


def _with_fixed_clock(tokenizer: Any, template: str) -> str:
    """The template, preceded by a macro that takes the clock's name."""
    _, formats = _render_at(tokenizer, FIXED_DATE, {})
    elsewhere = re.findall(
        r"""strftime_now\(\s*["']([^"']*)["']""", template
    )  # in branches that QUESTION does not take
    known = {format: FIXED_DATE.strftime(format) for format in sorted({*formats, *elsewhere})}
    return f"{MACRO}{{{{- {known!r}[format] -}}}}{{%- endmacro -%}}{template}"

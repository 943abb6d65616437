"""Find out, by rendering it before a run starts, how a chat template handles an answer and the date.

Three kinds of templates fail silently. A thinking template writes `<think>` tags before an answer; SFT would learn them
as the first lines of a list. A template that writes the current date changes every prompt daily. A template whose
end-of-turn token is not a stop token lets the model generate until its lists are truncated.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from convrec.base.errors import UserError
from convrec.data.chat import Message, encode, render_prompt

# The date in every prompt whose template writes one: Llama 3.2's own default. The same date in all runs keeps their
# prompts, and the answers stored for them, comparable.
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
    """Make a template that reads the clock write FIXED_DATE every day.

    A template that takes the date as an argument is not changed: `build_list_arguments` passes one. Idempotent.

    Args:
        tokenizer: the model's; its chat template is changed in place.
    """
    if _writes_date(tokenizer, {}) and not _find_date_argument(tokenizer, {}):
        tokenizer.chat_template = _fix_clock(tokenizer, tokenizer.chat_template)


def build_list_arguments(tokenizer: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat template's arguments for lists: the user's, thinking turned off, and a fixed date.

    Args:
        tokenizer: the model's, with its chat template.
        arguments: the user's own, which win.
    """
    return _disable_thinking(tokenizer, build_date_arguments(tokenizer, arguments))


def build_date_arguments(tokenizer: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments plus a fixed date, if the template takes the date as an argument.

    Args:
        tokenizer: the model's, with its chat template.
        arguments: the user's own; a date among them stays.
    """
    if not _writes_date(tokenizer, arguments):
        return dict(arguments)
    return {**arguments, **_find_date_argument(tokenizer, arguments)}


def build_inference_arguments(tokenizer: Any, trained_with: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the chat template's arguments for inference.

    Args:
        tokenizer: the model's, with its chat template.
        trained_with: the arguments of the model's run; None for a model that was not trained here, which then gets
            those for lists.
    """
    return (
        build_list_arguments(tokenizer, {}) if trained_with is None else build_date_arguments(tokenizer, trained_with)
    )


def is_frozen(tokenizer: Any) -> bool:
    """Return whether `freeze_date` changed the template, in this process or before it was saved."""
    return _get_template(tokenizer).startswith(MACRO)


def extract_answer(start: str, whole: str) -> str | None:
    """Return what the model writes after its prompt.

    With thinking off, some templates end a prompt with an empty thought that they omit from a finished turn. The answer
    follows it anyway. A space that the template writes before an answer (Mistral 7B) is stripped: the tokenizer adds
    it.

    Args:
        start: the rendered prompt, up to where the assistant's turn begins.
        whole: the same conversation with the assistant's turn.

    Returns:
        The answer, with the end of its turn; None if the finished turn does not continue the prompt.
    """
    if whole.startswith(start):
        return whole[len(start) :].lstrip(" ")
    thought = EMPTY_THOUGHT.search(start)
    if thought is None or not whole.startswith(start[: thought.start()]):
        return None
    return whole[thought.start() :]


def check_answer(name: str, tokenizer: Any, arguments: Mapping[str, Any]) -> None:
    """Check that a list would begin with its first item.

    Args:
        name: what error messages call the model.
        tokenizer: the model's, with its chat template.
        arguments: the template's, as the run passes them.

    Raises:
        UserError: the template writes a thought or other text before an answer.
    """
    start = render_prompt(tokenizer, QUESTION, **arguments)
    answer = extract_answer(start, _render(tokenizer, CONVERSATION, arguments))
    fix = (
        "Use an instruct model that does not think, or your own template without thinking (custom_chat_template in "
        "the model's section)"
    )
    enabled = [argument for argument in THINKING_ARGUMENTS if arguments.get(argument)]
    if enabled:
        fix = f"Remove data.apply_chat_template_kwargs.{enabled[0]}"
    if answer is None:
        raise UserError(
            "template.starts-thinking",
            f"{name}: the chat template starts an answer with {start[-20:]!r}, which a finished answer lacks: the "
            f"model thinks before every list, and ranks would be read from its thoughts. {fix}",
        )
    if not answer.lstrip().startswith(ANSWER):
        before = answer.partition(ANSWER)[0]
        raise UserError(
            "template.text-before-answer",
            f"{name}: the chat template writes {before!r} before an answer, which would count as the first ranks of "
            f"every list. {fix}",
        )


def find_turn_end_id(tokenizer: Any, arguments: Mapping[str, Any]) -> int | None:
    """Find the token with which the template ends an assistant's turn.

    Args:
        tokenizer: the model's, with its chat template.
        arguments: the template's, as the run passes them.

    Returns:
        The first token after the answer; None if the template writes nothing there.
    """
    after = _render(tokenizer, CONVERSATION, arguments).rpartition(ANSWER)[2].strip()
    ids = encode(tokenizer, after) if after else []
    return ids[0] if ids else None


def _render(tokenizer: Any, messages: list[Message], arguments: Mapping[str, Any]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **arguments)


def _disable_thinking(tokenizer: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Add the template's argument that turns thinking off, if it has one that the user has not set."""
    for argument in THINKING_ARGUMENTS:
        if argument in arguments or not _names_argument(tokenizer, argument):
            continue
        without_thinking = {**arguments, argument: False}
        if _render_both(tokenizer, without_thinking) != _render_both(tokenizer, arguments):
            return without_thinking
    return dict(arguments)


def _render_both(tokenizer: Any, arguments: Mapping[str, Any]) -> tuple[str, str]:
    return render_prompt(tokenizer, QUESTION, **arguments), _render(tokenizer, CONVERSATION, arguments)


def _names_argument(tokenizer: Any, argument: str) -> bool:
    return bool(re.search(rf"\b{argument}\b", _get_template(tokenizer)))


def _get_template(tokenizer: Any) -> str:
    """Return the template's source, "" for a tokenizer whose template is code, such as mistral-common's."""
    template = getattr(tokenizer, "chat_template", None)
    return template if isinstance(template, str) else ""


# ---- the date


def _make_clock(date: datetime, formats: set[str]) -> Any:
    """Return the function that a template calls for the date; it adds the template's formats to `formats`."""

    def strftime_now(format: str) -> str:
        formats.add(format)
        return date.strftime(format)

    return strftime_now


def _render_at(tokenizer: Any, date: datetime, arguments: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return a prompt as rendered on that day, and the formats in which the template writes the date."""
    formats: set[str] = set()
    text = render_prompt(tokenizer, QUESTION, **{"strftime_now": _make_clock(date, formats), **arguments})
    return text, sorted(formats)


def _writes_date(tokenizer: Any, arguments: Mapping[str, Any]) -> bool:
    if "strftime_now" not in _get_template(tokenizer):
        return False
    return _render_at(tokenizer, FIXED_DATE, arguments)[0] != _render_at(tokenizer, OTHER_DATE, arguments)[0]


def _find_date_argument(tokenizer: Any, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the argument that makes the template write the same date every day, {} if it takes none."""
    _, formats = _render_at(tokenizer, FIXED_DATE, arguments)
    for argument in DATE_ARGUMENTS:
        fixed_date = {argument: FIXED_DATE.strftime(formats[0])}
        if _names_argument(tokenizer, argument) and not _writes_date(tokenizer, {**arguments, **fixed_date}):
            return fixed_date
    return {}


def _fix_clock(tokenizer: Any, template: str) -> str:
    """Prepend a macro that replaces the clock's function."""
    _, formats = _render_at(tokenizer, FIXED_DATE, {})
    # QUESTION does not reach every branch of a template.
    formats_in_text = re.findall(r"""strftime_now\(\s*["']([^"']*)["']""", template)
    dates = {format: FIXED_DATE.strftime(format) for format in sorted({*formats, *formats_in_text})}
    return f"{MACRO}{{{{- {dates!r}[format] -}}}}{{%- endmacro -%}}{template}"

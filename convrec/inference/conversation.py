"""Converts a request's conversation to the text of a prompt. Messages are data: nothing in them can begin a turn."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from convrec.base.errors import UserError
from convrec.data.schema import SPEAKERS, WRITTEN_SPEAKERS, parse_turns

Conversation: TypeAlias = str | Sequence[Mapping[str, Any]]
_TURN_INSIDE = re.compile(rf"(?<=\n)(?={WRITTEN_SPEAKERS[0].pattern.removeprefix('^')})")


def conversation_text(conversation: Conversation) -> str:
    """Convert a conversation to the text of a prompt.

    Args:
        conversation: messages {"role": "user" | "assistant", "content": text}; a text with speakers (`parse_turns`);
            or a text without, which is the user's.

    Returns:
        "USER: ...\\nSYSTEM: ...\\nUSER: ...\\n". A line within a message that looks like the beginning of a turn gets
        a leading space.

    Raises:
        UserError: the conversation is empty, has another role, does not end with the user's turn, or is not text.
    """
    if isinstance(conversation, str):
        if not conversation.strip():
            raise UserError("conversation.empty", "conversation: it is empty. Send the user's message.")
        conversation = parse_turns(conversation) or [{"role": "user", "content": conversation}]
    turns = list(conversation) if isinstance(conversation, Sequence) else []
    if not turns:
        raise UserError(
            "conversation.invalid",
            'conversation: expected a text, or messages [{"role": "user", "content": "..."}, ...].',
        )
    spoken_turns = [_read_turn(turn, index) for index, turn in enumerate(turns)]
    text = "".join(f"{speaker}: {content}\n" for speaker, content in spoken_turns)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            "conversation.surrogate",
            f"conversation: half of a surrogate pair, {text[error.start]!r}, is not a character. Send valid Unicode.",
        ) from None
    if spoken_turns[-1][0] != "USER":
        raise UserError(
            "conversation.last-turn",
            "conversation: the last turn is not the user's, but a list answers the user. End with the user's turn.",
        )
    return text


def _read_turn(turn: Any, index: int) -> tuple[str, str]:
    if not isinstance(turn, Mapping) or not {"role", "content"} <= set(turn):
        raise UserError("conversation.invalid", f'conversation: turn {index} is not {{"role": ..., "content": ...}}.')
    role = turn["role"]
    content = turn["content"]
    if not isinstance(role, str) or role not in SPEAKERS:
        raise UserError(
            "conversation.role", f"conversation: turn {index} has the role {role!r:.40}. Use user or assistant."
        )
    if not isinstance(content, str) or not content.strip():
        raise UserError(
            "conversation.no-text", f"conversation: turn {index} has no text. Remove it, or send its text as content."
        )
    return SPEAKERS[role], _TURN_INSIDE.sub(" ", re.sub("\r\n?", "\n", content).strip())

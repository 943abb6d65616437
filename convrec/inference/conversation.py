"""What a user and a recommender said -> the conversation of a prompt. It is data: nothing in it begins a turn."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from convrec.base.errors import UserError
from convrec.data.schema import SPEAKERS, WRITTEN_SPEAKERS, turns_of_text

Conversation: TypeAlias = str | Sequence[Mapping[str, Any]]
_TURN_INSIDE = re.compile(rf"(?<=\n)(?={WRITTEN_SPEAKERS[0].pattern.removeprefix('^')})")


def conversation_text(conversation: Conversation) -> str:
    """ "USER: ...\\nSYSTEM: ...\\nUSER: ...\\n" of messages {"role": "user" | "assistant", "content": text}, of
    a text with speakers (`turns_of_text`), or of one without, which is the user's.

    A line within a message that begins as a turn does gets a space in front. Raises UserError, which names
    `conversation`, for an empty one, for another role, where the last turn is not the user's, and for what is no text.
    """
    if isinstance(conversation, str):
        if not conversation.strip():
            raise UserError("conversation: it is empty; give what the user said")
        conversation = turns_of_text(conversation) or [{"role": "user", "content": conversation}]
    turns = list(conversation) if isinstance(conversation, Sequence) else []
    if not turns:
        raise UserError('conversation: write a text, or messages [{"role": "user", "content": "..."}, ...]')
    read = [_turn(turn, index) for index, turn in enumerate(turns)]
    text = "".join(f"{speaker}: {content}\n" for speaker, content in read)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"conversation: half of a surrogate pair, {text[error.start]!r}; it is no text") from None
    if read[-1][0] != "USER":
        raise UserError("conversation: the last turn is not the user's, but a list answers one; end with the user's")
    return text


def _turn(turn: Any, index: int) -> tuple[str, str]:
    if not isinstance(turn, Mapping) or not {"role", "content"} <= set(turn):
        raise UserError(f'conversation: turn {index} is not {{"role": ..., "content": ...}}')
    role = turn["role"]
    content = turn["content"]
    if not isinstance(role, str) or role not in SPEAKERS:
        raise UserError(f"conversation: turn {index} has the role {role!r:.40}; write user or assistant")
    if not isinstance(content, str) or not content.strip():
        raise UserError(f"conversation: turn {index} has no text; leave it out, or write its content as a text")
    return SPEAKERS[role], _TURN_INSIDE.sub(" ", re.sub("\r\n?", "\n", content).strip())

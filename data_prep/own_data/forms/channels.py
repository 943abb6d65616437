"""Split the messages of a channel or group into conversations of one asker each with the recommender.

    Ann: something like Heat?        asks
    Cem: and like Alien?             asks
    Bob: (to Cem) The Thing          answers Cem, by a reply or a mention
    Bob: Collateral                  ambiguous: left out, as are the questions it may answer

An answer that neither replies to a message nor mentions anybody belongs to the only asker who is waiting. A
conversation ends after PAUSE_SECONDS of silence; an answer to its last question may come up to ANSWER_SECONDS later.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from data_prep.own_data.forms.base import TOOL, Dialog, LocatedRecord, make_turn

PAUSE_SECONDS = 6 * 3600
ANSWER_SECONDS = 48 * 3600
AMBIGUOUS = "messages of a channel, because an answer could be to several people"
NOBODY_RECOMMENDS = "conversations in which nobody recommends (name the recommender with --recommender NAME)"


@dataclass(frozen=True)
class Message:
    """A message of a channel.

    Attributes:
        located: its record.
        speaker: id or name of its author.
        role: user, assistant or TOOL.
        text: its text.
        time: seconds since 1970; None: the same as the message before.
        name: its id, by which replies refer to it.
        answers: id of the message that it replies to.
        mentions: ids of the speakers that it mentions.
    """

    located: LocatedRecord
    speaker: str
    role: str
    text: str
    time: float | None = None
    name: object = None
    answers: object = None
    mentions: frozenset[str] = frozenset()


@dataclass
class _Talk:
    """A conversation that may continue."""

    asker: str
    messages: list[Message] = field(default_factory=list)
    last_time: float = 0.0

    def add(self, message: Message, now: float) -> None:
        self.messages.append(message)
        self.last_time = now

    @property
    def is_waiting(self) -> bool:
        """Whether the asker spoke last."""
        return self.messages[-1].role == "user"


class ChannelSplitter:
    """Split a channel: add its messages in order, then read `talks`."""

    def __init__(self, left_out: Counter[str]) -> None:
        self.talks: list[_Talk] = []
        self._left_out = left_out
        self._open: dict[str, _Talk] = {}  # by asker
        self._greeting: list[Message] = []  # messages of the recommender before anybody asks
        self._talk_by_name: dict[object, _Talk] = {}
        self._last_answered: _Talk | None = None
        self._is_ambiguous = False  # whether the recommender's last message was left out
        self._now = 0.0

    def add(self, message: Message) -> None:
        now = self._now if message.time is None else message.time
        self._now = now
        if message.role == TOOL:
            self._left_out["tool calls, tool results and turns without text"] += 1
            return
        talk = self._find_question(message, now) if message.role == "user" else self._find_answered(message, now)
        if talk:
            talk.add(message, now)
            if message.name is not None:
                self._talk_by_name[message.name] = talk

    def _find_question(self, message: Message, now: float) -> _Talk:
        """Return the conversation that an asker's message belongs to; it may be a new one."""
        talk = self._open.get(message.speaker)
        answered = self._talk_by_name.get(message.answers)
        if answered and answered.asker == message.speaker:
            talk = answered
        elif talk and now - talk.last_time > PAUSE_SECONDS:
            talk = None
        if talk is None:
            talk = _Talk(message.speaker)
            self.talks.append(talk)
            for greeting in self._greeting:
                talk.add(greeting, now)
        self._greeting = []
        self._open[message.speaker] = talk
        return talk

    def _find_answered(self, message: Message, now: float) -> _Talk | None:
        """Return the conversation that the recommender's message belongs to; None if it is a greeting or ambiguous."""
        candidates = self._find_addressed(message) or self._find_waiting(now)
        if len(candidates) == 1:
            self._last_answered = candidates[0]
            self._is_ambiguous = False
            return candidates[0]
        if candidates:
            self._leave_out(candidates)
        if candidates or self._is_ambiguous:
            self._left_out[AMBIGUOUS] += 1
            return None
        if self._last_answered and now - self._last_answered.last_time <= PAUSE_SECONDS:
            return self._last_answered
        self._greeting.append(message)
        return None

    def _find_addressed(self, message: Message) -> list[_Talk]:
        """Return the conversations that a message refers to by a reply or mentions."""
        if talk := self._talk_by_name.get(message.answers):
            return [talk]
        return [talk for asker, talk in self._open.items() if asker in message.mentions]

    def _find_waiting(self, now: float) -> list[_Talk]:
        """Return the conversations whose asker is waiting: recent ones if any, otherwise older ones."""
        waiting = [talk for talk in self._open.values() if talk.is_waiting]
        recent = [talk for talk in waiting if now - talk.last_time <= PAUSE_SECONDS]
        return recent or [talk for talk in waiting if now - talk.last_time <= ANSWER_SECONDS]

    def _leave_out(self, talks: Iterable[_Talk]) -> None:
        """Remove the unanswered questions and end their conversations."""
        self._is_ambiguous = True
        self._last_answered = None
        for talk in talks:
            while talk.messages and talk.is_waiting:
                talk.messages.pop()
                self._left_out[AMBIGUOUS] += 1
            del self._open[talk.asker]


def split_channel(messages: Sequence[Message], left_out: Counter[str]) -> list[list[Message]]:
    """Split a channel's messages into conversations.

    Args:
        messages: in order of time.
        left_out: counts the messages that belong to no conversation.
    """
    splitter = ChannelSplitter(left_out)
    for message in messages:
        splitter.add(message)
    return [talk.messages for talk in splitter.talks if talk.messages]


def make_talk_reader(
    talk: Sequence[Message], left_out: Counter[str], conversation_id: object = None, time: object = None
) -> Callable[[], Dialog | None]:
    """Return a function that reads a conversation of `split_channel`.

    Args:
        talk: the messages, in order.
        left_out: counts the conversation if nobody recommends in it.
        conversation_id: its name; None if the source has none.
        time: when it began; None if the source does not say.

    Returns:
        A function of no arguments. It returns None if nobody recommends.
    """

    def read() -> Dialog | None:
        if all(message.role != "assistant" for message in talk):
            left_out[NOBODY_RECOMMENDS] += 1
            return None
        return Dialog([make_turn(message.role, message.text) for message in talk], conversation_id, time)

    return read

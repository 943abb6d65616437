"""Messages of a channel or group -> conversations of one asker each with the recommender.

    Ann: something like Heat?        asks
    Cem: and like Alien?             asks
    Bob: (to Cem) The Thing          answers Cem, by a reply or a mention
    Bob: Collateral                  could be to either: left out, and so is what it may answer

An answer that neither replies to a message nor mentions somebody is to the one asker who waits. A conversation ends
when its people are silent for PAUSE_SECONDS; an answer to its last question may come until ANSWER_SECONDS later.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from data_prep.own_data.forms.base import TOOL, Dialog, Placed, turn

PAUSE_SECONDS = 6 * 3600
ANSWER_SECONDS = 48 * 3600
UNCLEAR = "messages of a channel, where an answer could be to several people"
NOBODY_RECOMMENDS = "conversations in which nobody recommends (--recommender NAME says who does)"


@dataclass(frozen=True)
class Message:
    """A message of a channel.

    speaker: who it is from. role: user, assistant or TOOL. time: seconds since 1970, None: as the one before.
    name: by which replies name it. answers: the name of the message that it replies to. mentions: speakers.
    """

    placed: Placed
    speaker: str
    role: str
    text: str
    time: float | None = None
    name: object = None
    answers: object = None
    mentions: frozenset[str] = frozenset()


@dataclass
class _Talk:
    """A conversation that may go on."""

    asker: str
    messages: list[Message] = field(default_factory=list)
    last_time: float = 0.0

    def add(self, message: Message, now: float) -> None:
        self.messages.append(message)
        self.last_time = now

    @property
    def is_waiting(self) -> bool:
        """Whether the last to speak is the asker."""
        return self.messages[-1].role == "user"


class ChannelSplitter:
    """Takes the messages of a channel, in order, and has its conversations."""

    def __init__(self, left_out: Counter[str]) -> None:
        self.talks: list[_Talk] = []
        self._left_out = left_out
        self._open: dict[str, _Talk] = {}  # by asker
        self._greeting: list[Message] = []  # what the recommender says before anybody asks
        self._talk_by_name: dict[object, _Talk] = {}
        self._last_answered: _Talk | None = None
        self._is_unclear = False  # whether the recommender's last message was left out
        self._now = 0.0

    def add(self, message: Message) -> None:
        now = self._now if message.time is None else message.time
        self._now = now
        if message.role == TOOL:
            self._left_out["turns of tools, or without text"] += 1
            return
        talk = self._find_asked(message, now) if message.role == "user" else self._find_answered(message, now)
        if talk:
            talk.add(message, now)
            if message.name is not None:
                self._talk_by_name[message.name] = talk

    def _find_asked(self, message: Message, now: float) -> _Talk:
        """The conversation of an asker's message."""
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
        """The conversation that the recommender's message belongs to; None for one that is kept or left out."""
        candidates = self._find_addressed(message) or self._find_waiting(now)
        if len(candidates) == 1:
            self._last_answered = candidates[0]
            self._is_unclear = False
            return candidates[0]
        if candidates:
            self._leave_out(candidates)
        if candidates or self._is_unclear:
            self._left_out[UNCLEAR] += 1
            return None
        if self._last_answered and now - self._last_answered.last_time <= PAUSE_SECONDS:
            return self._last_answered
        self._greeting.append(message)
        return None

    def _find_addressed(self, message: Message) -> list[_Talk]:
        """The conversations that the message says it belongs to."""
        if talk := self._talk_by_name.get(message.answers):
            return [talk]
        return [talk for asker, talk in self._open.items() if asker in message.mentions]

    def _find_waiting(self, now: float) -> list[_Talk]:
        """The conversations whose asker waits: those of this hour, else older ones."""
        waiting = [talk for talk in self._open.values() if talk.is_waiting]
        recent = [talk for talk in waiting if now - talk.last_time <= PAUSE_SECONDS]
        return recent or [talk for talk in waiting if now - talk.last_time <= ANSWER_SECONDS]

    def _leave_out(self, talks: Iterable[_Talk]) -> None:
        """Take out the questions that wait, and end their conversations."""
        self._is_unclear = True
        self._last_answered = None
        for talk in talks:
            while talk.messages and talk.is_waiting:
                talk.messages.pop()
                self._left_out[UNCLEAR] += 1
            del self._open[talk.asker]


def split_channel(messages: Sequence[Message], left_out: Counter[str]) -> list[list[Message]]:
    """The conversations of a channel's messages.

    Args:
        messages: in order of time.
        left_out: gets the number of messages that no conversation has.
    """
    splitter = ChannelSplitter(left_out)
    for message in messages:
        splitter.add(message)
    return [talk.messages for talk in splitter.talks if talk.messages]


def read_talk(
    talk: Sequence[Message], left_out: Counter[str], conversation_id: object = None, time: object = None
) -> Callable[[], Dialog | None]:
    """What reads a conversation of `split_channel`; one in which nobody recommends is none, and is counted."""

    def read() -> Dialog | None:
        if all(message.role != "assistant" for message in talk):
            left_out[NOBODY_RECOMMENDS] += 1
            return None
        return Dialog([turn(message.role, message.text) for message in talk], conversation_id, time)

    return read

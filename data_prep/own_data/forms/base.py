"""What all forms share: a conversation as a form reads it, who speaks, and the groups of records of a conversation."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from convrec.base.shipped import read_table
from convrec.data.damage import BadRecord
from data_prep.own_data.times import parse_time

NAMES: dict[str, Any] = read_table(__file__, "names.yaml")
TOOL = "tool"  # the role of what is no turn of either: calls, their results, notices
INSTRUCTION = "system"
_SIGNS = re.compile(r"[\W_]+")
_MOST_SPEAKERS = 8  # that a message names

Record: TypeAlias = Mapping[str, Any]


class Placed(NamedTuple):
    """A record and where it stands."""

    path: Path
    row: int
    record: Record


@dataclass(frozen=True)
class Dialog:
    """A conversation as its source has it.

    turns: a list of {"role", "content"} and, where the source says what a turn names, "items"; or a text that holds it.
    given: what the source says under our keys, such as `ground_truth`.
    """

    turns: Any
    conversation_id: object = None
    time: object = None
    given: Mapping[str, Any] = field(default_factory=dict)


class Speakers:
    """Who recommends: those whom --recommender names, else who is called so."""

    def __init__(self, recommenders: Iterable[str] = ()) -> None:
        self._missing = {name.strip().casefold(): name for name in recommenders}
        self._recommenders = frozenset(self._missing)
        self._others: Counter[str] = Counter()

    def find_role(self, *names: Any, otherwise: str | None = None) -> str:
        """The role of a speaker.

        Args:
            names: what the source calls the speaker: an id, a name, a role.
            otherwise: the role where neither --recommender nor a name says it.

        Raises:
            BadRecord: Nothing says it.
        """
        known = [str(name).strip() for name in names if name is not None]
        if self._recommenders:
            spoken = {name.casefold() for name in known} & self._recommenders
            for name in spoken:
                self._missing.pop(name, None)
            if not spoken:
                self._others[known[0] if known else "?"] += 1
            return "assistant" if spoken else "user"
        roles = (ROLES.get(plain_name(name)) for name in known)
        role_by_name = next((role for role in roles if role), otherwise)
        if role_by_name is None:
            text = "%r speaks: as a user, or as the recommender? Name who recommends: --recommender NAME"
            raise BadRecord(text, known[0] if known else None)
        return role_by_name

    def describe_missing(self) -> str | None:
        """The problem with names of --recommender that nobody has; None where all speak."""
        if not self._missing:
            return None
        others = ", ".join(name for name, _ in self._others.most_common(_MOST_SPEAKERS))
        there = f"; speakers are {others}" if others else "; these files name no speakers"
        return f"--recommender {' '.join(self._missing.values())}: nobody has this name{there}"


@dataclass
class Reading:
    """What a form is told beside the records, and what it tells beside conversations.

    one_conversation: whether all turns of a table without a column for it are one conversation.
    keeps_order: whether a table's turns are in order, whatever its columns say.
    left_out: kind -> count of what is no conversation.
    notes: sentences about what was guessed, each once.
    """

    speakers: Speakers = field(default_factory=Speakers)
    one_conversation: bool = False
    keeps_order: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)


class Candidate(NamedTuple):
    """Records that may be a conversation; `read` says which, None for what is none. It may raise BadRecord."""

    records: Sequence[Placed]
    read: Callable[[], Dialog | None]


ReadRecord: TypeAlias = Callable[[Record, Speakers], Dialog | None]
FindDialogs: TypeAlias = Callable[[Sequence[Placed], Reading], Iterable[Candidate]]


@dataclass(frozen=True)
class Form:
    """The way in which a program writes conversations.

    fits: whether a record can be of this form.
    reads: the keys of a record that are looked at.
    example: a short record, for people whose file is of no form.
    read_record: where each record is a conversation. What its program does not write may fail in it with KeyError,
        TypeError, AttributeError or ValueError.
    find_dialogs: where several records make a conversation; gets those of a file, which are held in memory.
    spans_files: whether a conversation can go on in another file; then it gets those of all files of this form.
    """

    fits: Callable[[Record], bool]
    reads: frozenset[str]
    example: str
    read_record: ReadRecord | None = None
    find_dialogs: FindDialogs | None = None
    spans_files: bool = False


def plain_name(name: object) -> str:
    """A name of a column or speaker as `NAMES` has them: `Conversation ID` is conversationid."""
    return _remove_signs(str(name))


@lru_cache(maxsize=4096)  # every record has the same names
def _remove_signs(name: str) -> str:
    return _SIGNS.sub("", name).casefold()


ROLES = {name: role for role in ("user", "assistant") for name in NAMES[role]}


def turn(role: str, content: Any, items: Any = None) -> dict[str, Any]:
    """A message under our keys. items: what a source says that it names; None where a source does not say."""
    message = {"role": role, "content": content}
    return message if items is None else message | {"items": items}


def has_keys(*names: str) -> Callable[[Record], bool]:
    return lambda record: record.keys() >= set(names)


def sort_by_time(entries: Sequence[Any], get_time: Callable[[Any], Any]) -> list[Any]:
    """The entries by time, of equal ones the first first; as they are where one has no time.

    APIs give the newest first. Raises BadRecord for a time that cannot be read.
    """
    times = [get_time(entry) for entry in entries]
    if len(entries) < 2 or any(time is None for time in times):
        return list(entries)
    seconds = [parse_time(time) for time in times]
    return reorder(entries, seconds)


def reorder(entries: Sequence[Any], keys: Sequence[float]) -> list[Any]:
    """The entries by their keys. Where the keys fall throughout, equal ones are turned round too."""
    places = range(len(entries))
    is_falling = keys[0] > keys[-1] and all(keys[place] >= keys[place + 1] for place in places[:-1])
    if is_falling:
        return list(reversed(entries))
    return [entries[place] for place in sorted(places, key=lambda place: keys[place])]


def iter_each(read: ReadRecord, records: Iterable[Placed], reading: Reading) -> Iterator[Candidate]:
    """A candidate for each record."""
    for placed in records:
        yield Candidate([placed], lambda record=placed.record: read(record, reading.speakers))  # type: ignore[misc]

"""Types and helpers that all forms share: conversations, speakers and the records of a conversation."""

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
TOOL = "tool"  # the role of everything that neither side says: tool calls, their results, notices
INSTRUCTION = "system"
_SIGNS = re.compile(r"[\W_]+")
_MAX_SPEAKERS = 8  # named in a message

Record: TypeAlias = Mapping[str, Any]


class LocatedRecord(NamedTuple):
    """A record with its place.

    Attributes:
        path: its file.
        row: its number there, as messages give it.
        record: column -> cell.
    """

    path: Path
    row: int
    record: Record


@dataclass(frozen=True)
class Dialog:
    """A conversation as its source has it.

    Attributes:
        turns: a list of {"role", "content"} and, if the source lists the items that a turn names, "items"; or text that
            holds such a list.
        conversation_id: its name; None if the source has none.
        time: when it began, in any form; None if the source does not say.
        own_values: values that the source has under our keys, such as `ground_truth`.
    """

    turns: Any
    conversation_id: object = None
    time: object = None
    own_values: Mapping[str, Any] = field(default_factory=dict)


class Speakers:
    """Decide who recommends: the names of --recommender, otherwise speakers with a usual name for it."""

    def __init__(self, recommenders: Iterable[str] = ()) -> None:
        self._missing = {name.strip().casefold(): name for name in recommenders}
        self._recommenders = frozenset(self._missing)
        self._others: Counter[str] = Counter()

    def find_role(self, *names: Any, otherwise: str | None = None) -> str:
        """Return the role of a speaker.

        Args:
            names: what the source calls the speaker: ids, names, roles.
            otherwise: the role if neither --recommender nor a name decides.

        Raises:
            BadRecord: Nothing decides.
        """
        known = [str(name).strip() for name in names if name is not None]
        if self._recommenders:
            spoken = {name.casefold() for name in known} & self._recommenders
            for name in spoken:
                self._missing.pop(name, None)
            if not spoken:
                self._others[known[0] if known else "?"] += 1
            return "assistant" if spoken else "user"
        roles = (ROLES.get(normalise_name(name)) for name in known)
        role_by_name = next((role for role in roles if role), otherwise)
        if role_by_name is None:
            raise BadRecord(
                "speakers.unknown-role",
                "cannot tell whether %r is a user or the recommender; name the recommender: --recommender NAME",
                known[0] if known else None,
            )
        return role_by_name

    def describe_missing(self) -> str | None:
        """Describe the names of --recommender that no speaker has; None if all occur."""
        if not self._missing:
            return None
        others = ", ".join(name for name, _ in self._others.most_common(_MAX_SPEAKERS))
        speakers = f"; the speakers are {others}" if others else "; these files name no speakers"
        return f"--recommender {' '.join(self._missing.values())}: no speaker has this name{speakers}"


@dataclass
class ReadContext:
    """Settings for the forms, and what they report besides conversations.

    Attributes:
        speakers: decide who recommends.
        one_conversation: whether all turns of a table without a conversation column are one conversation.
        keeps_order: whether a table's rows are in order, whatever its columns say.
        left_out: kind -> count of what is not a conversation.
        notes: sentences about guesses, each once.
    """

    speakers: Speakers = field(default_factory=Speakers)
    one_conversation: bool = False
    keeps_order: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)


class Candidate(NamedTuple):
    """Records that may be a conversation.

    Attributes:
        records: the records, in the order of the file.
        read: returns the conversation, or None if there is none; raises BadRecord.
    """

    records: Sequence[LocatedRecord]
    read: Callable[[], Dialog | None]


# These read the formats of FORMS. A reader of records returns None for a record that is not a conversation, and raises
# BadRecord, or the errors that `Form.read_record` names, for one that it cannot read.
ReadRecord: TypeAlias = Callable[[Record, Speakers], Dialog | None]
FindDialogs: TypeAlias = Callable[[Sequence[LocatedRecord], ReadContext], Iterable[Candidate]]


@dataclass(frozen=True)
class Form:
    """A format in which a program stores conversations.

    Attributes:
        fits: whether a record can be of this form.
        reads: the keys of a record that are used.
        example: a short record, for messages about files of unknown form.
        read_record: reads a record that is a whole conversation. On records of other programs it may raise KeyError,
            TypeError, AttributeError or ValueError.
        find_dialogs: finds conversations that consist of several records; gets all records of a file at once.
        spans_files: whether a conversation can continue in another file; `find_dialogs` then gets those of all files.
    """

    fits: Callable[[Record], bool]
    reads: frozenset[str]
    example: str
    read_record: ReadRecord | None = None
    find_dialogs: FindDialogs | None = None
    spans_files: bool = False


def normalise_name(name: object) -> str:
    """Normalise the name of a column or speaker as in `NAMES`: `Conversation ID` becomes conversationid."""
    return _remove_signs(str(name))


@lru_cache(maxsize=4096)  # every record has the same names
def _remove_signs(name: str) -> str:
    return _SIGNS.sub("", name).casefold()


ROLES = {name: role for role in ("user", "assistant") for name in NAMES[role]}


def make_turn(role: str, content: Any, items: Any = None) -> dict[str, Any]:
    """Make a message with our keys.

    Args:
        role: "user", "assistant", TOOL, or INSTRUCTION.
        content: its text, or any form in which the source has it.
        items: the items that it names; None if the source does not list them, [] if it names none.
    """
    message = {"role": role, "content": content}
    return message if items is None else message | {"items": items}


def has_keys(*names: str) -> Callable[[Record], bool]:
    """Return a predicate: whether a record has all these keys."""
    return lambda record: record.keys() >= set(names)


def sort_by_time(entries: Sequence[Any], get_time: Callable[[Any], Any]) -> list[Any]:
    """Sort entries by time, since APIs return the newest first.

    Args:
        entries: messages or comments.
        get_time: returns the time of an entry, None if it has none.

    Returns:
        The sorted entries; equal times keep their order. Unchanged if any entry has no time.

    Raises:
        BadRecord: A time cannot be read.
    """
    times = [get_time(entry) for entry in entries]
    if len(entries) < 2 or any(time is None for time in times):
        return list(entries)
    seconds = [parse_time(time) for time in times]
    return reorder(entries, seconds)


def reorder(entries: Sequence[Any], keys: Sequence[float]) -> list[Any]:
    """Sort entries by keys.

    If the keys never rise and end lower than they began, the source has the newest entry first: all entries are then
    reversed, also those with equal keys.

    Args:
        entries: at least one.
        keys: one per entry.
    """
    places = range(len(entries))
    is_falling = keys[0] > keys[-1] and all(keys[place] >= keys[place + 1] for place in places[:-1])
    if is_falling:
        return list(reversed(entries))
    return [entries[place] for place in sorted(places, key=lambda place: keys[place])]


def iter_single_records(
    read: ReadRecord, records: Iterable[LocatedRecord], reading: ReadContext
) -> Iterator[Candidate]:
    """Yield each record as a candidate.

    Args:
        read: reads a record when the candidate is read, not before.
        records: of one file.
        reading: has the speakers.
    """
    for located in records:
        yield Candidate([located], lambda record=located.record: read(record, reading.speakers))  # type: ignore[misc]

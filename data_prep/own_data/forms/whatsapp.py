"""WhatsApp's _chat.txt as exported by a phone, in any language."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from data_prep.own_data.forms.base import NAMES, TOOL, Candidate, Form, LocatedRecord, ReadContext, Speakers
from data_prep.own_data.forms.channels import Message, make_talk_reader, split_channel

# `[31/12/2020, 21:41:00] Ann: hi` on an iPhone, `12/31/20, 9:41 PM - Ann: hi` on Android. Some languages put a word
# between day and hour (`31/12/2020 à 21:41`), others the half of the day before the hour (`下午9:41`).
_MESSAGE = re.compile(
    r"[\u200e\u200f\ufeff]*\[?(?P<day>\d{1,4}[./-]\d{1,2}[./-]\d{1,4})\.?,?\s(?:[^\W\d]+\.?\s)?"
    r"(?P<before>[^\W\d]{1,4}\s?)?(?P<hour>\d{1,2})[:.](?P<minute>\d\d)(?:[:.]\d\d)?"
    r"(?:\s?(?P<half>[^\W\d]\.?\s?[^\W\d]\.?))?(?:\]|\s[-–])\s(?:(?P<name>[^:\"„“”«»]+):\s)?(?P<text>.*)"
)
_NOTICE_MARK = "\u200e"  # an iPhone begins its own notices with it, also after a name
_NOTICES = frozenset(text.casefold() for text in NAMES["whatsapp_notices"])
_ATTACHED = "|".join(map(re.escape, NAMES["whatsapp_attached"]))
_OMITTED = re.compile(rf"<[^<>]+>|[\w ]+ omitted|\S+\.\w{{2,4}} \((?:{_ATTACHED})\).*", re.DOTALL | re.IGNORECASE)
_EDITED = re.compile(r"\s*\u200e?<[^<>\d]{10,60}>\Z")  # `<This message was edited>`, in any language
_AFTERNOON = ("p", "pm", "下午", "오후", "午後", "م")
_MIDNIGHT_HOURS = 12


@dataclass(frozen=True)
class _Line:
    """A message as it stands in the file."""

    located: LocatedRecord
    day: str
    seconds: int  # since midnight
    name: str | None
    text: str


def find_whatsapp_dialogs(records: Sequence[LocatedRecord], reading: ReadContext) -> Iterator[Candidate]:
    """Yield the conversations of a chat; each record is a line."""
    messages = _read_messages(_read_lines(records), reading.speakers)
    for talk in split_channel(messages, reading.left_out):
        yield Candidate([message.located for message in talk], make_talk_reader(talk, reading.left_out))


def _read_lines(records: Sequence[LocatedRecord]) -> list[_Line]:
    """Read the messages; a line without a date continues the message before it."""
    lines: list[_Line] = []
    for located in records:
        text = located.record["line"]
        if match := _MESSAGE.match(text):
            line = _Line(
                located=located,
                day=match["day"],
                seconds=_seconds_of_day(match),
                name=match["name"],
                text=match["text"],
            )
            lines.append(line)
        elif lines:
            lines[-1] = replace(lines[-1], text=f"{lines[-1].text}\n{text}")
    return lines


def _seconds_of_day(match: re.Match[str]) -> int:
    half = re.sub(r"[.\s]", "", (match["half"] or match["before"] or "").casefold())
    hour = int(match["hour"])
    if half:
        hour = hour % _MIDNIGHT_HOURS + _MIDNIGHT_HOURS * (half in _AFTERNOON)
    return hour * 3600 + int(match["minute"]) * 60


def _read_messages(lines: Sequence[_Line], speakers: Speakers) -> list[Message]:
    """Assign roles and times. Raises BadRecord if it is unknown who recommends."""
    days = _number_days([line.day for line in lines])
    messages = []
    for line in lines:
        text = _EDITED.sub("", line.text.strip())
        has_speaker = bool(line.name and text and not _is_notice(text))
        role = speakers.find_role(line.name) if has_speaker else TOOL
        message = Message(
            located=line.located,
            speaker=line.name or "",
            role=role,
            text=text,
            time=days[line.day] * 86_400.0 + line.seconds,
        )
        messages.append(message)
    return messages


def _is_notice(text: str) -> bool:
    bare = text.strip("<>.! ").casefold()
    return text.startswith(_NOTICE_MARK) or bare in _NOTICES or bool(_OMITTED.fullmatch(text))


def _number_days(days: Sequence[str]) -> dict[str, int]:
    """Map each date to a day number, in the order of day, month and year that makes the chat shortest.

    A chat is sorted by time. Among the orders in which every date is valid and none falls, the one with the shortest
    chat is most likely right. If there is none, dates are numbered as they come, three days apart.
    """
    different = list(dict.fromkeys(days))
    numbered = [*filter(None, (_number_in_order(different, order) for order in ("dmy", "mdy", "ymd")))]
    if not numbered:
        return {day: 3 * place for place, day in enumerate(different)}
    return min(numbered, key=lambda numbers: numbers[different[-1]] - numbers[different[0]])


def _number_in_order(days: Sequence[str], order: str) -> dict[str, int] | None:
    numbers: dict[str, int] = {}
    earliest = -1
    for day in days:
        parts = dict(zip(order, re.split(r"[./-]", day), strict=True))
        year = int(parts["y"]) + (2000 if len(parts["y"]) < 3 else 0)
        try:
            moment = datetime(year, int(parts["m"]), int(parts["d"]), tzinfo=UTC)
        except ValueError:
            return None
        numbers[day] = moment.toordinal()
        if numbers[day] < earliest:
            return None
        earliest = numbers[day]
    return numbers


WHATSAPP = Form(
    fits=lambda record: bool(_MESSAGE.match(record.get("line", ""))),
    reads=frozenset({"line"}),
    example="31/12/2020, 21:41 - Ann: Something like Heat?",
    find_dialogs=find_whatsapp_dialogs,
)

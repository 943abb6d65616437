"""_chat.txt as a phone exports it from WhatsApp, in any language."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from data_prep.own_data.forms.base import NAMES, TOOL, Candidate, Form, Placed, Reading, Speakers
from data_prep.own_data.forms.channels import Message, read_talk, split_channel

# `[31/12/2020, 21:41:00] Ann: hi` of an iPhone, `12/31/20, 9:41 PM - Ann: hi` of Android. Between day and hour some
# languages have a word (`31/12/2020 à 21:41`), others write the half of the day in front (`下午9:41`).
_MESSAGE = re.compile(
    r"[\u200e\u200f\ufeff]*\[?(?P<day>\d{1,4}[./-]\d{1,2}[./-]\d{1,4})\.?,?\s(?:[^\W\d]+\.?\s)?"
    r"(?P<before>[^\W\d]{1,4}\s?)?(?P<hour>\d{1,2})[:.](?P<minute>\d\d)(?:[:.]\d\d)?"
    r"(?:\s?(?P<half>[^\W\d]\.?\s?[^\W\d]\.?))?(?:\]|\s[-–])\s(?:(?P<name>[^:\"„“”«»]+):\s)?(?P<text>.*)"
)
_NOTICE_MARK = "\u200e"  # begins what an iPhone writes of its own, behind a name too
_NOTICES = frozenset(text.casefold() for text in NAMES["whatsapp_notices"])
_ATTACHED = "|".join(map(re.escape, NAMES["whatsapp_attached"]))
_OMITTED = re.compile(rf"<[^<>]+>|[\w ]+ omitted|\S+\.\w{{2,4}} \((?:{_ATTACHED})\).*", re.DOTALL | re.IGNORECASE)
_EDITED = re.compile(r"\s*\u200e?<[^<>\d]{10,60}>\Z")  # `<This message was edited>`, in any language
_AFTERNOON = ("p", "pm", "下午", "오후", "午後", "م")
_MIDNIGHT_HOURS = 12


@dataclass(frozen=True)
class _Line:
    """A message as its lines say it."""

    placed: Placed
    day: str
    seconds: int  # of the day
    name: str | None
    text: str


def find_whatsapp_dialogs(records: Sequence[Placed], reading: Reading) -> Iterator[Candidate]:
    messages = _read_messages(_read_lines(records), reading.speakers)
    for talk in split_channel(messages, reading.left_out):
        yield Candidate([message.placed for message in talk], read_talk(talk, reading.left_out))


def _read_lines(records: Sequence[Placed]) -> list[_Line]:
    """The messages; a line without a date goes on with the message before it."""
    lines: list[_Line] = []
    for placed in records:
        text = placed.record["line"]
        if match := _MESSAGE.match(text):
            line = _Line(
                placed=placed,
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
    """Raises BadRecord where nobody says who recommends."""
    days = _number_days([line.day for line in lines])
    messages = []
    for line in lines:
        text = _EDITED.sub("", line.text.strip())
        is_said = bool(line.name and text and not _is_notice(text))
        role = speakers.find_role(line.name) if is_said else TOOL
        message = Message(
            placed=line.placed,
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
    """Each date -> days since 1970 in the order of day, month and year in which the chat goes on soonest.

    A chat is in order of time. Of the orders in which every date is one and none falls, the one with the shortest chat
    has most likely written it; where there is none, days are counted as they come, two apart.
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

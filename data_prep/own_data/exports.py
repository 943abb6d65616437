"""The forms in which other programs write conversations, one reader a function, and the table by which files are read.

To add one: a reader and a line of FORMS; docs/how-to/data.md has its row. A reader gets a record, or all records that
`groups` puts together, and says which turn is whose; `rows.read_turns` reads the turns. What its program does not write
may fail in it as it likes: KeyError, TypeError, AttributeError and ValueError become a finding.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from convrec.data.damage import BadRecord, Damage
from convrec.data.records import Records, read_records
from data_prep.own_data import NAMES
from data_prep.own_data.rows import KEYS

Record: TypeAlias = Mapping[str, Any]
Group: TypeAlias = Sequence[tuple[int, Record]]  # with their rows
Role: TypeAlias = Callable[..., str]  # role_of for these recommenders
LOOKED_AT = 50  # records by which a form is guessed
WANTED = frozenset({"ground_truth", "demonstration"})
ROLES = {name: role for role in ("user", "assistant") for name in NAMES[role]}
SPEAKER, TEXT, CONVERSATION = (NAMES["turns"][name] for name in ("speaker", "text", "conversation"))  # columns
# `[31/12/2020, 21:41:00] Ann: hi` of an iPhone, `12/31/20, 9:41 PM - Ann: hi` of Android
_WHATSAPP = re.compile(
    r"[\u200e\ufeff]*\[?(?P<day>\d{1,4}[./-]\d{1,2}[./-]\d{1,4}),?\s(?:klo\s)?\d{1,2}[:.]\d\d(?:[:.]\d\d)?"
    r"(?:\s?[AaPp]\.?\s?[Mm]\.?)?(?:\]|\s[-–])\s(?:(?P<name>[^:\"]+):\s)?(?P<text>.*)"
)
NOTICE = "\u200e"  # begins what an iPhone writes of its own, behind a name too
_OMITTED = re.compile(r"<?[\w ]+ (?:omitted|attached)>?|<attached: .*>|This message was deleted\.?")


class Dialog(NamedTuple):
    """turns: {"role", "content"} and, where the source says what a turn names, "items"."""

    turns: list[Any]
    conversation_id: object = None
    time: object = None


class Form(NamedTuple):
    """fits: whether a record can be of this form. groups: the records that are read together; None: each is a
    conversation."""

    fits: Callable[[Record], bool]
    read: Callable[[Any, Role], Dialog | None]
    groups: Callable[[Records], Iterable[Group]] | None = None


def turn(role: str, content: Any, **items: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **items}


def role_of(recommenders: Collection[str], speaker: Any, otherwise: str | None = None) -> str:
    """recommenders: the names of those who recommend (--recommender); empty: the speaker's name says it, else
    `otherwise`."""
    if recommenders:
        return "assistant" if speaker in recommenders else "user"
    if (role := ROLES.get(str(speaker).strip().lower(), otherwise)) is None:
        raise BadRecord("%r speaks: as a user, or as the recommender? Name who recommends: --recommender NAME", speaker)
    return role


def _chat(record: Record, role: Role) -> Dialog:
    return Dialog(record["messages"])


def _batch(record: Record, role: Role) -> Dialog:
    if "body" not in record:
        raise BadRecord("an answer without its request; give the file that the batch was made from")
    asked, answer = record["body"], record["response"]["body"] if record.get("response") else {}
    if "messages" in asked:
        turns = [*asked["messages"], *(one["message"] for one in answer.get("choices", [])[:1])]
    else:  # /v1/responses
        said = [turn("user", asked["input"])] if isinstance(asked["input"], str) else asked["input"]
        turns = [*said, *(part for part in answer.get("output", []) if part["type"] == "message")]
    return Dialog(turns, record["custom_id"])


def _sharegpt(record: Record, role: Role) -> Dialog:
    turns = []
    for said in record["conversations"]:
        speaker, text = (said["from"], said["value"]) if "from" in said else (said["role"], said["content"])
        turns.append(turn(speaker if speaker in ("system", "tool", "function") else role(speaker), text))
    return Dialog(turns, record.get("id"))


def _chatgpt(record: Record, role: Role) -> Dialog:
    """The branch of the tree that was shown last: from `current_node` up."""
    nodes, name, turns = dict(record["mapping"]), record["current_node"], []
    while name in nodes:
        node = nodes.pop(name)  # a damaged tree can be a circle
        if (said := node["message"]) and (parts := said["content"].get("parts")):
            speaker = said["author"]["role"]
            turns.append(turn("tool" if speaker == "system" else speaker, parts))  # hidden, and anywhere
        name = node["parent"]
    return Dialog(turns[::-1], record.get("conversation_id", record.get("id")), record.get("create_time"))


def _alpaca(record: Record, role: Role) -> Dialog:
    asked = "\n".join(record[name] for name in ("instruction", "input") if record.get(name))
    pairs = [*(record.get("history") or ()), (asked, record["output"])]
    return Dialog([said for user, answer in pairs for said in (turn("user", user), turn("assistant", answer))])


def _prompt_completion(record: Record, role: Role) -> Dialog:
    parts = (("user", record["prompt"]), ("assistant", record["completion"]))
    return Dialog([said for who, part in parts for said in (part if isinstance(part, list) else [turn(who, part)])])


def _slack(records: Sequence[Record], role: Role) -> Dialog | None:
    """Who recommends is a bot, or is named by --recommender. None where nobody does: chatter of a channel."""
    turns = []
    for message in records:
        is_said = message.get("subtype") in (None, "bot_message", "thread_broadcast")  # nobody joins, leaves, pins
        speaker = message.get("user") or message.get("username")
        said_by = role(speaker, "assistant" if message.get("bot_id") else "user")
        turns.append(turn(said_by if is_said else "tool", html.unescape(message["text"])))
    if not any(said["role"] == "assistant" for said in turns):
        return None
    return Dialog(turns, records[0].get("thread_ts"), records[0]["ts"])


def _zendesk(record: Record, role: Role) -> Dialog:
    """The requester of a ticket is the user, who else comments in public the recommender."""
    turns = []
    for comment in record["comments"]:
        speaker = "user" if comment["author_id"] == record["requester_id"] else "assistant"
        text = comment.get("plain_body") or comment["body"]
        turns.append(turn(speaker if comment.get("public", True) else "tool", text))
    return Dialog(turns, record.get("id"), record.get("created_at"))


def _whatsapp(records: Sequence[Record], role: Role) -> Dialog:
    turns = []
    for message in records:
        said = message["text"].strip()
        is_said = message["name"] and said and not said.startswith(NOTICE) and not _OMITTED.fullmatch(said)
        turns.append(turn(role(message["name"]) if is_said else "tool", said))
    return Dialog(turns)


def _days(records: Records) -> Iterable[Group]:
    """The messages of each day of a WhatsApp chat; a line without a date goes on with the message before it."""
    days: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    message: dict[str, Any] = {"text": ""}
    for number, record in records:
        if match := _WHATSAPP.match(record["line"]):
            message = match.groupdict()
            days.setdefault(match["day"], []).append((number, message))
        else:
            message["text"] += "\n" + record["line"]
    return days.values()


def _turns(records: Sequence[Record], role: Role) -> Dialog:
    """A row a turn; INSPIRED says in `movies` what it names."""
    said = [(record.get(_first(SPEAKER, record)), record.get(_first(TEXT, record))) for record in records]
    turns = _said(said, role)
    if any(record.keys() & {"movies", "movie_dict"} for record in records):
        turns = [turn | {"items": record.get("movies")} for turn, record in zip(turns, records, strict=True)]
    return Dialog(turns, records[0].get(_first(CONVERSATION, records[0])))


def _columns(records: Sequence[Record], role: Role) -> Dialog:
    """A column a speaker; a row has one or several turns, in the columns' order."""
    said = [(name, text) for record in records for name, text in record.items() if name.lower() in (*ROLES, "system")]
    return Dialog(_said(said, role), records[0].get(_first(CONVERSATION, records[0])))


def _said(said: Sequence[tuple[Any, Any]], role: Role) -> list[dict[str, Any]]:
    """Turns of (speaker, text). `SYSTEM` is the recommender, as in the released data, but beside another one it is an
    instruction."""
    speakers = {speaker: str(speaker).lower() for speaker, _ in said}
    roles = {speaker: role(speaker) for speaker, name in speakers.items() if name != "system"}
    system = "system" if "assistant" in roles.values() else "assistant"
    return [turn(roles.get(speaker, system), text) for speaker, text in said]


def _redial(record: Record, role: Role) -> Dialog:
    titles = record["movieMentions"] or {}  # an empty one is written as a list
    turns = []
    for said in record["messages"]:
        names = re.findall(r"@(\d+)", said["text"])
        text = re.sub(r"@(\d+)", lambda name: titles.get(name[1]) or name[0], said["text"])
        speaker = "assistant" if said["senderWorkerId"] == record["respondentWorkerId"] else "user"
        turns.append(turn(speaker, text, items=[titles[name] for name in names if titles.get(name)]))
    return Dialog(turns, record["conversationId"])


def _first(names: Iterable[str], record: Record) -> str:
    """The first of these columns that the record has; "" for none."""
    return next((name for name in names if name in record), "")


def _by(names: Iterable[str], alone: bool, records: Records) -> Iterable[Group]:
    """Groups of the records that have the same in the first of these columns. Records without: alone, or one group."""
    groups: dict[str, list[tuple[int, Record]]] = {}
    for number, record in records:
        name = record.get(_first(names, record))
        groups.setdefault(f"row {number}" if name is None and alone else repr(name), []).append((number, record))
    return groups.values()


def _has(*names: str) -> Callable[[Record], bool]:
    return lambda record: record.keys() >= set(names)


def _fits_columns(record: Record) -> bool:
    roles = {ROLES.get(name.lower(), name.lower()) for name in record}
    return "user" in roles and not roles.isdisjoint(("assistant", "system"))


OWN = "own"
FORMS: Mapping[str, Form] = {  # a file has the first that one of its first records fits
    "redial": Form(_has("movieMentions", "messages"), _redial),
    "zendesk": Form(_has("comments", "requester_id"), _zendesk),
    "chatgpt": Form(_has("mapping", "current_node"), _chatgpt),
    "sharegpt": Form(_has("conversations"), _sharegpt),
    "openai-batch": Form(_has("custom_id"), _batch),
    OWN: Form(lambda record: "conversation" in record or not WANTED.isdisjoint(record), _chat),
    "chat": Form(_has("messages"), _chat),
    "alpaca": Form(_has("instruction", "output"), _alpaca),
    "prompt-completion": Form(_has("prompt", "completion"), _prompt_completion),
    "slack": Form(_has("type", "ts", "text"), _slack, partial(_by, ("thread_ts",), False)),
    "whatsapp": Form(lambda record: bool(_WHATSAPP.match(record.get("line", ""))), _whatsapp, _days),
    "turns": Form(
        lambda record: bool(_first(SPEAKER, record) and _first(TEXT, record)), _turns, partial(_by, CONVERSATION, False)
    ),
    "columns": Form(_fits_columns, _columns, partial(_by, CONVERSATION, True)),
}
READS: Mapping[str, Collection[str]] = NAMES["forms"] | {  # columns
    "turns": (*SPEAKER, *TEXT, *CONVERSATION, "movies"),
    "columns": (*ROLES, "system", *CONVERSATION),
}


def guess_form(path: Path) -> str:
    """The form of a file, by its first records; that of one's own data where none fits, whose reader says what is
    wrong. Raises UserError for a file that cannot be read."""
    records = [record for _, record in islice(read_records(path, Damage()), LOOKED_AT)]
    return next((name for name, form in FORMS.items() if any(map(form.fits, records))), OWN)


def read_export(
    path: Path, name: str, recommenders: Collection[str], damage: Damage, not_read: set[str], left_out: Counter[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row, a record of KEYS) of each conversation of a file of the form `name`. `not_read` gets the columns that are
    not looked at, `damage` what cannot be read, `left_out` kind -> count of what is no conversation."""
    form, records = FORMS[name], read_records(path, damage)
    for group in form.groups(records) if form.groups else ([numbered] for numbered in records):
        number, first = group[0]
        if name == OWN:
            yield number, dict(first)
            continue
        try:
            dialog = form.read(
                [record for _, record in group] if form.groups else first, partial(role_of, recommenders)
            )
        except BadRecord as problem:
            damage.add(path, number, problem)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            text = f"is not what {name} writes (%s: %s); name its form: --format"
            damage.add(path, number, BadRecord(text, type(error).__name__, error))
        else:
            if dialog is None:
                left_out["conversations in which nobody recommends (--recommender ID names who does)"] += 1
                continue
            reads = READS[name]
            keys = {key for _, record in group for key in record} - {*reads, *KEYS}
            not_read |= {key for key in keys if key.lower() not in reads}  # a speaker's column in any case
            given = {key: first[key] for key in KEYS if key in first and key not in reads}
            said = {"conversation": dialog.turns, "conversation_id": dialog.conversation_id, "time": dialog.time}
            yield number, given | {key: value for key, value in said.items() if value is not None}

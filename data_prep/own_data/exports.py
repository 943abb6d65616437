"""The forms in which other programs write conversations, one reader a function, and the table by which files are read.

To add one: a reader and a line of FORMS; docs/how-to/data.md has its row. A reader makes one record of KEYS (rows) of
the records that are a conversation: of one record, or of all that `groups` puts together.
"""

import html
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from convrec.data.damage import BadRecord, Damage
from convrec.data.records import Records, read_records
from data_prep.own_data.rows import KEYS

Record: TypeAlias = Mapping[str, Any]
Group: TypeAlias = Sequence[tuple[int, Record]]
Read: TypeAlias = Callable[[Sequence[Record], Collection[str]], dict[str, Any]]
LOOKED_AT = 50  # records by which a form is guessed
WANTED = frozenset({"ground_truth", "demonstration"})
USERS = ("user", "human", "seeker", "customer", "client", "requester", "end-user", "end_user", "initiator")
RECOMMENDERS = ("assistant", "recommender", "gpt", "chatgpt", "bot", "model", "agent", "ai", "respondent")
_ROLES = dict.fromkeys(USERS, "user") | dict.fromkeys(RECOMMENDERS, "assistant")
_SPEAKER, _TEXT = ("speaker", "role", "from", "author", "sender"), ("text", "content", "message", "utterance", "body")
_CONVERSATION = ("conversation_id", "dialog_id", "dialogue_id", "session_id", "thread_id", "ticket_id")
# `[31/12/2020, 21:41:00] Ann: hi` of an iPhone, `12/31/20, 9:41 PM - Ann: hi` of Android
_WHATSAPP = re.compile(
    r"[\u200e\ufeff]*\[?(?P<day>\d{1,4}[./-]\d{1,2}[./-]\d{1,4}),?\s(?:klo\s)?\d{1,2}[:.]\d\d(?:[:.]\d\d)?"
    r"(?:\s?[AaPp]\.?\s?[Mm]\.?)?(?:\]|\s[-–])\s(?:(?P<name>[^:]+):\s)?(?P<text>.*)"
)
_OMITTED = re.compile(r"\u200e?<?[\w ]+ (?:omitted|attached)>?|<attached: .*>|This message was deleted\.?")


def _singly(records: Records) -> Iterable[Group]:
    return ([numbered] for numbered in records)


class Form(NamedTuple):
    """reads: the keys that the reader looks at. fits: whether a record can be of this form."""

    reads: tuple[str, ...]
    fits: Callable[[Record], bool]
    read: Read
    groups: Callable[[Records], Iterable[Group]] = _singly


def role_of(speaker: object, recommenders: Collection[str]) -> str:
    """recommenders: the names of those who recommend (--recommender); empty: the speaker's name says it."""
    if recommenders:
        return "assistant" if speaker in recommenders else "user"
    if (role := _ROLES.get(str(speaker).strip().lower())) is None:
        raise BadRecord("%r speaks: as a user, or as the recommender? Name who recommends: --recommender NAME", speaker)
    return role


def _own(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    return dict(records[0])


def _chat(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    return {"conversation": records[0]["messages"]}


def _batch(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    request, response = (_dict(records[0].get(name)) for name in ("body", "response"))
    if "messages" not in request:
        raise BadRecord("an answer without its request; give the file that the batch was made from")
    choices = _dict(response.get("body")).get("choices") or []
    answers = [_dict(choice).get("message") for choice in choices[:1]]
    return {"conversation": [*_list(request["messages"]), *answers], "conversation_id": records[0].get("custom_id")}


def _sharegpt(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    turns = [
        turn(name if (name := said.get("from")) in ("system", "tool") else role_of(name, ()), said.get("value"))
        for said in map(_dict, _list(records[0]["conversations"]))
    ]
    return {"conversation": turns, "conversation_id": records[0].get("id")}


def _chatgpt(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    """The tree's branch that was shown last: from `current_node` up."""
    (record,) = records
    nodes, name = _dict(record["mapping"]), record.get("current_node")
    messages: list[dict[str, Any]] = []
    for _ in range(len(nodes)):  # a damaged tree can be a circle
        node = _dict(nodes.get(str(name)))
        messages.insert(0, _dict(node.get("message")))
        name = node.get("parent")
    turns = []
    for message in messages:
        content, hidden = _dict(message.get("content")), _dict(message.get("metadata"))
        parts = [part for part in content.get("parts") or [] if not isinstance(part, str) or part.strip()]
        if not parts or hidden.get("is_visually_hidden_from_conversation"):
            continue  # an empty root, what the program itself has written, and thoughts
        blocks = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "other"} for part in parts]
        turns.append(turn(_dict(message.get("author")).get("role"), blocks))
    identity = record.get("conversation_id") or record.get("id")
    return {"conversation": turns, "conversation_id": identity, "time": record.get("create_time")}


def _alpaca(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    (record,) = records
    asked = "\n".join(record[name] for name in ("instruction", "input") if record.get(name))
    earlier = [
        turn(role, said)
        for pair in record.get("history") or []
        for role, said in zip(("user", "assistant"), pair, strict=True)
    ]
    return {"conversation": [*earlier, turn("user", asked), turn("assistant", record.get("output"))]}


def _prompt_completion(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    prompt, completion = records[0]["prompt"], records[0].get("completion")
    return {
        "conversation": [
            *(prompt if isinstance(prompt, list) else [turn("user", prompt)]),
            *(completion if isinstance(completion, list) else [turn("assistant", completion)] if completion else []),
        ]
    }


def _slack(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    """Who recommends is named by --recommender, or is a bot."""
    turns = []
    for message in records:
        name = message.get("user") or message.get("username") or message.get("bot_id")
        if message.get("type") != "message" or message.get("subtype") not in (None, "bot_message", "thread_broadcast"):
            role = "tool"  # who joins and leaves, and what else is no message
        elif recommenders:
            role = role_of(name, recommenders)
        else:
            role = "assistant" if message.get("bot_id") else "user"
        turns.append(turn(role, html.unescape(str(message.get("text") or ""))))
    if not recommenders and not any(message.get("bot_id") for message in records):
        raise BadRecord("no bot speaks, so nobody recommends; name who does: --recommender ID")
    first = records[0]
    return {"conversation": turns, "conversation_id": first.get("thread_ts"), "time": first.get("ts")}


def _zendesk(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    """The requester of a ticket is the user, who else comments in public the recommender."""
    (record,) = records
    turns = []
    for comment in map(_dict, _list(record["comments"])):
        role = "user" if comment.get("author_id") == record.get("requester_id") else "assistant"
        text = comment.get("plain_body") or comment.get("body")
        turns.append(turn(role if comment.get("public", True) else "tool", text))
    return {"conversation": turns, "conversation_id": record.get("id"), "time": record.get("created_at")}


def _whatsapp(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    turns = []
    for message in records:
        said = message["text"].strip()
        is_said = message["name"] is not None and said and not _OMITTED.fullmatch(said)
        turns.append(turn(role_of(message["name"], recommenders) if is_said else "tool", said))
    return {"conversation": turns}


def _days(records: Records) -> Iterable[Group]:
    """The messages of each day of a WhatsApp chat; a line without a date goes on with the message before it."""
    days: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    message: dict[str, Any] = {}
    for number, record in records:
        if match := _WHATSAPP.match(record["line"]):
            message = match.groupdict()
            days.setdefault(match["day"], []).append((number, message))
        elif message:
            message["text"] += "\n" + record["line"]
    return list(days.values())


def _turns(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    """A row a turn; INSPIRED says in `movies` what it names."""
    first = records[0]
    turns = [
        turn(role_of(record.get(_first(_SPEAKER, record)), recommenders), record.get(_first(_TEXT, record)))
        for record in records
    ]
    if any(record.keys() & {"movies", "movie_dict"} for record in records):
        for record, said in zip(records, turns, strict=True):
            said["items"] = record.get("movies")
    return {"conversation": turns, "conversation_id": first.get(_first(_CONVERSATION, first))}


def _columns(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    """A column a speaker; a row has one or several turns, in the columns' order."""
    turns = [
        turn(role_of(name, recommenders), record[name])
        for record in records
        for name in record
        if name.lower() in _ROLES or name in recommenders
    ]
    return {"conversation": turns, "conversation_id": records[0].get(_first(_CONVERSATION, records[0]))}


def _redial(records: Sequence[Record], recommenders: Collection[str]) -> dict[str, Any]:
    (record,) = records
    titles = _dict(record["movieMentions"] or {})  # an empty one is written as a list

    def named(text: str) -> list[str]:
        return [titles[name] for name in re.findall(r"@(\d+)", text) if titles.get(name)]

    turns = [
        turn(
            "assistant" if said["senderWorkerId"] == record["respondentWorkerId"] else "user",
            re.sub(r"@(\d+)", lambda name: titles.get(name[1]) or name[0], said["text"]),
        )
        | {"items": named(said["text"])}
        for said in map(_dict, _list(record["messages"]))
        if said["text"].strip()
    ]
    return {"conversation": turns, "conversation_id": record.get("conversationId")}


def turn(role: Any, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _first(names: Iterable[str], record: Record) -> str:
    """The first of these columns that the record has; "" for none."""
    return next((name for name in names if name in record), "")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _together(*keys: str, alone: bool = False) -> Callable[[Records], Iterable[Group]]:
    """Groups of the records that have the same in the first of these columns. Records without: alone, or one group."""

    def groups(records: Records) -> Iterable[Group]:
        found: dict[Hashable, list[tuple[int, Record]]] = {}
        for number, record in records:
            name = record.get(_first(keys, record))
            found.setdefault((number,) if name is None and alone else name, []).append((number, record))
        return found.values()

    return groups


def _has(*keys: str) -> Callable[[Record], bool]:
    return lambda record: record.keys() >= set(keys)


def _fits_columns(record: Record) -> bool:
    return {role_of(name, ()) for name in record if name.lower() in _ROLES} == {"user", "assistant"}


def _fits_turns(record: Record) -> bool:
    return bool(_first(_SPEAKER, record) and _first(_TEXT, record))


OWN = "own"
FORMS: Mapping[str, Form] = {  # a file has the first that one of its first records fits
    "redial": Form(("movieMentions", "messages", "conversationId"), _has("movieMentions", "messages"), _redial),
    "zendesk": Form(("comments", "requester_id", "id", "created_at"), _has("comments", "requester_id"), _zendesk),
    "chatgpt": Form(("mapping", "current_node", "create_time", "id"), _has("mapping", "current_node"), _chatgpt),
    "sharegpt": Form(("conversations", "id"), _has("conversations"), _sharegpt),
    "openai-batch": Form(("custom_id", "body", "response"), _has("custom_id"), _batch),
    OWN: Form(KEYS, lambda record: "conversation" in record or not WANTED.isdisjoint(record), _own),
    "chat": Form(("messages",), _has("messages"), _chat),
    "alpaca": Form(("instruction", "input", "output", "history"), _has("instruction", "output"), _alpaca),
    "prompt-completion": Form(("prompt", "completion"), _has("prompt", "completion"), _prompt_completion),
    "slack": Form(("ts", "text", "user", "bot_id"), _has("ts", "text"), _slack, _together("thread_ts")),
    "whatsapp": Form(("line",), lambda record: bool(_WHATSAPP.match(record.get("line", ""))), _whatsapp, _days),
    "turns": Form((*_SPEAKER, *_TEXT, *_CONVERSATION, "movies"), _fits_turns, _turns, _together(*_CONVERSATION)),
    "columns": Form((*_ROLES, *_CONVERSATION), _fits_columns, _columns, _together(*_CONVERSATION, alone=True)),
}


def guess_form(path: Path) -> str:
    """The form of a file, by its first records; that of one's own data where none fits, whose reader says what is
    wrong. Raises UserError for a file that cannot be read."""
    records = [record for _, record in islice(read_records(path, Damage()), LOOKED_AT)]
    return next((name for name, form in FORMS.items() if any(map(form.fits, records))), OWN)


def read_export(
    path: Path, name: str, recommenders: Collection[str], damage: Damage, not_read: set[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row, a record of KEYS) of each conversation of a file of the form `name`; `not_read` gets the names of columns
    that are not looked at, what cannot be read goes to `damage`."""
    form = FORMS[name]
    for group in form.groups(read_records(path, damage)):
        number, records = group[0][0], [record for _, record in group]
        try:
            conversation = form.read(records, recommenders)
        except (BadRecord, KeyError, TypeError, AttributeError, ValueError) as problem:
            told = problem if isinstance(problem, BadRecord) else BadRecord(f"not of the form {name}; give --format")
            damage.add(path, number, told)
            continue
        if name != OWN:
            not_read |= {key for record in records for key in record} - {*form.reads, *KEYS}
            given = {key: records[0][key] for key in KEYS if key in records[0] and key not in form.reads}
            conversation = {key: value for key, value in (given | conversation).items() if value is not None}
        yield number, conversation

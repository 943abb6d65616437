"""A few lines of each export, in the layout of the program that writes it. All have the same conversation."""

import json
from typing import Any

LIKED, ANSWER, THANKS = "I liked Heat (1995).", "Try Blade Runner (1982), or Alien (1979).", "Blade Runner it is!"
LISTED = "1. **Blade Runner (1982)** - neon\n2. Alien (1979)"
INSTRUCTION = "You recommend films."


def messages(**of_first: Any) -> list[dict[str, Any]]:
    first = {"role": "user", "content": LIKED} | of_first
    return [first, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": THANKS}]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


SYSTEM = {"role": "system", "content": INSTRUCTION}
WITH_LIST = [SYSTEM, *messages()[:1], {"role": "assistant", "content": LISTED}]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": LIKED}, {"type": "image", "source": {"type": "base64"}}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "noir"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2 films"}]},
    {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
    {"role": "user", "content": THANKS},
]
REQUEST = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions"}
RESPONSE = {
    "status_code": 200,
    "body": {"choices": [{"index": 0, "message": {"role": "assistant", "content": LISTED}}]},
}
OUTPUT = [
    {"type": "reasoning", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": LISTED, "annotations": []}]},
]
SHAREGPT = [("system", INSTRUCTION), ("human", LIKED), ("gpt", ANSWER), ("human", THANKS)]


def node(name: str, parent: str | None, children: list[str], role: str, *parts: Any, **metadata: Any) -> dict:
    content = {"content_type": "text", "parts": list(parts)}
    message = {"id": name, "author": {"role": role}, "content": content, "metadata": metadata, "create_time": 1.7e9}
    return {name: {"id": name, "message": message, "parent": parent, "children": children}}


CHATGPT = {
    "title": "Films",
    "create_time": 1700000000.5,
    "mapping": {
        "root": {"id": "root", "message": None, "parent": None, "children": ["s"]},
        **node("s", "root", ["u1"], "system", "", is_visually_hidden_from_conversation=True),
        **node("u1", "s", ["a1", "a2"], "user", LIKED),
        **node("a1", "u1", [], "assistant", "Dune (2021)."),  # an answer that was made again
        **node("a2", "u1", ["u2"], "assistant", ANSWER),
        **node("u2", "a2", [], "user", THANKS),
    },
    "current_node": "u2",
    "conversation_id": "c-1",
    "is_archived": False,
}
SLACK = [
    {"type": "message", "subtype": "channel_join", "user": "U1", "text": "<@U1> has joined", "ts": "1700000000.000100"},
    {"type": "message", "user": "U1", "text": LIKED, "ts": "1700000001.000200", "thread_ts": "1700000001.000200"},
    {"type": "message", "user": "U2", "text": "lunch?", "ts": "1700000002.000200"},
    {"type": "message", "subtype": "bot_message", "bot_id": "B1", "username": "films", "text": ANSWER}
    | {"ts": "1700000003.000300", "thread_ts": "1700000001.000200"},
    {"type": "message", "user": "U1", "text": THANKS, "ts": "1700000004.000400", "thread_ts": "1700000001.000200"},
    {"type": "message", "bot_id": "B1", "text": "Bon app&eacute;tit", "ts": "1700000005.000400"},
]
ZENDESK = {
    "id": 35436,
    "subject": "A film",
    "description": LIKED,
    "requester_id": 20978392,
    "created_at": "2023-11-14T22:13:20Z",
    "comments": [
        {"author_id": 20978392, "public": True, "body": LIKED, "plain_body": LIKED},
        {"author_id": 235323, "public": False, "body": "He wants Dune (2021)?"},
        {"author_id": 235323, "public": True, "body": ANSWER},
        {"author_id": 20978392, "public": True, "body": THANKS},
    ],
}
ANDROID = (
    "12/31/20, 9:40 PM - Messages and calls are end-to-end encrypted.\n"
    f"12/31/20, 9:41 PM - Ann: {LIKED}\n12/31/20, 9:42 PM - Bob: Try Blade Runner (1982),\nor Alien (1979).\n"
    f"12/31/20, 9:42 PM - Bob: <Media omitted>\n12/31/20, 9:43 PM - Ann: {THANKS}\n"
)
IPHONE = (
    f"\u200e[31/12/2020, 21:41:00] Ann: {LIKED}\n[31/12/2020, 21:42:00] Bob: {ANSWER}\n"
    f"[31/12/2020, 21:43:10] Ann: {THANKS}\n"
)
REDIAL = {
    "movieMentions": {"111776": "Heat (1995)", "99": "Blade Runner  (1982)", "7": "Alien (1979)", "8": "Nowhere"},
    "respondentQuestions": {"99": {"suggested": 1, "seen": 0, "liked": 1}},
    "messages": [
        {"timeOffset": 0, "text": "Hello", "senderWorkerId": 5, "messageId": 1},
        {"timeOffset": 9, "text": "I liked @111776.", "senderWorkerId": 0, "messageId": 2},
        {"timeOffset": 12, "text": "Try @99, or @7. Or @8", "senderWorkerId": 5, "messageId": 3},
        {"timeOffset": 20, "text": "I like @111776 more", "senderWorkerId": 0, "messageId": 4},
    ],
    "conversationId": "391",
    "respondentWorkerId": 5,
    "initiatorWorkerId": 0,
    "initiatorQuestions": [],
}
INSPIRED = "dialog_id\tutt_id\tspeaker\tturn_id\ttext\tmovies\tmovie_dict\n" + "".join(
    "20191202_live.pkl\t" + "\t".join(cells) + "\t{'Alien (1979)': 1}\n"
    for cells in (
        ("1", "RECOMMENDER", "1", "Hello", ""),
        ("2", "SEEKER", "1", "I liked heat.", "Heat (1995)"),
        ("3", "RECOMMENDER", "2", "Try two of them.", "Blade Runner (1982); Alien (1979)"),
        ("4", "SEEKER", "2", "Ok, or the one in the desert", "Dune (2021)"),
    )
)
CLAUDE = {
    "uuid": "c-1",
    "name": "Films",
    "created_at": "2025-01-05T10:00:00.000000Z",
    "account": {"uuid": "a-1"},
    "chat_messages": [
        {"uuid": "m1", "sender": "human", "text": LIKED, "created_at": "2025-01-05T10:00:00Z", "attachments": []},
        {"uuid": "m2", "sender": "assistant", "text": ANSWER, "content": [{"type": "text", "text": ANSWER}]}
        | {"created_at": "2025-01-05T10:00:10Z"},
        {"uuid": "m3", "sender": "human", "text": THANKS, "created_at": "2025-01-05T10:01:00Z"},
    ],
}
GEMINI = {
    "systemInstruction": {"role": "system", "parts": [{"text": INSTRUCTION}]},
    "contents": [
        {"role": "user", "parts": [{"text": LIKED}]},
        {"role": "model", "parts": [{"functionCall": {"name": "search", "args": {}}}]},
        {"role": "model", "parts": [{"text": "Dune (2021)?", "thought": True}, {"text": ANSWER}]},
        {"role": "user", "parts": [{"text": THANKS}]},
    ],
}
INTERCOM = {
    "type": "conversation",
    "id": "1295",
    "created_at": 1700000000,
    "source": {"type": "conversation", "body": f"<p>{LIKED}</p>", "author": {"type": "user", "id": "u", "name": "Ann"}},
    "conversation_parts": {
        "type": "conversation_part.list",
        "conversation_parts": [
            {"part_type": "assignment", "body": None, "author": {"type": "bot", "id": "b"}, "created_at": 1700000001},
            {"part_type": "note", "body": "<p>Dune (2021)?</p>", "author": {"type": "admin", "id": "a"}}
            | {"created_at": 1700000002},
            {"part_type": "comment", "body": f"<p>{ANSWER}</p>", "author": {"type": "admin", "id": "a"}}
            | {"created_at": 1700000003},
            {"part_type": "comment", "body": f"<p>{THANKS}</p>", "author": {"type": "user", "id": "u"}}
            | {"created_at": 1700000004},
        ],
    },
}


def discord_message(name: str, minute: int, author: str, content: str, is_bot: bool = False, **more: Any) -> dict:
    who = {"id": f"u-{author}", "name": author, "nickname": author, "isBot": is_bot}
    time = f"2024-03-01T10:{minute:02}:00.000+00:00"
    return {"id": name, "type": "Default", "timestamp": time, "content": content, "author": who, "mentions": []} | more


DISCORD = {
    "guild": {"id": "1", "name": "Films"},
    "channel": {"id": "2", "type": "GuildTextChat", "name": "recs"},
    "messages": [
        discord_message("1", 1, "ann", LIKED),
        discord_message("2", 2, "cem", "Something like Dune (2021)?"),
        discord_message("3", 3, "films", ANSWER, is_bot=True, type="Reply", reference={"messageId": "1"}),
        discord_message("4", 4, "ann", "", type="ChannelPinnedMessage"),
        discord_message("5", 5, "ann", THANKS),
    ],
    "messageCount": 5,
}
TELEGRAM = {
    "name": "Ann",
    "type": "personal_chat",
    "id": 1,
    "messages": [
        {"id": 1, "type": "service", "date": "2024-03-01T10:00:00", "action": "joined_telegram", "text": ""},
        {"id": 2, "type": "message", "date": "2024-03-01T10:01:00", "from": "Ann", "from_id": "user1"}
        | {"text": ["I liked ", {"type": "bold", "text": "Heat (1995)"}, "."]},
        {"id": 3, "type": "message", "date": "2024-03-01T10:02:00", "from": "Bob", "from_id": "user2", "text": ANSWER},
        {"id": 4, "type": "message", "date": "2024-03-01T10:03:00", "from": "Ann", "from_id": "user1", "text": THANKS},
    ],
}
OASST_REPLY = {"message_id": "m2", "role": "assistant", "text": ANSWER, "rank": 0}
OASST = {
    "message_tree_id": "m1",
    "prompt": {
        "message_id": "m1",
        "role": "prompter",
        "text": LIKED,
        "replies": [
            {"message_id": "m4", "role": "assistant", "text": "Dune (2021).", "rank": 1, "replies": []},
            OASST_REPLY | {"replies": [{"message_id": "m3", "role": "prompter", "text": THANKS, "replies": []}]},
        ],
    },
}
LMSYS = {"conversation_id": "c1", "model": "vicuna", "conversation": messages(), "turn": 2, "language": "English"}
TG_REDIAL = {
    "conv_id": 7,
    "user_id": 1,
    "goal_path": {"1": ["greet"]},
    "messages": [
        {"local_id": 1, "role": "Seeker", "content": LIKED},
        {"local_id": 2, "role": "Recommender", "content": ANSWER},
        {"local_id": 3, "role": "Seeker", "content": THANKS},
        {"local_id": 4, "role": "Recommender", "content": "Or this one?"},
    ],
    "mentionMovies": {"2": ["1291561", "Blade Runner (1982)"], "4": ["1300267", "Alien (1979)"]},
}
DURECDIAL = {
    "situation": "evening",
    "goal": "[1] ask --> [2] recommend",
    "user_profile": {"name": "Ann"},
    "conversation": [f"[1] {LIKED}", f"[2] {ANSWER}", THANKS],
    "knowledge": [["Alien", "genre", "horror"]],
}
UNICRS = {
    "dialog_id": "391",
    "turn_id": 2,
    "context": ["", "Hello", LIKED],
    "resp": ANSWER,
    "rec": ["Blade Runner (1982)", "Alien (1979)"],
    "entity": ["Heat"],
}
PEARL = {
    "dialogue_id": "d1",
    "user_persona": "likes crime",
    "dialogue": [{"speaker": "Seeker", "utterance": LIKED}, {"speaker": "Recommender", "utterance": ANSWER}],
    "gt": ["Blade Runner (1982)", "Alien (1979)"],
}
CRSLAB = {
    "conv_id": "1",
    "dialog": [
        {"utt_id": 1, "role": "Seeker", "text": LIKED.split(), "movies": ["Heat (1995)"], "entity": [], "word": []},
        {"utt_id": 2, "role": "Recommender", "text": ANSWER.split(), "movies": ["Blade Runner (1982)", "Alien (1979)"]},
    ],
}
MULTIWOZ = {"PMUL1.json": {"goal": {}, "log": [{"text": text, "metadata": {}} for text in (LIKED, ANSWER, THANKS)]}}
TASKMASTER = {
    "conversation_id": "dlg-1",
    "instruction_id": "movie-1",
    "utterances": [
        {"index": index, "speaker": ("USER", "ASSISTANT")[index % 2], "text": text, "segments": []}
        for index, text in enumerate((LIKED, ANSWER, THANKS))
    ],
}
OPENDIALKG_MESSAGES = [
    {"type": "chat", "message": LIKED, "sender": "user"},
    {"type": "action", "action_id": "kgwalk/choose_path", "metadata": {"path": [0.3, ["Heat"]]}, "sender": "assistant"},
    {"type": "chat", "message": ANSWER, "sender": "assistant"},
]
OPENDIALKG = 'Messages,User Rating\n"' + json.dumps(OPENDIALKG_MESSAGES).replace('"', '""') + '","{""fluent"": 5}"\n'
COLUMNS = f'conversation_id,user,assistant\n7,{LIKED},"{ANSWER}"\n7,{THANKS},\n'
TURNS = f"session_id\trole\tcontent\n7\tcustomer\t{LIKED}\n7\tagent\t{ANSWER}\n7\tcustomer\t{THANKS}\n"

NEXT = {"truth": "from-next-turns"}
BOB = NEXT | {"recommenders": ["Bob"]}
# name -> (file, content, form that is guessed, options); each becomes a row of LIKED and both films
CONVERSATION_SAMPLES: dict[str, tuple[str, Any, str, dict[str, Any]]] = {
    "OpenAI messages": ("a.jsonl", lines({"messages": messages()}), "chat", NEXT),
    "OpenAI messages with system": ("a.JSONL", lines({"messages": [SYSTEM, *messages()], "model": "m"}), "chat", NEXT),
    "Anthropic content blocks": ("a.jsonl", lines({"system": INSTRUCTION, "messages": BLOCKS}), "chat", NEXT),
    "ShareGPT": (
        "a.json",
        json.dumps([{"id": "x_0", "conversations": [{"from": who, "value": said} for who, said in SHAREGPT]}]),
        "sharegpt",
        NEXT,
    ),
    "ChatGPT": ("conversations.json", json.dumps([CHATGPT]), "chatgpt", NEXT),
    "Slack": ("2023-11-14.json", json.dumps(SLACK), "slack", NEXT),
    "Zendesk, a ticket a line": ("a.json", lines(ZENDESK, ZENDESK | {"id": 2}), "zendesk", NEXT),
    "Zendesk, a page": ("a.json", json.dumps({"tickets": [ZENDESK], "count": 1}), "zendesk", NEXT),
    "WhatsApp of Android": ("a.txt", ANDROID, "whatsapp", BOB),
    "WhatsApp of an iPhone": ("_chat.txt", IPHONE, "whatsapp", BOB),
    "CSV, a column a speaker": ("a.csv", COLUMNS, "columns", NEXT),
    "TSV, as the released data name speakers": ("a.tsv", f"USER\tSYSTEM\n{LIKED}\t{ANSWER}\n", "columns", NEXT),
    "CSV, a system prompt": (
        "a.csv",
        f'role,text\nsystem,{INSTRUCTION}\nuser,{LIKED}\nbot,"{ANSWER}"\n',
        "turns",
        NEXT | {"one_conversation": True},
    ),
    "TSV, a row a turn": ("a.tsv", TURNS, "turns", NEXT),
    "LLaMA-Factory": (
        "a.json",
        json.dumps(
            [
                {
                    "conversations": [
                        {"from": "human", "value": LIKED},
                        {"from": "function_call", "value": '{"name": "search"}'},
                        {"from": "observation", "value": "2 films"},
                        {"from": "gpt", "value": ANSWER},
                    ],
                    "tools": "[]",
                }
            ]
        ),
        "sharegpt",
        NEXT,
    ),
    "a list of messages per line": ("a.jsonl", json.dumps(messages()) + "\n", "message-list", NEXT),
    "messages as JSON in a cell": (
        "a.csv",
        'messages\n"' + json.dumps(messages()).replace('"', '""') + '"\n',
        "chat",
        NEXT,
    ),
    "Claude.ai": ("conversations.json", json.dumps([CLAUDE]), "claude", NEXT),
    "Gemini": ("a.jsonl", lines(GEMINI), "gemini", NEXT),
    "Gemini, a logged request": (
        "a.jsonl",
        lines(
            {"request": {"contents": GEMINI["contents"][:1]}}
            | {"response": {"candidates": [{"content": {"role": "model", "parts": [{"text": ANSWER}]}}]}}
        ),
        "gemini",
        NEXT,
    ),
    "Intercom": ("a.json", json.dumps({"conversations": [INTERCOM]}), "intercom", NEXT),
    "Discord": ("recs.json", json.dumps(DISCORD), "discord", NEXT),
    "Telegram": ("result.json", json.dumps(TELEGRAM), "telegram", BOB),
    "OpenAssistant": ("trees.jsonl", lines(OASST), "oasst", NEXT),
    "LMSYS-Chat-1M": ("a.jsonl", lines(LMSYS), "lmsys", NEXT),
    "WildChat": (
        "a.jsonl",
        lines({"conversation_hash": "h", "model": "m", "turn": 2, "conversation": messages(toxic=False)}),
        "lmsys",
        NEXT,
    ),
    "ReDial": ("train_data.jsonl", lines(REDIAL), "redial", {}),
    "DuRecDial": ("train.jsonl", lines(DURECDIAL), "durecdial", NEXT),
    "UniCRS": ("train.jsonl", lines(UNICRS), "unicrs", {}),
    "PEARL": ("train.jsonl", lines(PEARL), "pearl", {}),
    "CRSLab": ("train_data.json", json.dumps([CRSLAB]), "crslab", {}),
    "MultiWOZ 2.1": ("data.json", json.dumps(MULTIWOZ), "multiwoz", NEXT),
    "MultiWOZ 2.2": (
        "dialogues_001.json",
        json.dumps([{"dialogue_id": "1", "services": [], "turns": TASKMASTER["utterances"]}]),
        "utterances",
        NEXT,
    ),
    "Taskmaster": ("data.json", json.dumps([TASKMASTER]), "utterances", NEXT),
    "OpenDialKG": ("opendialkg.csv", OPENDIALKG, "opendialkg", NEXT),
    "INSPIRED": ("train.tsv", INSPIRED, "turns", {}),
}
# these end in a list, which is a demonstration
DEMONSTRATION_SAMPLES: dict[str, tuple[str, Any, str]] = {
    "OpenAI fine-tuning": ("a.jsonl", lines({"messages": WITH_LIST, "parallel_tool_calls": False}), "chat"),
    "OpenAI batch": (
        "a.jsonl",
        lines(REQUEST | {"body": {"messages": WITH_LIST[:2]}, "response": RESPONSE}),
        "openai-batch",
    ),
    "OpenAI batch of responses": (
        "a.jsonl",
        lines(
            REQUEST | {"body": {"input": WITH_LIST[:2]}, "response": {"body": {"output": OUTPUT}}},
            REQUEST | {"custom_id": "r2", "body": {"input": LIKED}, "response": {"body": {"output": OUTPUT}}},
        ),
        "openai-batch",
    ),
    "OpenAI responses": (
        "a.jsonl",
        lines({"object": "response", "input": LIKED, "output": OUTPUT}),
        "openai-responses",
    ),
    "OpenAI preferences": (
        "a.jsonl",
        lines({"input": {"messages": WITH_LIST[:2]}, "preferred_output": WITH_LIST[2:], "non_preferred_output": []}),
        "preference",
    ),
    "TRL preferences": (
        "a.jsonl",
        lines({"prompt": LIKED, "chosen": LISTED, "rejected": "Dune (2021)"}),
        "preference",
    ),
    "Langfuse": (
        "a.jsonl",
        lines(
            {
                "id": "t",
                "timestamp": "2024-05-01T10:00:00Z",
                "input": WITH_LIST[:2],
                "output": WITH_LIST[2],
                "sessionId": "s",
            }
        ),
        "langfuse",
    ),
    "LangSmith": (
        "a.jsonl",
        lines(
            {
                "id": "r",
                "run_type": "llm",
                "start_time": "2024-05-01T10:00:00",
                "inputs": {
                    "messages": [[{"lc": 1, "id": ["HumanMessage"], "kwargs": {"content": LIKED, "type": "human"}}]]
                },
                "outputs": {
                    "generations": [[{"text": LISTED, "message": {"kwargs": {"content": LISTED, "type": "ai"}}}]]
                },
            }
        ),
        "langsmith",
    ),
    "prompt and completion as OpenAI once wanted them": (
        "a.jsonl",
        lines({"prompt": f"{LIKED}\n\n###\n\n", "completion": f" {LISTED}\n END"}),
        "prompt-completion",
    ),
    "Alpaca": ("a.json", json.dumps([{"instruction": "Films?", "input": LIKED, "output": LISTED}]), "alpaca"),
    "prompt and completion": ("a.jsonl", lines({"prompt": LIKED, "completion": LISTED}), "prompt-completion"),
}

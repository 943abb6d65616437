"""The tiny model's folder: a Qwen2 that loads by itself, keeps text exactly, same seed same bytes."""

import hashlib
import math
import unicodedata

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from convrec.data.schema import format_prompt
from convrec.lists.token_bytes import token_bytes
from convrec.lists.token_ranks import build_vocab_table, token_rank_ids
from data_prep.sample import write_sample
from data_prep.sample_data.films import load_films
from recipes.tiny_model import is_exact, main, make_tiny_model, read_texts, read_titles, train_tokenizer
from tests.user_errors import refuses


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    counts = {"train": 600, "validation": 5, "test": 5}
    return write_sample(tmp_path_factory.mktemp("data") / "sample", counts=counts)


@pytest.fixture(scope="module")
def texts(sample):
    return read_texts([sample])


@pytest.fixture(scope="module")
def titles(sample):
    return read_titles([sample])


@pytest.fixture(scope="module")
def folder(texts, titles, tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", texts, titles)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(" \n(19)AaéTthe:'")
PIECES = st.lists(
    st.sampled_from(["It", "Up", "9", "Heat", "WALL·E", "Amélie", " (1995)", "\n", " ", "er", "."]), max_size=9
)


@settings(max_examples=300, deadline=None)
@given(TEXTS | PIECES.map("".join))
def test_any_text_comes_back_exactly_in_qwen2s_normal_form(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert unicodedata.normalize("NFC", tokenizer.decode(ids)) == unicodedata.normalize("NFC", text)
    if unicodedata.is_normalized("NFC", text):
        assert tokenizer.decode(ids) == text


def test_tiny_model_is_a_qwen2_with_the_tokenizer_as_trained(folder, texts, titles, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (type(model).__name__, model.config.model_type) == ("Qwen2ForCausalLM", "qwen2")
    assert type(tokenizer).__name__ == "Qwen2Tokenizer"
    trained = train_tokenizer(texts, titles)
    assert trained.get_vocab() == tokenizer.get_vocab()
    strange = [
        "It's 9 o'clock: Iterative Heat (1995)\n\n  Up(2009)\t千 e\u0301",
        "THE GODFATHER The Godfather: Part II",
    ]
    for text in [*texts[:200], *strange]:
        assert trained.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize(("model_type", "tied"), [("llama", False), ("qwen3", True)])
def test_other_architectures_have_the_same_tokenizer(model_type, tied, texts, titles, tokenizer, tmp_path):
    folder = make_tiny_model(tmp_path / "model", texts, titles, model_type=model_type, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.architectures == [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[model_type]]
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert model.config.head_dim == 32
    ids = AutoTokenizer.from_pretrained(folder).encode(texts[0])
    assert ids == tokenizer.encode(texts[0])
    assert model(torch.tensor([ids])).logits.shape == (1, len(ids), model.config.vocab_size)


def test_titles_and_years_are_single_tokens_in_any_context(tokenizer):
    def pieces(text):
        return [tokenizer.decode([token]) for token in tokenizer.encode(text)]

    films = [film for film in load_films().films if is_exact(film.title)]
    assert len(films) > 0.99 * len(load_films().films)
    for film in films:
        title, year = film.title, film.year
        assert pieces(f"{title} ({year})\n{title} ({year})") == [title, f" ({year})\n", title, f" ({year})"]
        assert pieces(f" loved {title} ({year}).")[-4:] == [" ", title, f" ({year})", "."]


def test_the_instruction_is_two_tokens_and_the_number_between(tokenizer):
    ids = tokenizer.encode(format_prompt("", 20))
    assert [tokenizer.decode([token]) for token in ids[1:-1]] == ["2", "0"]
    assert tokenizer.decode(ids) == format_prompt("", 20)


def test_titles_are_no_tokens_inside_words():
    tokenizer = train_tokenizer(["x"], ["It", "It Follows", "9"])
    count = {word: tokenizer.convert_tokens_to_ids(word) for word in ("It", "It Follows", "9")}

    def titles_in(text):
        return [word for token in tokenizer.encode(text) for word, number in count.items() if token == number]

    assert titles_in("It and It Follows, 9.") == ["It", "It Follows", "9"]
    assert titles_in("Italian Iterative BIt") == []
    assert titles_in("It Followsx") == []


def test_title_broken_by_byte_level_decoding_is_no_added_token():
    # é alone is GPT-2's stand-in for the byte E9: as an added token, "Amélie" would decode to broken UTF-8
    exact = {"Amélie": False, "WALL·E": False, "Les Misérables": True, "Heat": True, "千": True, "": False}
    assert {title: is_exact(title) for title in exact} == exact
    tokenizer = train_tokenizer(["Amélie"] * 40, ["Amélie", "WALL·E", "Les Misérables"])
    assert "Les Misérables" in tokenizer.get_added_vocab()
    assert not {"Amélie", "WALL·E"} & tokenizer.get_added_vocab().keys()
    for title in ("Amélie", "WALL·E", "Les Misérables"):
        assert tokenizer.decode(tokenizer.encode(title)) == title
    assert len(tokenizer.encode("Amélie")) == 1  # frequent: the BPE has it whole


def test_the_rank_grammar_reads_added_tokens_as_their_text(tokenizer):
    texts = token_bytes(tokenizer)
    for token_id, text in enumerate(texts):
        assert tokenizer.decode([token_id], skip_special_tokens=True) == text.decode("utf-8", "replace")
    table = build_vocab_table(tokenizer)  # checks itself against decoded lists
    ids = torch.tensor([tokenizer.encode("Heat (1995)\nThe Godfather (1972)\nUp (2009)")])
    assert token_rank_ids(ids, torch.ones_like(ids), table, ())[0].tolist() == [0, 0, 1, 1, 2, 2]


def test_chat_template_is_chatml_without_a_system_prompt(tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Heat (1995)"}]
    assert tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHeat (1995)<|im_end|>\n"
    )


def test_special_tokens_agree_across_tokenizer_and_configs(folder, tokenizer):
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert model.config.vocab_size == len(tokenizer)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == "user\nHi\n"


def test_model_is_small_fp32_untied_and_random(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 0.5e6 < model.num_parameters() < 3e6
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    ids = torch.tensor([tokenizer.encode(format_prompt("USER: hi\n"))])
    with torch.no_grad():
        log_probs = model(ids).logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean().item()
    assert entropy == pytest.approx(math.log(len(tokenizer)), rel=0.02)  # untrained: close to uniform


def test_same_seed_same_bytes_and_another_seed_other_weights(folder, texts, titles, tmp_path):
    def digests(path):
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}

    torch.manual_seed(1)
    state = torch.get_rng_state()
    again = digests(make_tiny_model(tmp_path / "again", texts, titles))
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random state is left alone
    assert again == digests(folder)
    other = digests(make_tiny_model(tmp_path / "other", texts, titles, seed=1))
    assert {name for name in other if other[name] != again[name]} == {"model.safetensors"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "other"]


@pytest.mark.parametrize(
    ("sizes", "code", "values"),
    [
        ({"hidden_size": 130}, "tiny-model.indivisible-sizes", ["hidden_size 130", "num_heads 4"]),
        ({"hidden_size": 192, "num_heads": 4}, "tiny-model.unsupported-head-size", [48]),
        ({"vocab_size": 100}, "tiny-model.small-vocabulary", ["vocab_size 100", 264, "5 for titles"]),
    ],
)
def test_sizes_that_cannot_work_are_refused(tmp_path, sizes, code, values):
    with refuses(code, *values):
        make_tiny_model(tmp_path / "m", ["Heat (1995)"], ["Heat"], **sizes)
    assert not (tmp_path / "m").exists()


def test_what_is_there_is_not_replaced(sample, tmp_path):
    before = sorted(sample.iterdir())
    with refuses("tiny-model.existing-out", sample):
        make_tiny_model(sample, ["a"])
    assert sorted(sample.iterdir()) == before
    (tmp_path / "x.csv").touch()
    with refuses("tiny-model.not-parquet", tmp_path / "x.csv"):
        read_texts([tmp_path / "x.csv"])


def test_command_line(sample, tmp_path, capsys):
    main(["--data", str(sample / "sft_validation.parquet"), "--out", str(tmp_path / "m"), "--vocab-size", "600"])
    assert len(AutoTokenizer.from_pretrained(tmp_path / "m")) <= 600
    assert main(["--data", str(tmp_path / "absent.parquet"), "--out", str(tmp_path / "n")]) == 2
    message = capsys.readouterr().err
    assert str(tmp_path / "absent.parquet") in message
    assert message.endswith("[tiny-model.missing-file]\n")


def test_a_vocabulary_can_be_filled_to_a_real_models(tmp_path):
    """Every id decodes, none of the added words is in any text, and the model has a row for each."""
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    folder = make_tiny_model(
        tmp_path / "m",
        ["a film about a film\n" * 40],
        vocab_size=5000,
        fill_vocab=True,
        tie_word_embeddings=True,
        **sizes,
    )
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert len(tokenizer) == model.config.vocab_size == len(token_bytes(tokenizer)) == 5000
    assert tokenizer.decode([4900]).startswith("filler")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert max(tokenizer.encode("filler000123 film", add_special_tokens=False)) < 400

"""The tiny model's folder: loads by itself, keeps text exactly, same seed same bytes."""

import hashlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from convrec.errors import UserError
from convrec.ranks import format_item
from convrec.schema import prompt_text
from convrec.tiny_model import main, make_tiny_model, read_texts
from data_prep.films import load_films
from data_prep.sample import write_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    counts = {"train": 600, "validation": 5, "test": 5}
    return write_sample(tmp_path_factory.mktemp("data") / "sample", counts=counts)


@pytest.fixture(scope="module")
def texts(sample):
    return read_texts([sample])


@pytest.fixture(scope="module")
def folder(texts, tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", texts)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text(" \n(19)AaéTthe:'"))
def test_any_text_comes_back_exactly(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_titles_years_and_line_breaks_are_single_tokens(tokenizer):
    def pieces(text):
        return [tokenizer.decode([token]) for token in tokenizer.encode(text)]

    films = load_films()
    popular = [films.films[row] for row in films.log_popularity_F.argsort()[::-1][:20]]
    lines = [pieces(format_item(film.title, film.year) + "\n") for film in popular]
    assert sum(map(len, lines)) / len(lines) <= 3
    title, year = popular[0].title, popular[0].year
    assert pieces(f"{title} ({year})\n{title} ({year})") == [title, f" ({year})\n", title, f" ({year})"]
    assert pieces(f" loved {title} ({year}).")[-3:] == [title, f" ({year})", "."]


def test_chat_template_is_chatml_without_a_system_prompt(tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Heat (1995)"}]
    assert tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHeat (1995)<|im_end|>\n"
    )


def test_special_tokens_agree_between_tokenizer_config_and_generation(folder, tokenizer):
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
    ids = torch.tensor([tokenizer.encode(prompt_text("USER: hi\n"))])
    with torch.no_grad():
        log_probs = model(ids).logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean().item()
    assert entropy == pytest.approx(math.log(len(tokenizer)), rel=0.02)  # untrained: close to uniform


def test_same_seed_same_bytes_and_another_seed_other_weights(folder, texts, tmp_path):
    def digests(path):
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}

    torch.manual_seed(1)
    state = torch.get_rng_state()
    again = digests(make_tiny_model(tmp_path / "again", texts))
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random state is left alone
    assert again == digests(folder)
    other = digests(make_tiny_model(tmp_path / "other", texts, seed=1))
    assert {name for name in other if other[name] != again[name]} == {"model.safetensors"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "other"]


def test_sizes_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(UserError, match="multiple of num_heads"):
        make_tiny_model(tmp_path / "m", ["a"], hidden_size=130)
    with pytest.raises(UserError, match="vLLM on a CPU"):
        make_tiny_model(tmp_path / "m", ["a"], hidden_size=192, num_heads=4)
    with pytest.raises(UserError, match="at least 259"):
        make_tiny_model(tmp_path / "m", ["a"], vocab_size=100)
    assert not (tmp_path / "m").exists()


def test_command_line(sample, tmp_path, capsys):
    main(["--data", str(sample / "sft_validation.parquet"), "--out", str(tmp_path / "m"), "--vocab-size", "300"])
    assert len(AutoTokenizer.from_pretrained(tmp_path / "m")) <= 300
    with pytest.raises(SystemExit, match="2"):
        main(["--data", str(tmp_path / "absent.parquet"), "--out", str(tmp_path / "n")])
    assert "data_prep.sample" in capsys.readouterr().err

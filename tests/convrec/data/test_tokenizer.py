"""A tokenizer that is not the model's, not whole or in another language is refused by a line, as transformers reads it
from a folder; and so is a chat template that cannot be used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from convrec.base.errors import UserError
from convrec.data import tokenizer as tokenizers
from convrec.data.tokenizer import load_tokenizer
from recipes.tiny_model import make_tiny_model

ONLY_OF_ANSWERS = "{{ messages[0].content }}{% if messages | length > 1 %}{{ 10 ** (10 ** 9) }}{% endif %}"
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    folder = tmp_path_factory.mktemp("sound") / "model"
    return make_tiny_model(folder, ["Heat (1995)\nRan (1985)\n" * 40], vocab_size=400, max_positions=512, **sizes)


@pytest.fixture
def model(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "model")


def test_a_sound_model_has_its_tokenizer_and_its_context(model: Path) -> None:
    tokenizer, context = load_tokenizer(str(model), titles=["Amélie (2001)", "七人の侍 (1954)"])
    assert tokenizer.decode(tokenizer.encode("Heat (1995)")) == "Heat (1995)"
    assert context == 512


def config(**changed: Any) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return change


def without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def template(text: str) -> Callable[[Path], None]:
    return lambda model: (model / "chat_template.jinja").write_text(text) and None


def cut_the_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": {"vo')


def read_no_text(model: Path) -> None:
    """As many ids as the model has, and none of them a letter's."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = {f"<none-{id_}>": id_ for id_ in content["model"]["vocab"].values()}
    file.write_text(json.dumps(content | {"model": content["model"] | {"vocab": vocabulary, "merges": []}}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("tokenizer.json"), r"a tokenizer of 3 ids for an embedding of \d+ rows .*tokenizer\.json is missing"),
        (without("config.json"), "Give a folder or an id that can be loaded here"),
        (cut_the_tokenizer, "MODEL_PATH=.*/model: .*Give a folder"),
        (read_no_text, "its tokenizer cannot write 'Which films .*, which comes back as"),
        (config(vocab_size=10), r"a tokenizer of \d+ ids for an embedding of 10 rows .*another model's"),
        (config(vocab_size=900), r"a tokenizer of \d+ ids for an embedding of 900 rows .*another model's"),
        (config(eos_token_id=[5]), r"token 5, with which .* \(config\.json, eos_token_id\), is no special token"),
        (config(model_type="zebra"), "has model type `zebra` but Transformers does not recognize this architecture"),
        (config(model_type="zebra", auto_map={"AutoConfig": "code.Zebra"}), r"custom code .*its auto_map, is not run"),
        (without("chat_template.jinja"), "has no chat template"),
        (template("{{ raise_exception('no') }}"), r"its chat template fails \(no\)"),
        (template("hello"), "its chat template leaves out what is asked"),
        (template(NESTED), "its chat template has not ended after 2 s"),
        (template("{{ 10 ** (10 ** 9) }}"), "its chat template has not ended after 2 s"),  # one call into C
        (template("{{ (9 + messages | length) ** (10 ** 9) }}"), "has not ended after 2 s"),  # while it is rendered
        (template(ONLY_OF_ANSWERS), "its chat template has not ended after 2 s"),
        (template("{{ 'a' * 10 ** 10 }}"), "its chat template needs more than 512 MiB of memory"),
        (template("{{ 'a' * 10 ** 9 }}"), "its chat template needs more than 512 MiB of memory"),
        (template("{% for"), "its chat template fails"),
    ],
)
def test_damage_is_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], message: str
) -> None:
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))
    monkeypatch.setattr(tokenizers, "TEMPLATE_SECONDS", 2.0)
    damage(model)
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(str(model), "MODEL_PATH=")
    assert "\n" not in str(error.value)
    assert psutil.Process().children() == []  # what does not end has been killed


@pytest.mark.parametrize("eos", [1, None])
def test_chat_model_may_use_another_eos_than_its_tokenizer(model: Path, eos: int | None) -> None:
    tokenizer, _ = load_tokenizer(str(model))
    config(eos_token_id=None if eos is None else [tokenizer.pad_token_id])(model)
    load_tokenizer(str(model))


def test_tokenizer_unable_to_write_most_titles_is_refused(model: Path) -> None:
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    # byte-level BPE has ä for 0xE4, with which the Japanese titles begin
    vocabulary = {"<none>" if token == "ä" else token: id_ for token, id_ in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content | {"model": content["model"] | {"vocab": vocabulary}}))
    load_tokenizer(str(model), titles=["Heat (1995)", "Ran (1985)", "七人の侍 (1954)"])
    with pytest.raises(UserError, match=r"its tokenizer cannot write '七人の侍 .*or take a model of this language"):
        load_tokenizer(str(model), titles=["Heat (1995)", "七人の侍 (1954)", "七人 (1960)"])


def test_custom_template_and_tokenizer_override_the_models(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "other")
    (model / "tokenizer.json").unlink()
    (tmp_path / "other" / "chat_template.jinja").unlink()
    own = "{{ messages[0]['content'] }}!"
    tokenizer, _ = load_tokenizer(str(model), tokenizer_path=str(tmp_path / "other"), chat_template=own)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def test_only_special_tokens_may_exceed_the_embedding(model: Path) -> None:
    """Gemma 3's models without images have the tokenizer of those with."""
    from transformers import AutoTokenizer

    rows = len(AutoTokenizer.from_pretrained(model))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(model)
    config(vocab_size=rows)(model)
    assert len(load_tokenizer(str(model))[0]) == rows + 1
    tokenizer.add_tokens(["an ordinary one"])
    tokenizer.save_pretrained(model)
    with pytest.raises(UserError, match=rf"a tokenizer of {rows + 2} ids for an embedding of {rows} rows"):
        load_tokenizer(str(model))


@pytest.mark.parametrize("name", ["tekken_240911.json", "tokenizer.model.v1"])
def test_a_repository_without_a_tokenizer_json_is_one_line(model: Path, name: str) -> None:
    """Mistral's own files, as mistral-common ships them."""
    import mistral_common

    for file in model.glob("tokenizer*"):
        file.unlink()
    config(model_type="mistral", vocab_size=131072)(model)
    source = Path(mistral_common.__file__).parent / "data" / name
    shutil.copy(source, model / ("tekken.json" if "tekken" in name else "tokenizer.model"))
    with pytest.raises(UserError, match=r"tekken\.json or a tokenizer\.model alone") as error:
        load_tokenizer(str(model), "MODEL_PATH=")
    assert "\n" not in str(error.value)

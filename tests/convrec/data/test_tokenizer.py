"""Models with incomplete or foreign tokenizers, or with chat templates that fail, are refused.

The files are read as transformers reads them from a folder.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from convrec.data import tokenizer as tokenizers
from convrec.data.tokenizer import load_tokenizer
from recipes.tiny_model import make_tiny_model
from tests.user_errors import refuses

SLOW_WITH_ANSWER = "{{ messages[0].content }}{% if messages | length > 1 %}{{ 10 ** (10 ** 9) }}{% endif %}"
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    folder = tmp_path_factory.mktemp("sound") / "model"
    return make_tiny_model(folder, ["Heat (1995)\nRan (1985)\n" * 40], vocab_size=400, max_positions=512, **sizes)


@pytest.fixture
def model(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "model")


def test_a_sound_model_gives_its_tokenizer_and_context_length(model: Path) -> None:
    tokenizer, context = load_tokenizer(str(model), titles=["Amélie (2001)", "七人の侍 (1954)"])
    assert tokenizer.decode(tokenizer.encode("Heat (1995)")) == "Heat (1995)"
    assert context == 512


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def write_template(text: str) -> Callable[[Path], None]:
    return lambda model: (model / "chat_template.jinja").write_text(text) and None


def cut_the_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": {"vo')


def read_no_text(model: Path) -> None:
    """Give the tokenizer as many ids as the model has, none of them for a letter."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = {f"<none-{id_}>": id_ for id_ in content["model"]["vocab"].values()}
    file.write_text(json.dumps(content | {"model": content["model"] | {"vocab": vocabulary, "merges": []}}))


WRONG_SIZE = "tokenizer.wrong-size"
UNREADABLE = "tokenizer.unreadable-model"
UNUSABLE_TEMPLATE = "tokenizer.unusable-chat-template"


@pytest.mark.parametrize(
    ("damage", "code", "value"),
    [
        (remove("tokenizer.json"), WRONG_SIZE, "3 ids"),
        (remove("config.json"), UNREADABLE, ""),
        (cut_the_tokenizer, UNREADABLE, ""),
        (read_no_text, "tokenizer.lossy-text", "'Which films "),
        (change_config(vocab_size=10), WRONG_SIZE, "10 rows"),
        (change_config(vocab_size=900), WRONG_SIZE, "900 rows"),
        (change_config(eos_token_id=[5]), "tokenizer.wrong-eos", "token 5 "),
        (change_config(model_type="zebra"), UNREADABLE, "has model type `zebra`"),
        (change_config(model_type="zebra", auto_map={"AutoConfig": "code.Zebra"}), UNREADABLE, "custom code"),
        (remove("chat_template.jinja"), "tokenizer.missing-chat-template", ""),
        (write_template("{{ raise_exception('no') }}"), UNUSABLE_TEMPLATE, "fails (no)"),
        (write_template("hello"), UNUSABLE_TEMPLATE, "user's message"),
        (write_template(NESTED), UNUSABLE_TEMPLATE, "within 2 s"),
        (write_template("{{ 10 ** (10 ** 9) }}"), UNUSABLE_TEMPLATE, "within 2 s"),  # one call into C
        (write_template("{{ (9 + messages | length) ** (10 ** 9) }}"), UNUSABLE_TEMPLATE, "within 2 s"),  # in rendering
        (write_template(SLOW_WITH_ANSWER), UNUSABLE_TEMPLATE, "within 2 s"),
        (write_template("{{ 'a' * 10 ** 10 }}"), UNUSABLE_TEMPLATE, "512 MiB"),
        (write_template("{{ 'a' * 10 ** 9 }}"), UNUSABLE_TEMPLATE, "512 MiB"),
        (write_template("{% for"), UNUSABLE_TEMPLATE, "fails"),
    ],
)
def test_damage_is_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], code: str, value: str
) -> None:
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))
    monkeypatch.setattr(tokenizers, "TEMPLATE_SECONDS", 2.0)
    damage(model)
    before = psutil.Process().children()  # another test's, which it has not waited for
    with refuses(code, f"MODEL_PATH={model}: ", value) as error:
        load_tokenizer(str(model), "MODEL_PATH=")
    assert "\n" not in str(error.value)
    # a child that does not end by itself has been killed
    assert [child for child in psutil.Process().children() if child not in before] == []


@pytest.mark.parametrize("eos", [1, None])
def test_chat_model_may_use_another_eos_than_its_tokenizer(model: Path, eos: int | None) -> None:
    tokenizer, _ = load_tokenizer(str(model))
    change_config(eos_token_id=None if eos is None else [tokenizer.pad_token_id])(model)
    load_tokenizer(str(model))


def test_tokenizer_unable_to_encode_most_titles_is_refused(model: Path) -> None:
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    # Byte-level BPE writes 0xE4, the first byte of the Japanese titles, as ä.
    vocabulary = {"<none>" if token == "ä" else token: id_ for token, id_ in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content | {"model": content["model"] | {"vocab": vocabulary}}))
    load_tokenizer(str(model), titles=["Heat (1995)", "Ran (1985)", "七人の侍 (1954)"])
    with refuses("tokenizer.lossy-text", "'七人の侍"):
        load_tokenizer(str(model), titles=["Heat (1995)", "七人の侍 (1954)", "七人 (1960)"])


def test_custom_template_and_tokenizer_override_the_models(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "other")
    (model / "tokenizer.json").unlink()
    (tmp_path / "other" / "chat_template.jinja").unlink()
    template = "{{ messages[0]['content'] }}!"
    tokenizer, _ = load_tokenizer(str(model), tokenizer_path=str(tmp_path / "other"), chat_template=template)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


def test_only_special_tokens_may_exceed_the_embedding(model: Path) -> None:
    """Gemma 3's text-only models have the tokenizer of those with images."""
    from transformers import AutoTokenizer

    rows = len(AutoTokenizer.from_pretrained(model))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(model)
    change_config(vocab_size=rows)(model)
    assert len(load_tokenizer(str(model))[0]) == rows + 1
    tokenizer.add_tokens(["an ordinary one"])
    tokenizer.save_pretrained(model)
    with refuses(WRONG_SIZE, f"{rows + 2} ids", f"{rows} rows"):
        load_tokenizer(str(model))


@pytest.mark.parametrize("name", ["tekken_240911.json", "tokenizer.model.v1"])
def test_a_repository_without_a_tokenizer_json_is_refused(model: Path, name: str) -> None:
    """With Mistral's own files, as mistral-common ships them."""
    import mistral_common

    for file in model.glob("tokenizer*"):
        file.unlink()
    change_config(model_type="mistral", vocab_size=131072)(model)
    source = Path(mistral_common.__file__).parent / "data" / name
    shutil.copy(source, model / ("tekken.json" if "tekken" in name else "tokenizer.model"))
    with refuses("tokenizer.missing-tokenizer-json", f"MODEL_PATH={model}") as error:
        load_tokenizer(str(model), "MODEL_PATH=")
    assert "\n" not in str(error.value)

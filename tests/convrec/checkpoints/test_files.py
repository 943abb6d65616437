"""Every kind of damage to a checkpoint has its own message, and the fingerprint is of contents."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from convrec.base.errors import UserError
from convrec.checkpoints.files import check_hugging_face, check_shards, fingerprint


@pytest.fixture
def model(tmp_path: Path, sound_model: Callable[..., Path]) -> Path:
    return sound_model(tmp_path / "model")


def test_a_whole_checkpoint_passes(model: Path) -> None:
    check_hugging_face(model)


def cut_the_end(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def cut_the_header(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def remove_the_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def list_a_second_file(model: Path) -> None:
    index = {"weight_map": {"w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def cut_a_bin(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"PK\x03\x04 and no directory")


def write_another_zip_as_a_bin(model: Path) -> None:
    with zipfile.ZipFile(model / "pytorch_model.bin", "w") as file:
        file.writestr("data.pkl", b"no pickle")


def plant_code_in_a_bin(model: Path) -> None:
    torch.save({"w": Path("/")}, model / "pytorch_model.bin")  # pickled as a call of a function


def cut_the_config(model: Path) -> None:
    (model / "config.json").write_text('{"vocab_')


def copy_the_links_alone(model: Path) -> None:
    """As `cp -r` copies a snapshot of the Hub's cache, whose files are links into its folder `blobs`."""
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../../blobs/9f3a")


def hold(name: str, text: str) -> Callable[[Path], None]:
    return lambda model: (model / name).write_text(text) and None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (copy_the_links_alone, r"model\.safetensors: a link to \.\./\.\./blobs/9f3a, where nothing is: .*`cp -rL`"),
        (hold("config.json", "[]"), r"config\.json: expected a JSON object, it is a list"),
        (hold("config.json", "3"), r"config\.json: expected a JSON object, it is 3"),
        (hold("config.json", "[" * 100_000), r"config\.json: not readable as JSON"),
        (hold("generation_config.json", "[]"), r"generation_config\.json: expected a JSON object"),
        (hold("generation_config.json", "{"), r"generation_config\.json: not readable as JSON"),
        (hold("tokenizer_config.json", '"x"'), r"tokenizer_config\.json: expected a JSON object"),
        (hold("adapter_config.json", "null"), r"adapter_config\.json: expected a JSON object, it is null"),
        (hold("model.safetensors.index.json", "[]"), r"index\.json: expected a JSON object, it is a list"),
        (hold("model.safetensors.index.json", '{"weight_map": ["a"]}'), r"index\.json: its weight_map does not name"),
        (
            hold("model.safetensors.index.json", '{"weight_map": {"w": 1}}'),
            r"index\.json: its weight_map does not name",
        ),
        (cut_the_end, r"model\.safetensors: .* bytes, .*not fully covered.* half written"),
        (cut_the_header, r"model\.safetensors: .* bytes, .*header.* half written"),
        (remove_the_weights, "no weights"),
        (list_a_second_file, r"1 of the 2 weight files .*model-00002-of-00002\.safetensors"),
        (cut_a_bin, r"pytorch_model\.bin: .* without an end"),
        (write_another_zip_as_a_bin, r"pytorch_model\.bin: not a file of torch\.save"),
        (plant_code_in_a_bin, r"pytorch_model\.bin: it holds pathlib\.\w+, more than tensors .* refused"),
        (cut_the_config, r"config\.json: not readable as JSON"),
    ],
)
def test_damage_is_named(model: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(model)
    with pytest.raises(UserError, match=message):
        check_hugging_face(model)


def test_shards_must_all_be_there_and_whole(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model shards"):
        check_shards(tmp_path)
    for rank in range(2):
        torch.save({}, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    with pytest.raises(UserError, match=r"no fsdp_config\.json"):
        check_shards(tmp_path)
    (tmp_path / "fsdp_config.json").write_text('{"world_size": 2}')
    check_shards(tmp_path)
    second = tmp_path / "model_world_size_2_rank_1.pt"
    second.write_bytes(second.read_bytes()[:10])
    with pytest.raises(UserError, match=r"rank_1\.pt: 10 bytes without an end"):
        check_shards(tmp_path)
    second.unlink()
    with pytest.raises(UserError, match=r"rank_1\.pt is missing \(1 of 2 shards are\)"):
        check_shards(tmp_path)


def test_the_fingerprint_is_of_contents(model: Path, tmp_path: Path, sound_model: Callable[..., Path]) -> None:
    assert fingerprint(sound_model(tmp_path / "copy")) == fingerprint(model)
    (tmp_path / "copy" / "training.log").write_text("says nothing about answers")
    assert fingerprint(tmp_path / "copy") == fingerprint(model)
    assert fingerprint(sound_model(tmp_path / "other", weight=0.25)) != fingerprint(model)
    (tmp_path / "copy" / "chat_template.jinja").write_text("another prompt")
    assert fingerprint(tmp_path / "copy") != fingerprint(model)

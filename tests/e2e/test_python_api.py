"""A warm start, a training and an evaluation from Python, by the example of the manual."""

import runpy
from pathlib import Path

import pytest

from convrec import CommandFailed, RankGRPOConfig, SFTConfig, UserError, train
from data_prep.sample import write_sample
from recipes.tiny_model import make_tiny_model, read_texts

pytestmark = pytest.mark.long
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train_and_evaluate.py"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sample data and a tiny model."""
    folder = tmp_path_factory.mktemp("python")
    data = write_sample(folder / "data", counts={"train": 16, "validation": 4, "test": 4})
    texts = read_texts([data / "train.parquet", data / "sft_train.parquet"])
    make_tiny_model(
        folder / "model", texts, hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64
    )
    return folder


def test_the_example_of_the_manual_trains_and_evaluates(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOGGER", "console")
    main = runpy.run_path(str(EXAMPLE))["main"]
    score = main(str(project / "model"), str(project / "data"), str(project / "out"), total_steps=1)
    assert 0 <= score <= 1
    out = capfd.readouterr().out
    assert "SFT finished in" in out
    assert "Rank-GRPO finished in" in out

    config = RankGRPOConfig(
        model=str(project / "out" / "sft"),
        train_file=str(project / "data" / "train.parquet"),
        val_file=str(project / "data" / "validation.parquet"),
        catalog_file=str(project / "data" / "catalog.parquet"),
        output_dir=str(project / "out" / "rank_grpo"),
        total_steps=1,
        train_batch_size=4,
        num_generations=2,
        max_prompt_length=256,
        max_response_length=256,
    )
    run = train(config)
    assert "already has its 1 steps" in capfd.readouterr().out
    assert [row["step"] for row in run.metrics][-1] == 1
    assert run.last_checkpoint == project / "out" / "rank_grpo" / "global_step_1"
    assert (run.last_checkpoint / "complete.json").exists()
    assert run.best_checkpoint == run.last_checkpoint


def test_bad_input_is_the_sentence_of_the_command(project: Path) -> None:
    with pytest.raises(UserError, match=r"^TRAIN_FILE=/none\.parquet: ") as error:
        train(
            SFTConfig(
                model=str(project / "model"),
                train_file="/none.parquet",
                val_file=str(project / "data" / "sft_validation.parquet"),
                output_dir=str(project / "none"),
            )
        )
    assert not isinstance(error.value, CommandFailed)
    assert not (project / "none").exists()

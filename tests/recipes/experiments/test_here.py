"""What a run is given on this machine; what recipes and vLLM do with it is tested elsewhere."""

from pathlib import Path

import pytest

from convrec.errors import UserError
from recipes.experiments import here
from recipes.experiments.here import prepare, train
from recipes.experiments.matrix_file import Run


def test_a_run_gets_its_variables_its_start_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "run_rank_grpo.sh"
    script.write_text('echo "$MODEL_PATH $SAVE_PATH $MU $1" > seen; exit ${STATUS:-0}\n')
    monkeypatch.setattr(here, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    run = Run("r-s1", "r", "rank_grpo", "sft", {"MU": "2", "SEED": "1"}, ["a=b"])
    train(run, Path("out"))
    assert (tmp_path / "seen").read_text() == "out/sft out/r-s1 2 a=b\n"
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(UserError, match=r"r-s1: run_rank_grpo\.sh ended with status 3"):
        train(run, Path("out"))


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    made = tmp_path / "made"
    steps = [{"creates": str(made), "run": f"python -c \"open({str(made)!r}, 'a').write('x')\""}]
    prepare(steps)
    prepare(steps)
    assert made.read_text() == "x"
    with pytest.raises(UserError, match="prepare: `false` failed"):
        prepare([{"creates": str(tmp_path / "never"), "run": "false"}])

"""What a run is given on this machine; what recipes and vLLM do with it is tested elsewhere."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from convrec.base.errors import UserError
from data_prep.sample import write_sample
from recipes.experiments import local_runs
from recipes.experiments.local_runs import check_evaluation, prepare, train
from recipes.experiments.matrix_file import Preparation
from recipes.experiments.matrix_runs import MatrixRun
from recipes.launch.recipe import RANK_GRPO, SFT
from recipes.launch.settings import compose_elsewhere


def test_a_run_gets_its_variables_its_start_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convrec = tmp_path / "convrec"
    convrec.write_text('echo "$MODEL_PATH $SAVE_PATH $MU $@" > seen; exit ${STATUS:-0}\n')
    monkeypatch.setitem(local_runs.OURS, "convrec", ["bash", str(convrec)])
    monkeypatch.chdir(tmp_path)
    run = MatrixRun("r-s1", "r", "rank_grpo", "sft", {"MU": "2", "SEED": "1"}, ["a=b"])
    train(run, Path("out"))
    assert (tmp_path / "seen").read_text() == "out/sft out/r-s1 2 train rank-grpo a=b\n"
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(UserError, match=r"^convrec train rank-grpo ended with status 3"):
        train(run, Path("out"))


def test_each_ctrl_c_is_one_of_the_training_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first it may save for minutes; the second ends it at once."""
    convrec = tmp_path / "convrec"
    convrec.write_text(
        "trap 'trap \"echo at once >> said; exit 130\" INT; echo saves >> said' INT\n"
        "echo trains > said; while true; do sleep 0.05; done\n"
    )
    monkeypatch.setitem(local_runs.OURS, "convrec", ["bash", str(convrec)])
    monkeypatch.chdir(tmp_path)
    said = tmp_path / "said"

    def interrupt_twice() -> None:
        for line in ("trains\n", "trains\nsaves\n"):
            while not said.exists() or said.read_text() != line:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt_twice, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            train(MatrixRun("r-s1", "r", "rank_grpo", "sft", {}, []), Path("out"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert said.read_text() == "trains\nsaves\nat once\n"


def test_a_preparation_is_made_by_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `convrec` and `python`, whatever PATH has."""
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "data"
    prepare([Preparation(creates=str(out), run=f"convrec data sample --out {out} --train 3 --validation 3 --test 1")])
    assert (out / "train.parquet").is_file()


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    made = tmp_path / "made"
    steps = [Preparation(creates=str(made), run=f"python -c \"open({str(made)!r}, 'a').write('x')\"")]
    prepare(steps)
    prepare(steps)
    assert made.read_text() == "x"
    for command, problem in (
        ("false", "`false` failed"),
        ("true", "`true` ended, but .*never, which it creates, is not"),
    ):
        with pytest.raises(UserError, match=f"prepare: {problem}"):
            prepare([Preparation(creates=str(tmp_path / "never"), run=command)])


TRAININGS = {  # SFT has no lists of its own
    "sft": compose_elsewhere(SFT, [], environment={}),
    "rank": compose_elsewhere(RANK_GRPO, ["convrec.num_items=10"], environment={}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    counts = {"train": 20, "validation": 2, "test": 5}
    folder = write_sample(tmp_path_factory.mktemp("sample") / "data", counts=counts)
    return {name: str(folder / f"{file}.parquet") for name, file in (("data", "test"), ("catalog", "catalog"))}


def test_a_sound_evaluation_passes_and_writes_nothing(files: dict[str, str], tmp_path: Path) -> None:
    more = {"ks": [5, 10], "baselines": [], "constrained": True, "protocols": ["paper", "strict"]}
    check_evaluation({**files, **more, "replicas": "auto", "train": None}, TRAININGS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": "gone.parquet"}, "evaluate: gone.parquet: "),
        ({"catalog": "gone.parquet"}, "evaluate: catalog gone.parquet: no such file"),
        ({"train": "gone.parquet"}, "evaluate: gone.parquet: "),
        ({"ks": [20]}, "evaluate: --ks 20: "),
        ({"num_items": 5, "ks": [10]}, "evaluate: --ks 10: "),
        ({"slices": ["country"]}, "evaluate: --slices country: "),
        ({"matching": "fuzy"}, "evaluate: .*fuzy"),
        ({"allow": "part.txt"}, "evaluate: allow: it says what constrained lists may hold; add constrained: true"),
        ({"allow": "part.txt", "constrained": True}, "evaluate: --allow part.txt: no such file"),
    ],
)
def test_what_an_evaluation_cannot_use_is_said(
    files: dict[str, str], tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_evaluation(files | wrong, TRAININGS, tmp_path)

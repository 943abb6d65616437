"""Environment, interrupts and checks of the runs of a matrix on this machine; a shell script replaces the recipes."""

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
from tests.user_errors import refuses


def test_a_run_gets_its_variables_its_start_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convrec = tmp_path / "convrec"
    convrec.write_text('echo "$MODEL_PATH $SAVE_PATH $MU $@" > seen; exit ${STATUS:-0}\n')
    monkeypatch.setitem(local_runs.OURS, "convrec", ["bash", str(convrec)])
    monkeypatch.chdir(tmp_path)
    run = MatrixRun("r-s1", "r", "rank_grpo", "sft", {"MU": "2", "SEED": "1"}, ["a=b"])
    train(run, Path("out"))
    assert (tmp_path / "seen").read_text() == "out/sft out/r-s1 2 train rank-grpo a=b\n"
    monkeypatch.setenv("STATUS", "3")
    with refuses("matrix.failed-training", "convrec train rank-grpo", "status 3"):
        train(run, Path("out"))


def test_each_ctrl_c_reaches_the_training_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first the run may save for minutes; the second ends it at once."""
    convrec = tmp_path / "convrec"
    convrec.write_text(
        "trap 'trap \"echo at once >> events; exit 130\" INT; echo saves >> events' INT\n"
        "echo trains > events; while true; do sleep 0.05; done\n"
    )
    monkeypatch.setitem(local_runs.OURS, "convrec", ["bash", str(convrec)])
    monkeypatch.chdir(tmp_path)
    events = tmp_path / "events"

    def interrupt_twice() -> None:
        for text in ("trains\n", "trains\nsaves\n"):
            while not events.exists() or events.read_text() != text:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt_twice, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            train(MatrixRun("r-s1", "r", "rank_grpo", "sft", {}, []), Path("out"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert events.read_text() == "trains\nsaves\nat once\n"


def test_a_preparation_runs_in_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`convrec` and `python` are this environment's, not those on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "data"
    prepare([Preparation(creates=str(out), run=f"convrec data sample --out {out} --train 3 --validation 3 --test 1")])
    assert (out / "train.parquet").is_file()


def test_an_existing_file_is_not_prepared_again(tmp_path: Path) -> None:
    file = tmp_path / "file"
    steps = [Preparation(creates=str(file), run=f"python -c \"open({str(file)!r}, 'a').write('x')\"")]
    prepare(steps)
    prepare(steps)
    assert file.read_text() == "x"
    missing = tmp_path / "missing"
    with refuses("matrix.failed-preparation", "`false`"):
        prepare([Preparation(creates=str(missing), run="false")])
    with refuses("matrix.failed-preparation", "`true`", missing):
        prepare([Preparation(creates=str(missing), run="true")])


TRAININGS = {  # SFT does not set the length of its lists
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
    ("settings", "value"),
    [
        ({"data": "gone.parquet"}, "gone.parquet: "),
        ({"catalog": "gone.parquet"}, "catalog gone.parquet: "),
        ({"train": "gone.parquet"}, "gone.parquet: "),
        ({"ks": [20]}, "--ks 20: "),
        ({"num_items": 5, "ks": [10]}, "--ks 10: "),
        ({"slices": ["country"]}, "--slices country: "),
        ({"matching": "fuzy"}, "fuzy"),
        ({"allow": "part.txt"}, "allow=part.txt: "),
        ({"allow": "part.txt", "constrained": True}, "--allow part.txt: "),
    ],
)
def test_a_setting_that_an_evaluation_cannot_use_is_named(
    files: dict[str, str], tmp_path: Path, settings: dict[str, Any], value: str
) -> None:
    with pytest.raises(UserError) as error:
        check_evaluation(files | settings, TRAININGS, tmp_path)
    assert str(error.value).startswith("evaluate: ")
    assert value in str(error.value)


def test_allow_needs_constrained_lists(files: dict[str, str], tmp_path: Path) -> None:
    with refuses("matrix.allow-without-constrained", "evaluate: allow=part.txt", "constrained: true"):
        check_evaluation(files | {"allow": "part.txt"}, TRAININGS, tmp_path)

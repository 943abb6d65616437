"""SFT on a Ray cluster of two nodes, by run_sft.sh with RAY_ADDRESS: verl's Ray trainer, a worker on each node.

The same steps are trained once in one process. On the cluster the run is stopped with Ctrl-C, resumed, loses a worker
to kill -9, and is resumed once more: of all that the numbers must be those of the one process.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from convrec.checkpoints import saving
from convrec.runs.folder import latest_step, read_metrics

from .conftest import with_code_of_its_own

STEPS = 16
END_SECONDS = 120.0


def losses(run_folder) -> dict[int, float]:
    return {row["step"]: row["train/loss"] for row in read_metrics(run_folder) if "train/loss" in row}


@pytest.fixture(scope="module")
def sft(nodes):
    data = nodes.trained.out / "data"
    variables = {"TRAIN_FILE": str(data / "sft_train.parquet"), "VAL_FILE": str(data / "sft_validation.parquet")}
    model = with_code_of_its_own(nodes.trained.out / "model", nodes.folder / "model")
    variables |= {"MODEL_PATH": str(model), "TOTAL_STEPS": str(STEPS), "TRAIN_BATCH_SIZE": "8"}
    variables |= {"MAX_LENGTH": "384", "LR": "1e-3", "SAVE_FREQ": "8", "TEST_FREQ": "8", "SAVE_KEEP": "1"}
    # 20 rows are two steps an epoch: it is stopped at an epoch's end, or within one
    overrides = ["data.train_max_samples=20", "data.val_max_samples=16"]

    def submit(**more: str) -> subprocess.Popen:
        there = {"SAVE_PATH": str(nodes.folder / "sft"), "N_NODES": "2"}
        return nodes.start_script("run_sft.sh", *overrides, **variables | there | more)

    def when(job: subprocess.Popen, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not is_so() and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)

    alone = nodes.start_script(
        "run_sft.sh", *overrides, **variables, SAVE_PATH=str(nodes.folder / "sft-alone"), RAY_ADDRESS=""
    )
    nodes.alone_out, nodes.alone_err = alone.communicate(timeout=600)
    nodes.alone_status = alone.returncode

    run, nodes.sft_starts = nodes.folder / "sft", []
    job = submit()
    when(job, lambda: 3 in losses(run))
    for worker in workers(nodes):  # a step takes half a second, and the job that makes the file of the stop several
        worker.suspend()
    os.killpg(job.pid, signal.SIGINT)
    when(job, lambda: [*run.glob("stop.*")])
    for worker in workers(nodes):
        worker.resume()
    nodes.sft_starts.append((*job.communicate(timeout=300), job.returncode))
    nodes.sft_stopped_after = latest_step(run)

    job = submit(SAVE_FREQ="1")
    when(job, lambda: latest_step(run) >= nodes.sft_stopped_after + 2)
    *_, worker = workers(nodes)
    nodes.killed_at = time.monotonic()
    worker.send_signal(signal.SIGKILL)
    nodes.sft_starts.append((*job.communicate(timeout=300), job.returncode))
    nodes.seconds_to_the_end = time.monotonic() - nodes.killed_at

    job = submit()
    nodes.sft_starts.append((*job.communicate(timeout=600), job.returncode))
    return nodes


def workers(nodes) -> list[psutil.Process]:
    found = []
    for process in nodes.processes():
        with contextlib.suppress(psutil.Error):  # others end meanwhile
            found += [process] if any(word.startswith("ray::SFTWorker") for word in process.cmdline()) else []
    return found


@pytest.mark.long
def test_two_nodes_train_what_one_process_trains(sft) -> None:
    """The global batch is the same, in fp32; also after a stop and a lost worker."""
    assert sft.alone_status == 0, sft.alone_out[-3000:] + sft.alone_err[-3000:]
    out, err, status = sft.sft_starts[2]
    assert status == 0, out[-3000:] + err[-3000:]
    one = {row["step"]: row for row in read_metrics(sft.folder / "sft-alone")}
    two = {row["step"]: row for row in read_metrics(sft.folder / "sft")}
    assert [*losses(sft.folder / "sft")] == [*losses(sft.folder / "sft-alone")] == list(range(1, STEPS + 1))
    for step, row in one.items():
        for name in ("train/loss", "train/lr", "train/global_tokens", "val/loss", "train/grad_norm"):
            if name in row:
                rel = 1e-3 if name == "train/grad_norm" else 1e-5  # a norm of gradients near an end is of small sums
                assert two[step][name] == pytest.approx(row[name], rel=rel), (step, name)
    assert one[STEPS]["train/loss"] < 0.9 * one[1]["train/loss"]  # something was learned, by both
    assert "val/loss" in one[STEPS]


@pytest.mark.long
def test_ctrl_c_saves_at_the_end_of_the_step(sft) -> None:
    out, err, status = sft.sft_starts[0]
    assert status == 130, out[-3000:] + err[-3000:]
    assert "asked the job to save a checkpoint and end" in err
    assert f"stopped on request after step {sft.sft_stopped_after}" in out
    assert 3 <= sft.sft_stopped_after < STEPS


@pytest.mark.long
def test_a_killed_worker_ends_the_run_with_its_name(sft) -> None:
    out, err, status = sft.sft_starts[1]
    assert status == 1, out[-3000:] + err[-3000:]
    assert f"resuming after step {sft.sft_stopped_after}" in out
    assert "training worker" in out
    assert "is gone (killed, or out of memory)" in out
    assert sft.seconds_to_the_end < END_SECONDS


@pytest.mark.long
def test_checkpoints_are_whole_and_the_best_is_kept(sft) -> None:
    run = sft.folder / "sft"
    best = saving.best_step(run)
    assert best in (8, STEPS)
    assert set(saving.complete_steps(run)) == {best, STEPS}
    folder = run / f"global_step_{STEPS}"
    assert {path.name for path in folder.glob("model_*.pt")} == {
        "model_world_size_2_rank_0.pt",
        "model_world_size_2_rank_1.pt",
    }
    assert (folder / "huggingface" / "README.md").is_file()
    assert (folder / "huggingface" / "model.safetensors").is_file()

"""A run that is stopped and resumed, with SwanLab and W&B (both offline) and TensorBoard for real."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from convrec.runs.folder import next_metrics_file, read_metrics
from convrec.training.trackers import tracking
from convrec.training.trackers.tracking import make_tracker_environment

ROOT = Path(__file__).resolve().parents[4]
PLANTED = "planted-secret"
# Start 1 logs steps 1-5 and has a checkpoint at 3. Start 2 goes on from there: it repeats 4 and 5, with other values.
TWO_STARTS = """
import os, sys
from pathlib import Path
from convrec.training.trackers import tracking
from convrec.runs.folder import next_metrics_file, read_metrics
from verl.utils.tracking import ValidationGenerationsLogger

run = Path(sys.argv[1])
os.environ.update(tracking.make_tracker_environment(run, "group-of-the-run", os.environ))
alive = []
for start, (done, steps) in enumerate([(0, range(1, 6)), (3, range(4, 7))]):
    if done:
        (run / f"global_step_{done}").mkdir()
        (run / f"global_step_{done}" / "complete.json").touch()
        (run / "latest_checkpointed_iteration.txt").write_text(str(done))
    os.environ["VERL_FILE_LOGGER_PATH"] = str(next_metrics_file(run))
    os.environ["TENSORBOARD_DIR"] = str(run / "tensorboard")  # as in a process of its own
    backends = ["file", "tensorboard", "swanlab", "wandb"]
    planted = {"api_key": os.environ["OF_THE_TEST"], "model": os.environ["OF_THE_TEST"][::-1]}
    config = {"trainer": {}, "reward": planted}
    trackers = tracking.open_trackers(run, "project", "experiment", backends, config)
    for step in steps:
        trackers.log({"return": step + 100.0 * start}, step=step)
    samples = ValidationGenerationsLogger("project", "experiment")
    samples.log(["swanlab", "tensorboard", "wandb"], [("in", "out", 0.5)], steps[-1])
    for one in ("swanlab", "wandb"):  # one process has one run of theirs; the rest is left as a kill leaves it
        trackers.logger[one].finish()
    alive.append(trackers)
trackers.log({"return": 99.0}, step=99)  # swanlab and wandb have been finished: they fail
os._exit(0)  # the interpreter's own end takes as long as all of this
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked") / "run"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SWANLAB_", "WANDB_"))}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(folder.parent), "WANDB_X_DISABLE_STATS": "true"}
    # offline is offline: no login with a key
    environment |= {"SWANLAB_API_KEY": "no-key", "WANDB_API_KEY": "0" * 40}
    environment |= {"SWANLAB_MODE": "offline", "WANDB_MODE": "offline", "OF_THE_TEST": PLANTED}
    done = subprocess.run(
        [sys.executable, "-c", TWO_STARTS, str(folder)], env=environment, cwd=folder.parent, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return folder


REPEATED = {1: 1.0, 2: 2.0, 3: 3.0, 4: 104.0, 5: 105.0, 6: 106.0}


def swanlab_records(folder: Path) -> list:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    reader, records = DataStoreReader(), []
    (file,) = folder.glob("*.swanlab")
    reader.open(file)
    for content in reader:
        record = Record()
        record.ParseFromString(content)
        records.append(record)
    return records


def test_newest_swanlab_run_has_the_whole_curve(run: Path) -> None:
    starts = sorted((run / "swanlab").glob("run-*"), key=lambda folder: folder.stat().st_mtime)
    curves, names, tables = [], [], []
    for folder in starts:
        records = swanlab_records(folder)
        names += [(r.start.name, r.start.group) for r in records if r.HasField("start")]
        curves.append(
            {r.scalar.step: r.scalar.value.number for r in records if r.scalar.key == "return"}
        )  # not of the machine
        tables.append([r.media.step for r in records if r.HasField("media") and r.media.key == "val/generations"])
    assert curves == [{step: float(step) for step in range(1, 6)}, REPEATED]
    assert names == [("experiment", "group-of-the-run"), ("experiment-start2", "group-of-the-run")]
    assert tables == [[5], [6]]  # the samples of each validation


def wandb_records(file: Path) -> Iterator[Any]:
    """A .wandb file is a LevelDB log: after 7 bytes blocks of 32 KiB, in them parts (crc, length, kind) of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, part, place = file.read_bytes(), b"", 7
    while place + 7 <= len(content):
        if (left := 2**15 - place % 2**15) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(part)
            yield record
            part = b""


def test_newest_wandb_run_has_the_whole_curve(run: Path) -> None:
    curves, names, tables = [], [], []
    for file in sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime):
        records = list(wandb_records(file))
        names += [(record.run.display_name, record.run.run_group) for record in records if record.HasField("run")]
        rows = [
            {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for record in records
            if record.HasField("history")
        ]
        curves.append({row["_step"]: row["return"] for row in rows})
        tables.append([row["_step"] for row in rows if row.get("val/generations/_type") == "table-file"])
    assert curves == [{step: float(step) for step in range(1, 6)}, REPEATED]
    assert names == [("experiment", "group-of-the-run"), ("experiment-start2", "group-of-the-run")]
    assert tables == [[5], [6]]


def test_trackers_that_fail_do_not_end_the_run(run: Path) -> None:
    assert [row["return"] for row in read_metrics(run) if row["step"] == 99] == [99.0]


@pytest.mark.parametrize(
    ("tracker", "module"),
    [("swanlab", "swanlab"), ("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard")],
)
def test_a_tracker_that_cannot_be_opened_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, module: str
) -> None:
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(next_metrics_file(tmp_path)))
    monkeypatch.setitem(sys.modules, module, None)  # not installed
    trackers = tracking.open_trackers(tmp_path, "project", "experiment", ["file", tracker], config={})
    trackers.log({"return": 1.0}, step=1)
    assert [*trackers.logger] == ["file"]
    assert read_metrics(tmp_path) == [{"step": 1, "return": 1.0}]
    tracking.finish()


def test_what_trackers_keep_of_the_settings_holds_no_secret(run: Path) -> None:
    contents = [file.read_bytes() for file in run.rglob("*") if file.is_file()]
    assert [content for content in contents if PLANTED.encode() in content] == []
    assert [content for content in contents if PLANTED[::-1].encode() in content]  # they keep settings


def test_newest_tensorboard_folder_has_the_whole_curve(run: Path) -> None:
    first, second = (EventAccumulator(str(run / "tensorboard" / f"start{start}")).Reload() for start in (1, 2))
    assert [(event.step, event.value) for event in first.Scalars("return")] == [(n, float(n)) for n in range(1, 6)]
    assert [(event.step, event.value) for event in second.Scalars("return")] == [*REPEATED.items(), (99, 99.0)]
    assert "val/generations/text_summary" in second.Tags()["tensors"]


def test_validation_samples_are_kept_regardless_of_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As verl's trainer calls the logger."""
    for start, step in ((1, 20), (2, 40)):
        monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics" / f"{start:04d}.jsonl"))
        logger = tracking.open_samples_logger(tmp_path, project_name="project", experiment_name="name")
        logger.log(["console", "file"], [("USER: hello", "Heat (1995)", 0.5), ("é", "", 0.0)], step)
    files = sorted((tmp_path / "samples").iterdir())
    assert [file.name for file in files] == ["0001.jsonl", "0002.jsonl"]
    assert [json.loads(line) for line in files[1].read_text().splitlines()] == [
        {"step": 40, "input": "USER: hello", "output": "Heat (1995)", "score": 0.5},
        {"step": 40, "input": "é", "output": "", "score": 0.0},
    ]


def test_where_trackers_write_and_that_what_is_set_is_left_alone(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "TENSORBOARD_DIR": "/elsewhere"}
    chosen = make_tracker_environment(tmp_path / "run", "name", environment)
    assert "TENSORBOARD_DIR" not in chosen
    assert (chosen["SWANLAB_MODE"], chosen["WANDB_MODE"]) == ("offline", "offline")
    assert chosen["SWANLAB_LOG_DIR"] == str(tmp_path / "run" / "swanlab")
    with_keys = make_tracker_environment(
        tmp_path, "name", environment | {"SWANLAB_API_KEY": "a-secret", "WANDB_API_KEY": "a-secret"}
    )
    assert (with_keys["SWANLAB_MODE"], with_keys["WANDB_MODE"]) == ("cloud", "online")
    assert "a-secret" not in with_keys.values()
    nobodys = make_tracker_environment(tmp_path, "name", {"HOME": "/" + "h" * 300})  # the system refuses to look there
    assert (nobodys["SWANLAB_MODE"], nobodys["WANDB_MODE"]) == ("offline", "offline")


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_verl_does_not_log_in_to_an_offline_swanlab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("SWANLAB_API_KEY", "a-secret")
    monkeypatch.setenv("SWANLAB_MODE", mode)
    keys: list[str | None] = []

    def open_swanlab() -> SimpleNamespace:
        keys.append(os.environ.get("SWANLAB_API_KEY"))
        return SimpleNamespace(logger={})

    tracking._open_tracker("swanlab", open_swanlab)
    assert keys == [None]

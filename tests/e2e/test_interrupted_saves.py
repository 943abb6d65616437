"""A kill -9 between verl's tracker and our manifest, in whole runs of each recipe: what it leaves is no checkpoint."""

import os
import subprocess
import sys

import pytest

from convrec.runs.folder import latest_step, read_metrics, tracked_step
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.faults
BEFORE_THE_MANIFEST = "    names = sorted(sizes(folder))\n    with ThreadPool"
KILL = '    if folder.name == "global_step_2":\n        os.kill(os.getpid(), 9)\n'


@pytest.mark.parametrize("script", ["run_sft.sh", "run_rank_grpo.sh"])
def test_a_step_without_its_manifest_is_trained_again(trained, copy_of_project, tmp_path, script):
    is_sft, run = script == "run_sft.sh", tmp_path / "run"
    split = "sft_" if is_sft else ""
    environment = {**os.environ, **trained.files, "PYTHON": sys.executable, "SAVE_PATH": str(run), "SAVE_FREQ": "1"}
    environment |= {f"{name}_FILE": str(trained.out / "data" / f"{split}{file}.parquet")
                    for name, file in (("TRAIN", "train"), ("VAL", "validation"))}  # fmt: skip
    environment |= {"MODEL_PATH": str(trained.out / ("model" if is_sft else "sft")), "TEST_FREQ": "-1"}
    environment |= {"TRAIN_BATCH_SIZE": "4", "TOTAL_STEPS": "3", "ROLLOUT_N": "4", "MAX_PROMPT_LENGTH": "256"}
    environment |= {"MAX_RESPONSE_LENGTH": "64", "SAVE_KEEP": "all"}
    more = [] if is_sft else ["trainer.val_before_train=false"]
    copy = copy_of_project("convrec/checkpoints/manifest.py", BEFORE_THE_MANIFEST, KILL + BEFORE_THE_MANIFEST)

    def start(root):
        return subprocess.run(["bash", str(root / script), *more], env=environment, cwd=tmp_path,
                              capture_output=True, text=True, timeout=400, check=False)  # fmt: skip

    killed = start(copy)
    assert killed.returncode == 137, killed.stderr
    assert (tracked_step(run), latest_step(run)) == (2, 1)
    shard = next((run / "global_step_2").rglob("model_world_size_*.pt"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    resumed = start(ROOT)
    assert resumed.returncode == 0, resumed.stderr
    assert "global_step_2 was cut off while it was written: ignored" in resumed.stderr
    assert "resuming after step 1" in resumed.stderr
    assert latest_step(run) == 3
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3]

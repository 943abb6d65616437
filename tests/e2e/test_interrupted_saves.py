"""A kill -9 between verl's tracker and our manifest, in whole runs of each recipe: what it leaves is no checkpoint.

The model's folder names code of its own (`auto_map`): it is saved, and the run resumes, all the same."""

import os
import sys

import pytest

from convrec.runs.folder import latest_step, read_metrics, tracked_step

from .alone import alone
from .conftest import FAULTS, ROOT, flip_a_byte, with_code_of_its_own

pytestmark = FAULTS
BEFORE_THE_MANIFEST = "    file_bytes = measure_files(folder)\n"
KILL = '    if folder.name == "global_step_2":\n        os.kill(os.getpid(), 9)\n'


@pytest.mark.parametrize("script", ["run_sft.sh", "run_rank_grpo.sh"])
def test_a_step_without_its_manifest_is_trained_again(trained, copy_of_project, tmp_path, script):
    is_sft, run = script == "run_sft.sh", tmp_path / "run"
    split = "sft_" if is_sft else ""
    environment = {**os.environ, **trained.files, "PYTHON": sys.executable, "SAVE_PATH": str(run), "SAVE_FREQ": "1"}
    environment |= {f"{name}_FILE": str(trained.out / "data" / f"{split}{file}.parquet")
                    for name, file in (("TRAIN", "train"), ("VAL", "validation"))}  # fmt: skip
    model = with_code_of_its_own(trained.out / ("model" if is_sft else "sft"), tmp_path / "model")
    environment |= {"MODEL_PATH": str(model), "TEST_FREQ": "-1"}
    environment |= {"TRAIN_BATCH_SIZE": "4", "TOTAL_STEPS": "3", "ROLLOUT_N": "4", "MAX_PROMPT_LENGTH": "256"}
    environment |= {"MAX_RESPONSE_LENGTH": "64", "SAVE_KEEP": "all"}
    more = [] if is_sft else ["trainer.val_before_train=false"]
    copy = copy_of_project("convrec/checkpoints/manifest.py", BEFORE_THE_MANIFEST, KILL + BEFORE_THE_MANIFEST)

    def start(root):
        with alone(["bash", str(root / script), *more], environment, tmp_path) as one:
            return one.end(800), one.said()

    status, said = start(copy)
    assert status == 137, said
    assert (tracked_step(run), latest_step(run)) == (2, 1)
    flip_a_byte(next((run / "global_step_2").rglob("model_world_size_*.pt")))
    status, said = start(ROOT)
    assert status == 0, said
    assert "global_step_2 is incomplete: the run was killed while writing it" in said
    assert "resuming after step 1" in said
    assert latest_step(run) == 3
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3]
    saved = next((run / "global_step_3").rglob("huggingface/config.json"))
    assert "auto_map" not in saved.read_text()

"""What a run imports before verl's trainer starts."""

import subprocess
import sys
from pathlib import Path

from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[3]


def test_every_trainer_that_a_config_names_is_registered() -> None:
    """In a process that imports nothing else: that is how a run starts."""
    named = {
        value
        for path in (ROOT / "conf").rglob("*.yaml")
        if (value := OmegaConf.select(OmegaConf.load(path), "trainer.v1.trainer_mode"))
    }
    assert {"rank_grpo", "judge_grpo"} <= named
    code = f"""
from recipes.launch.ray_training import register_trainers
register_trainers()
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
for name in {sorted(named)!r}:
    print(get_trainer_cls(name).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "JudgeTrainer" in done.stdout

"""Shards that verl saves load; a shard in which somebody has planted code is refused."""

import os
import subprocess
import sys
from pathlib import Path

from convrec.checkpoints.models import resolve_model
from recipes.tiny_model import make_tiny_model
from tests.conftest import mark_complete
from tests.user_errors import refuses

ROOT = Path(__file__).resolve().parents[3]
# A model wrapped by FSDP2, saved and loaded by verl's checkpoint manager in a group of one process; then the random
# state, and the model, are replaced by files that make a folder when they are unpickled.
SAVE_AND_LOAD = """
import os, sys, torch
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from convrec.checkpoints.plain_load import use_plain_load

class Planted:
    def __reduce__(self):
        return os.mkdir, (sys.argv[3],)

folder, model, _ = sys.argv[1:]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}.meeting", rank=0, world_size=1)
module = AutoModelForCausalLM.from_pretrained(model)
fully_shard(module, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)))
optimizer = torch.optim.AdamW(module.parameters())
module(torch.zeros(1, 2, dtype=torch.long)).logits.sum().backward()
optimizer.step()
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
contents = ["model", "optimizer", "extra"]
manager = FSDPCheckpointManager(
    module, optimizer, schedule, AutoTokenizer.from_pretrained(model),
    checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}),
)
manager.save_checkpoint(folder)
use_plain_load()
manager.load_checkpoint(folder)
print("loaded")
for name in ("extra_state", "model"):
    torch.save({"rng": Planted(), "lr_scheduler": None}, f"{folder}/{name}_world_size_1_rank_0.pt")
    try:
        manager.load_checkpoint(folder)
    except Exception as error:
        print("refused" if "Weights only load failed" in str(error) else error)
"""


def test_verl_checkpoint_loads_and_planted_code_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    model = make_tiny_model(tmp_path / "model", ["a b c\n" * 40], vocab_size=300, **sizes)
    folder = tmp_path / "global_step_1"
    planted = tmp_path / "it ran"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_PLATFORM": "cpu"}
    process = subprocess.run(
        [sys.executable, "-c", SAVE_AND_LOAD, str(folder), str(model), str(planted)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.splitlines()[-3:] == ["loaded", "refused", "refused"]
    mark_complete(tmp_path, 1)
    with refuses("checkpoint.unsafe-content", folder, "mkdir"):
        resolve_model(folder)
    assert not planted.exists()
    # Checking a model's files must not change how Ray's workers, which a command starts next, unpickle messages.
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ

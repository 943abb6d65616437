"""verl's training worker with its FSDP engine on this CPU, in a process group of one."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meeting = tmp_path_factory.mktemp("group") / "file"
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from recipes.tiny_model import make_tiny_model

    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", ["a b c\n" * 40], vocab_size=300, **sizes)


ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def build_training_worker(
    model_folder: Path,
    micro_batch: int = 4,
    model: dict[str, Any] | None = None,
    dtype: str = "fp32",
    forward_only: bool = False,
    **optimizer: Any,
) -> Any:
    """Make a worker in the existing process group.

    micro_batch: its rows; model: further settings of the model; dtype: dtype of the passes; forward_only: as for a
    reference.
    """
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

    from convrec.cpu.engine import register_engine
    from convrec.training.attention import without_flash

    register_engine()
    without_flash.install()
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=str(model_folder),
                use_remove_padding=False,
                override_config={"attn_implementation": "sdpa"},
                **(model or {}),
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                forward_only=forward_only,
                use_torch_compile=False,
                mixed_precision={"param_dtype": dtype},
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=micro_batch,
            ),
            optimizer_config=FSDPOptimizerConfig(**{"lr": 1e-3, "total_training_steps": 10} | optimizer),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    return worker


@pytest.fixture
def training_worker(process_group: None, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    for name, value in (ALONE | MEETING).items():
        monkeypatch.setenv(name, value)
    return partial(build_training_worker, model_folder)


EOS, LINE = 0, 1  # token ids of `rank_method`; from 2 on they are words


def rank_method(preset: str = "paper", mask_truncated: bool = False, **settings: Any) -> Any:
    """Rank-GRPO of lists of two items over a vocabulary of ten tokens. settings: of `convrec`, or `algorithm`."""
    from omegaconf import OmegaConf

    from convrec.lists.token_ranks import table_from_bytes
    from convrec.rank_grpo.credit import CreditSettings
    from convrec.settings.run import Run
    from convrec.training.rank_method import RankMethod

    algorithm = {"adv_estimator": "rank_grpo", "rollout_correction": {"rollout_is": None}}
    algorithm |= settings.pop("algorithm", {})
    actor = {"clip_ratio_low": 0.06, "clip_ratio_high": 0.08, "use_kl_loss": False}
    ours = {"preset": preset, "num_items": 2, "rollout_check_bound": 10.0} | settings
    config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": {"actor": actor}, "convrec": ours})
    credit_settings = CreditSettings(
        num_ranks=2,
        vocab_table=table_from_bytes([b"", b"\n", *[b" word%d" % number for number in range(2, 10)]]),
        stop_token_ids=[EOS],
        preset=preset,  # type: ignore[arg-type]
        norm_by_std=algorithm.get("norm_adv_by_std_in_grpo", True),
        mask_truncated=mask_truncated,
    )
    return RankMethod(Run.from_config(config), credit_settings)

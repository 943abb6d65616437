"""verl's training worker with its FSDP engine on this CPU, in a process group of one, and TransferQueue in memory."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transfer_queue as tq
from tensordict import TensorDict


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
    model_folder: Path, micro_batch: int = 4, model: dict[str, Any] | None = None, **optimizer: Any
) -> Any:
    """In the process group that there is. `micro_batch` rows, `model` further settings of it."""
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
                use_torch_compile=False,
                mixed_precision={"param_dtype": "fp32"},
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


def nested(rows: Sequence[Any]) -> torch.Tensor:
    """A ragged tensor of lists of numbers, or of tensors."""
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


class Queue:
    """What a trainer asks of TransferQueue, for one batch."""

    def __init__(self, fields: dict[str, Any], tags: list[dict[str, Any]], keys: list[str] | None) -> None:
        self.fields = fields
        keys = keys or [f"{index}_0_0" for index in range(len(tags))]
        self.batch = tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        from verl.utils.tensordict_utils import get_tensordict

        return get_tensordict({name: self.fields[name] for name in select_fields})

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> tq.KVBatchMeta:
        self.fields |= dict(fields.items())
        return self.batch


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Queue]:
    """Puts one in TransferQueue's place: queue(tags, **fields)."""

    def start(tags: list[dict[str, Any]], keys: list[str] | None = None, **fields: Any) -> Queue:
        started = Queue(fields, tags, keys)
        monkeypatch.setattr(tq, "kv_batch_get", started.kv_batch_get)
        monkeypatch.setattr(tq, "kv_batch_put", started.kv_batch_put)
        return started

    return start

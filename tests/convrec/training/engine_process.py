"""Batches in verl's form and updates of them, and the program of one of two data-parallel processes."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from convrec.features.constrained.catalog_trie import load_catalog_trie
from convrec.rank_grpo.loss_metrics import finish_policy_metrics
from convrec.rank_grpo.policy_loss import RankLossSettings

KL_COEF = 0.5


def batch_of(rows: dict[str, list[list[Any]]], **settings: Any) -> Any:
    from verl.utils.tensordict_utils import get_tensordict

    def nested(values: list[list[Any]]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row) for row in values], layout=torch.jagged)

    tensors = {name: nested(values) for name, values in rows.items()}
    return get_tensordict(tensors, {"global_batch_size": 4, "temperature": 1.0} | settings)


def train(worker: Any, data: Any) -> dict[str, Any]:
    """Return the metrics of one update."""
    from verl.utils.metric import Metric
    from verl.utils.tensordict_utils import get

    from convrec.training.loss import rank_grpo_loss

    worker.set_loss_fn(partial(rank_grpo_loss, settings=RankLossSettings(num_ranks=3, kl_coef=KL_COEF)))
    metrics: dict[str, Any] = get(worker.train_batch(data), "metrics")
    parts = {name: Metric.aggregate_dp(of_processes) for name, of_processes in metrics.items() if ":" in name}
    return {name: metrics[name] for name in ("loss", "grad_norm")} | finish_policy_metrics(parts)


def main(rank: int, model_folder: Path, folder: Path) -> None:
    """Reads RANK_rows.json, settings.json and trie.npz of the folder and writes RANK.json."""
    from conftest import build_training_worker  # of this folder, which is the program's

    from convrec.training.log_prob_head import constrain

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    worker = build_training_worker(model_folder)
    constrain(worker.engine, load_catalog_trie(folder / "trie.npz"))
    rows, settings = (json.loads((folder / name).read_text()) for name in (f"{rank}_rows.json", "settings.json"))
    log_probs = worker.infer_batch(batch_of(rows, compute_loss=False, **settings))["log_probs"]
    metrics = train(worker, batch_of(rows, **settings))
    result = {"log_probs": [row.tolist() for row in log_probs.unbind()], "metrics": metrics}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    torch.distributed.barrier()  # whoever leaves early breaks the other's connections
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(Path, sys.argv[2:]))

"""vLLM's CPU build as a verl rollout server that receives the actor's weights.

After the first load, vLLM packs its CPU linear layers, which then have no `weight_loader`, so verl's
`model.load_weights` cannot fill them again. `convrec.checkpoints.reload` rebuilds them.
"""

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

from convrec.checkpoints.reload import reload_weights
from convrec.cpu.engine import init_process_group
from convrec.rollout.server import ConvRecHttpServer, ConvRecReplica, WeightsWorker, WorkerExtension


class CPUWorkerExtension(WorkerExtension):
    """Receives weights in vLLM's process on a CPU."""

    def update_weights_from_ipc(
        self, peft_config: dict | None = None, base_sync_done: bool = False, use_shm: bool = True
    ) -> None:
        """Receive the actor's weights and load them; see verl's method.

        The whole model is loaded again at once; a LoRA adapter after the first weights is added as verl does it.
        """
        if peft_config and base_sync_done:  # a LoRA adapter is separate from the packed weights, so verl's code works
            super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
            return
        # The reload needs all weights at once, but the receiver reuses its buffer, so keep a copy.
        weights: list[tuple[str, torch.Tensor]] = []
        BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=True
        ).receive_weights(
            on_bucket_received=lambda bucket, is_last: weights.extend((name, t.clone()) for name, t in bucket)
        )
        reload_weights(self.model_runner, weights_iterator=iter(weights))


class CPUHttpServer(ConvRecHttpServer):
    extension = CPUWorkerExtension


class CPUWeightsWorker(WeightsWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        init_process_group()
        super().__init__(*args, **kwargs)


class CPUReplica(ConvRecReplica):
    server = CPUHttpServer
    weights_worker = CPUWeightsWorker

"""Give a running vLLM engine other weights in both ways that we have, and compare it with transformers.

    python reloaded_engines.py FOLDER ...    prints {"folder": FOLDER, "sent": difference, "read": difference,
                                             "norms": [provider, provider]} for each

A process of its own, because vLLM's engines share state that only ends with their process. A difference is the largest
of the log-probs of PROMPT: "sent" with weights that verl's sender brought, "read" with the folder's, read again.
"norms" has what computes the engine's two norms first.
"""

import asyncio
import gc
import json
import os
import sys
import threading
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}

import torch
from transformers import AutoModelForCausalLM

from convrec.checkpoints.reload import reload_from_folder
from convrec.inference.engines.engine_settings import engine_settings

EXTENSION = "convrec.cpu.server.CPUWorkerExtension"
PROMPT = [5, 17, 260, 33, 90, 7, 41, 200, 8, 12]


def log_probs_of_transformers(model: Any) -> list[float]:
    tokens = torch.tensor([PROMPT])
    log_probs = model(tokens).logits[0].log_softmax(-1)
    return log_probs[:-1].gather(1, tokens[0, 1:, None]).squeeze(1).tolist()


def log_probs_of_vllm(engine: Any) -> list[float]:
    from vllm import SamplingParams

    engine.reset_prefix_cache()
    (output,) = engine.generate(
        [{"prompt_token_ids": PROMPT}], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False
    )
    return [place[token].logprob for token, place in zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)]


def send(engine: Any, model: Any) -> None:
    """As verl's actor does, from another thread here."""
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    (handle,) = engine.collective_rpc("_get_zmq_handle")
    sender = BucketedWeightSender(handle, bucket_size_mb=8, use_shm=True)
    weights = iter(list(model.state_dict().items()))
    thread = threading.Thread(target=asyncio.run, args=(sender.async_send_weights(weights),))
    thread.start()
    engine.collective_rpc("update_weights_from_ipc")
    thread.join()


@torch.no_grad()
def compare(folder: str) -> dict[str, Any]:
    from vllm import LLM
    from vllm.ir.ops.layernorm import fused_add_rms_norm, rms_norm

    # All of it before vLLM, which changes the classes of transformers that it runs itself.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    in_folder = log_probs_of_transformers(model)
    for parameter in model.parameters():
        parameter.mul_(1.5)  # the weights of a later step
    later = log_probs_of_transformers(model)
    _, settings = engine_settings(tensor_parallel=1)
    engine = LLM(folder, max_model_len=256, seed=1, worker_extension_cls=EXTENSION, **settings)
    send(engine, model)
    sent = difference(log_probs_of_vllm(engine), later)
    engine.collective_rpc(reload_from_folder, args=(folder,))
    read = difference(log_probs_of_vllm(engine), in_folder)
    norms = [operation.get_priority()[0] for operation in (rms_norm, fused_add_rms_norm)]
    return {"sent": sent, "read": read, "norms": norms}


def difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main(folders: list[str]) -> None:
    for folder in folders:
        print(json.dumps({"folder": folder, **compare(folder)}), flush=True)
        gc.collect()


if __name__ == "__main__":
    main(sys.argv[1:])

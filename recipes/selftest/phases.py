"""The phases of `recipes.gpu_check`: what each tries, where, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """process: phases of the same name run in one process, until one fails: it imports and loads once.
    seconds: it has failed when it takes longer. gpus: it is skipped where there are fewer.
    """

    name: str
    what: str
    function: str  # module:function; takes a `checks.Place`, returns figures; raises `checks.Skipped` or any error
    process: str
    seconds: int
    gpus: int = 0


HERE = "recipes.selftest"
PHASES = (
    Phase("versions", "verl, vLLM, torch, transformers fit together", f"{HERE}.software:versions", "software", 60),
    Phase("device", "the GPUs' kernels: norm, activation, matmul", f"{HERE}.software:device", "software", 60, gpus=1),
    Phase("collective", "NCCL (gloo on a CPU) sums and gathers", f"{HERE}.training:collective", "training", 90),
    Phase("fsdp2", "updates of verl's FSDP2 engine lower the loss", f"{HERE}.training:fsdp2", "training", 60),
    Phase("packed", "packed rows are what padded rows are", f"{HERE}.training:packed", "training", 60),
    Phase("fused", "fused log-probs are the plain ones", f"{HERE}.training:fused", "training", 60),
    Phase("resume", "a resumed engine goes on with the same numbers", f"{HERE}.training:resume", "training", 60),
    Phase("lora", "LoRA trains its adapters and nothing else", f"{HERE}.training:lora", "training", 60),
    Phase("two_ranks", "two data-parallel processes train as one", f"{HERE}.two_ranks:two_ranks", "training", 180),
    Phase("kernels", "ranks and loss: right, and how fast", f"{HERE}.kernels:kernels", "kernels", 120),
    Phase("rollout", "vLLM's log-probs are the policy's", f"{HERE}.rollout:rollout", "rollout", 150),
    Phase("weights", "new weights reach vLLM through verl's transfer", f"{HERE}.rollout:weights", "rollout", 90),
    Phase("sleep", "vLLM's sleep gives memory back, wake restores", f"{HERE}.rollout:sleep", "rollout", 60, gpus=1),
    Phase("lora_rollout", "an adapter reaches vLLM", f"{HERE}.rollout:lora_rollout", "lora rollout", 150),
    Phase("tensor_parallel", "a rollout over two GPUs", f"{HERE}.rollout:tensor_parallel", "parallel", 180, gpus=2),
    Phase("step", "0.5B-shaped model, 48 x 8 responses: the recipe", f"{HERE}.step:step", "step", 420, gpus=1),
)

"""The phases of `recipes.gpu_check`: what each tries, where, and how long it may take."""

from dataclasses import replace

from recipes.selftest import kernels, rollout, software, step, training
from recipes.selftest.runner import Phase

ROLLOUT = (
    Phase("rollout", "vLLM's log-probs are the policy's", rollout.rollout, 150, "rollout"),
    Phase("weights", "new weights reach vLLM through verl's transfer", rollout.weights, 90, "rollout"),
    Phase("sleep", "vLLM's sleep gives memory back, wake restores", rollout.sleep, 60, "rollout", gpus=1),
)
CONSTRAINED = Phase("constrained", "constrained lists, and their log-probs", rollout.constrained, 150, "constrained")


def phases_of(model_type: str) -> list[Phase]:
    """Those of the rollout, with models of this type."""
    return [
        replace(
            phase,
            name=f"{model_type}_{phase.name}",
            what=f"{model_type.capitalize()}: {phase.what}",
            process=f"{model_type} {phase.process}",
            model_type=model_type,
        )
        for phase in (*ROLLOUT, CONSTRAINED)
    ]


PHASES = (
    Phase("versions", "verl, vLLM, torch, transformers fit together", software.versions, 60, "software"),
    Phase("fsdp2", "updates of verl's FSDP2 engine lower the loss", training.fsdp2, 60, "training"),
    Phase("packed", "packed rows are what padded rows are", training.packed, 90, "training"),
    Phase("fused", "fused log-probs are the plain ones", training.fused, 90, "training"),
    Phase("resume", "a resumed engine goes on with the same numbers", training.resume, 60, "training"),
    Phase("lora", "LoRA trains its adapters and nothing else", training.lora, 60, "training"),
    Phase("two_ranks", "two data-parallel processes train as one", training.two_ranks, 180, "training", 2, on_cpu=True),
    Phase("kernels", "ranks and loss: right, and how fast", kernels.kernels, 120, "kernels"),
    *ROLLOUT,
    Phase("lora_rollout", "an adapter reaches vLLM", rollout.lora_rollout, 150, "lora rollout"),
    Phase("tensor_parallel", "a rollout over two GPUs", rollout.tensor_parallel, 180, "parallel", gpus=2),
    CONSTRAINED,
    *phases_of("llama"),
    *phases_of("qwen3"),
    Phase("step", "0.5B-shaped model, 48 x 8 responses: the recipe", step.step, 560, "step"),
)

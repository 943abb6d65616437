"""The phases of `recipes.gpu_check`: what each tries, where, and how long it may take."""

from dataclasses import replace

from recipes.selftest import kernels, rollout, software, step, training
from recipes.selftest.runner import Phase

ROLLOUT = (
    Phase(
        name="rollout",
        what="vLLM's log-probs are the policy's",
        function=rollout.rollout,
        seconds=150,
        process="rollout",
    ),
    Phase(
        name="weights",
        what="new weights reach vLLM through verl's transfer",
        function=rollout.weights,
        seconds=90,
        process="rollout",
    ),
    Phase(
        name="sleep",
        what="vLLM's sleep gives memory back, wake restores",
        function=rollout.sleep,
        seconds=60,
        process="rollout",
        gpus=1,
    ),
)
CONSTRAINED = Phase(
    name="constrained",
    what="constrained lists, and their log-probs",
    function=rollout.constrained,
    seconds=150,
    process="constrained",
)


def make_phases(model_type: str) -> list[Phase]:
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
    Phase(
        name="versions",
        what="verl, vLLM, torch, transformers fit together",
        function=software.versions,
        seconds=60,
        process="software",
    ),
    Phase(
        name="fsdp2",
        what="updates of verl's FSDP2 engine lower the loss",
        function=training.fsdp2,
        seconds=60,
        process="training",
    ),
    Phase(
        name="packed",
        what="packed rows are what padded rows are",
        function=training.packed,
        seconds=90,
        process="training",
    ),
    Phase(
        name="fused",
        what="fused log-probs are the plain ones",
        function=training.fused,
        seconds=90,
        process="training",
    ),
    Phase(
        name="resume",
        what="a resumed engine goes on with the same numbers",
        function=training.resume,
        seconds=60,
        process="training",
    ),
    Phase(
        name="lora",
        what="LoRA trains its adapters and nothing else",
        function=training.lora,
        seconds=60,
        process="training",
    ),
    Phase(
        name="two_ranks",
        what="two data-parallel processes train as one",
        function=training.two_ranks,
        seconds=180,
        process="training",
        gpus=2,
        on_cpu=True,
    ),
    Phase(
        name="kernels",
        what="ranks and loss: right, and how fast",
        function=kernels.kernels,
        seconds=120,
        process="kernels",
    ),
    *ROLLOUT,
    Phase(
        name="lora_rollout",
        what="an adapter reaches vLLM",
        function=rollout.lora_rollout,
        seconds=150,
        process="lora rollout",
    ),
    Phase(
        name="tensor_parallel",
        what="a rollout over two GPUs",
        function=rollout.tensor_parallel,
        seconds=180,
        process="parallel",
        gpus=2,
    ),
    CONSTRAINED,
    *make_phases("llama"),
    *make_phases("qwen3"),
    Phase(
        name="step",
        what="0.5B-shaped model, 48 x 8 responses: the recipe",
        function=step.step,
        seconds=560,
        process="step",
    ),
)

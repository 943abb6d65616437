"""The phases of `recipes.gpu_check`: what each checks, where, and its time limit."""

from dataclasses import replace

from recipes.selftest import kernels, rollout, software, step, training
from recipes.selftest.runner import Phase

ROLLOUT = (
    Phase(
        name="rollout",
        what="vLLM's log-probs match the policy's",
        function=rollout.check_rollout,
        seconds=150,
        process="rollout",
    ),
    Phase(
        name="weights",
        what="new weights reach vLLM through verl's transfer",
        function=rollout.check_weights,
        seconds=90,
        process="rollout",
    ),
    Phase(
        name="sleep",
        what="vLLM's sleep frees memory, waking restores it",
        function=rollout.check_sleep,
        seconds=60,
        process="rollout",
        gpus=1,
    ),
)
CONSTRAINED = Phase(
    name="constrained",
    what="constrained lists, and their log-probs",
    function=rollout.check_constrained,
    seconds=150,
    process="constrained",
)


def make_phases(model_type: str) -> list[Phase]:
    """Return the phases of the rollout for models of another type."""
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
        what="verl, vLLM, torch, transformers are compatible",
        function=software.check_versions,
        seconds=60,
        process="software",
    ),
    Phase(
        name="fsdp2",
        what="updates of verl's FSDP2 engine lower the loss",
        function=training.check_fsdp2,
        seconds=60,
        process="training",
    ),
    Phase(
        name="packed",
        what="packed rows give the results of padded rows",
        function=training.check_packed,
        seconds=90,
        process="training",
    ),
    Phase(
        name="fused",
        what="fused log-probs match plain ones",
        function=training.check_fused,
        seconds=90,
        process="training",
    ),
    Phase(
        name="resume",
        what="a resumed engine continues with the same numbers",
        function=training.check_resume,
        seconds=60,
        process="training",
    ),
    Phase(
        name="lora",
        what="LoRA trains its adapters and nothing else",
        function=training.check_lora,
        seconds=60,
        process="training",
    ),
    Phase(
        name="two_ranks",
        what="two data-parallel processes train as one",
        function=training.check_two_ranks,
        seconds=180,
        process="training",
        gpus=2,
        on_cpu=True,
    ),
    Phase(
        name="kernels",
        what="ranks and loss are correct; their speed",
        function=kernels.check_kernels,
        seconds=120,
        process="kernels",
    ),
    *ROLLOUT,
    Phase(
        name="lora_rollout",
        what="an adapter reaches vLLM",
        function=rollout.check_lora_rollout,
        seconds=150,
        process="lora rollout",
    ),
    Phase(
        name="tensor_parallel",
        what="a rollout over two GPUs",
        function=rollout.check_tensor_parallel,
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
        function=step.check_step,
        seconds=560,
        process="step",
    ),
)

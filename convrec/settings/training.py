"""Settings that several recipes share: those of every recipe, and those of every RL recipe.

A field without a default has a different default in each recipe. A type that several classes use has a name here.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from convrec.base import kinds
from convrec.base.fields import Setting, Settings
from convrec.base.kinds import Boolean, Integer, NonNegativeInteger, NonNegativeNumber, PositiveInteger, PositiveNumber
from convrec.settings.choices import Files, Resume, SaveFrequency, Schedule, Trackers, Watchdog
from convrec.settings.choices import Seed as SeedKind
from convrec.settings.readers import absolute_path, comma_separated

QWEN = "Qwen/Qwen2.5-0.5B-Instruct"  # the smallest of the paper's models

Model = Annotated[
    kinds.Path,
    Setting(
        "initial model: a Hugging Face id or folder, or a run folder (its best checkpoint; RUN@last: the newest)",
        key="actor_rollout_ref.model.path",
        variable="MODEL_PATH",
        also=("MODEL", "MODEL_NAME", "MODEL_NAME_OR_PATH", "BASE_MODEL", "MODEL_DIR"),
    ),
]
TrainFile = Annotated[
    Files,
    Setting(
        "training data, parquet",
        key="data.train_files",
        variable="TRAIN_FILE",
        also=("TRAIN_DATA", "TRAINING_FILE", "TRAIN_DATASET"),
        read=absolute_path,
    ),
]
ValFile = Annotated[
    Files,
    Setting(
        "validation data, parquet",
        key="data.val_files",
        variable="VAL_FILE",
        also=("VAL_DATA", "VALIDATION_FILE", "VALID_FILE", "EVAL_FILE"),
        read=absolute_path,
    ),
]
Seed = Annotated[
    SeedKind,
    Setting("random seed for data order and sampling", key="data.seed", variable="SEED", also=("RANDOM_SEED",)),
]
SaveFreq = Annotated[
    SaveFrequency,
    Setting(
        "steps between checkpoints; the last step is always saved",
        key="trainer.save_freq",
        variable="SAVE_FREQ",
        also=("SAVE_STEPS", "SAVE_INTERVAL"),
    ),
]
TestFreq = Annotated[
    Integer,
    Setting(
        "steps between validations; -1: only at the end in SFT, never in RL",
        key="trainer.test_freq",
        variable="TEST_FREQ",
        also=("EVAL_STEPS", "VAL_FREQ", "EVAL_FREQ"),
    ),
]
TotalEpochs = Annotated[
    PositiveInteger,
    Setting(
        "epochs",
        key="trainer.total_epochs",
        variable="TOTAL_EPOCHS",
        also=("EPOCHS", "NUM_EPOCHS", "N_EPOCHS", "NUM_TRAIN_EPOCHS", "MAX_EPOCHS"),
    ),
]
SaveKeep = Annotated[
    PositiveInteger | None,
    Setting(
        "number of newest checkpoints to keep, or all; the best by validation is kept too",
        key="trainer.max_actor_ckpt_to_keep",
        variable="SAVE_KEEP",
        null="all",
        null_word="all",
    ),
]
BATCH_HELP = "sequences (SFT) or prompts (RL) per step"
BATCH_KEY = "data.train_batch_size"
BATCH_VARIABLE = "TRAIN_BATCH_SIZE"
BATCH_ALSO = ("BATCH_SIZE", "GLOBAL_BATCH_SIZE")
TrainBatchSize = Annotated[
    PositiveInteger,
    Setting(BATCH_HELP, key=BATCH_KEY, variable=BATCH_VARIABLE, also=BATCH_ALSO),
]
MaxTokensPerGPU = Annotated[
    PositiveInteger | None,
    Setting(
        "maximum number of tokens of a micro-batch; on a CPU lowered to fit into free memory",
        key="actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    ),
]
LearningRate = Annotated[
    NonNegativeNumber,
    Setting("learning rate", key="actor_rollout_ref.actor.optim.lr", variable="LR", also=("LEARNING_RATE",)),
]
Candidates = Annotated[
    NonNegativeInteger,
    Setting("number of titles in each prompt, from `convrec retrieval candidates`", variable="CANDIDATES"),
]
MaxPromptLength = Annotated[
    PositiveInteger,
    Setting("maximum length of a prompt, in tokens", key="data.max_prompt_length", variable="MAX_PROMPT_LENGTH"),
]
MaxResponseLength = Annotated[
    PositiveInteger,
    Setting("maximum length of a response, in tokens", key="data.max_response_length", variable="MAX_RESPONSE_LENGTH"),
]
NumGenerations = Annotated[
    PositiveInteger,
    Setting(
        "rollouts per prompt (G)",
        key="actor_rollout_ref.rollout.n",
        variable="ROLLOUT_N",
        also=("N_ROLLOUTS", "NUM_ROLLOUTS", "NUM_GENERATIONS", "GROUP_SIZE"),
    ),
]
TensorParallel = Annotated[
    PositiveInteger | None,
    Setting(
        "GPUs per rollout replica",
        key="actor_rollout_ref.rollout.tensor_model_parallel_size",
        variable="TENSOR_PARALLEL",
        also=("TENSOR_PARALLEL_SIZE", "TENSOR_MODEL_PARALLEL_SIZE"),
        default="N_GPUS_PER_NODE",
    ),
]
GPUMemoryUtilization = Annotated[
    kinds.Fraction | None,
    Setting(
        "vLLM's share of GPU memory",
        key="actor_rollout_ref.rollout.gpu_memory_utilization",
        variable="GPU_MEMORY_UTILIZATION",
        also=("GPU_MEMORY", "GPU_UTILIZATION"),
        default="0.5",
    ),
]


def default_run_folder(recipe: str, model: str) -> str:
    """Return the default folder of a run: checkpoints/RECIPE/MODEL, absolute.

    Args:
        recipe: the recipe's name.
        model: a folder or an id, of which the last part counts.
    """
    return os.path.abspath(f"checkpoints/{recipe}/{os.path.basename(model.rstrip('/'))}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings):
    """Settings of every recipe."""

    synonyms: ClassVar[Mapping[str, str]] = {  # TRL's names
        "per_device_train_batch_size": "train_batch_size",
        "report_to": "logger",
        "save_total_limit": "save_keep",
        "warmup_ratio": "lr_warmup_ratio",
    }

    model: Model
    train_file: TrainFile
    val_file: ValFile
    seed: Seed = 3407
    output_dir: Annotated[
        kinds.Path | None,
        Setting(
            "run folder: checkpoints, metrics, log; an unfinished run in it is resumed",
            key="trainer.default_local_dir",
            variable="SAVE_PATH",
            also=("SAVE_DIR", "OUTPUT_DIR", "CHECKPOINT_DIR"),
            null="checkpoints/<recipe>/<model>",
            read=absolute_path,
        ),
    ] = None
    resume_mode: Annotated[
        Resume | None,
        Setting("way of resuming an unfinished run", key="trainer.resume_mode"),
    ] = None
    save_freq: SaveFreq
    test_freq: TestFreq
    total_epochs: TotalEpochs
    total_steps: Annotated[
        PositiveInteger | None,
        Setting(
            "steps; overrides the epochs",
            key="trainer.total_training_steps",
            variable="TOTAL_STEPS",
            also=("STEPS", "NUM_STEPS", "MAX_STEPS", "TRAIN_STEPS", "TOTAL_TRAINING_STEPS"),
            null="unset",
        ),
    ] = None
    num_nodes: Annotated[
        PositiveInteger,
        Setting("nodes", key="trainer.nnodes", variable="N_NODES", also=("NUM_NODES",)),
    ] = 1
    gpus_per_node: Annotated[
        PositiveInteger | None,
        Setting(
            "accelerators per node",
            key="trainer.n_gpus_per_node",
            variable="N_GPUS_PER_NODE",
            also=("N_GPUS", "NUM_GPUS", "GPUS_PER_NODE", "NUM_GPUS_PER_NODE"),
            default="all of the machine",
        ),
    ] = None
    # "file" writes <SAVE_PATH>/metrics/*.jsonl, which the reports read
    logger: Annotated[
        Trackers,
        Setting(
            "verl's trackers, comma-separated; if LOGGER is unset, also swanlab if its key is set",
            key="trainer.logger",
            variable="LOGGER",
            read=comma_separated,
        ),
    ] = field(default_factory=lambda: ["console", "file"])
    watchdog: Annotated[
        Watchdog,
        Setting(
            "reaction to a phase of a step that hangs: end the run (status 75), resume it (also after a lost process), "
            "or off",
            variable="WATCHDOG",
        ),
    ] = "end"
    watchdog_seconds: Annotated[
        PositiveNumber,
        Setting(
            "time limit of a phase of a step in seconds; ten times the phase's median if that is longer, and six times "
            "the limit for its first time"
        ),
    ] = 300


@dataclass(frozen=True, kw_only=True)
class RLConfig(TrainingConfig):
    """Settings of every RL recipe: prompts, rollouts and updates."""

    synonyms: ClassVar[Mapping[str, str]] = {
        **TrainingConfig.synonyms,
        "beta": "kl_loss_coef",
        "max_completion_length": "max_response_length",
        "num_iterations": "ppo_epochs",
        "vllm_gpu_memory_utilization": "gpu_memory_utilization",
        "vllm_tensor_parallel_size": "tensor_parallel",
    }

    # at full scale a run writes 80 checkpoints of about 7 GiB
    save_keep: SaveKeep = 3
    train_batch_size: TrainBatchSize
    max_prompt_length: MaxPromptLength
    max_response_length: MaxResponseLength
    max_tokens_per_gpu: MaxTokensPerGPU = None
    learning_rate: LearningRate = 1e-6
    kl_loss_coef: Annotated[
        NonNegativeNumber,
        Setting(
            "weight of the KL term to the initial model",
            key="actor_rollout_ref.actor.kl_loss_coef",
            variable="KL_LOSS_COEF",
            also=("KL_COEF", "KL_BETA"),
        ),
    ] = 0.001
    ppo_epochs: Annotated[
        PositiveInteger,
        Setting(
            "updates per rollout batch; for judges passes over it, of four updates each (one if TRAIN_BATCH_SIZE is "
            "not a multiple of 4)",
            key="actor_rollout_ref.actor.ppo_epochs",
            variable="MU",
        ),
    ] = 1
    mini_batch_size: Annotated[
        PositiveInteger | None,
        Setting("prompts per update", key="actor_rollout_ref.actor.ppo_mini_batch_size"),
    ] = None
    num_generations: NumGenerations
    tensor_parallel: TensorParallel
    gpu_memory_utilization: GPUMemoryUtilization
    # the paper has [[0, 1e-6], [8000, 1e-7]] for 1B and 3B
    lr_schedule: Annotated[
        Schedule | None,
        Setting("(step, learning rate) pairs: each rate holds from its step on", null="verl's schedule of optim.lr"),
    ] = None
    rollout_check_bound: Annotated[
        PositiveNumber | None,
        Setting(
            "maximum mean difference between the log-probs of vLLM and the actor; above it a run stops at its start",
            null="0.01 if both compute in fp32, else 0.1",
        ),
    ] = None
    reward_timeout: Annotated[
        PositiveNumber,
        Setting("time limit of a reward in seconds; after three attempts the run stops"),
    ] = 600
    # costs vLLM a random generator per request
    deterministic: Annotated[
        Boolean,
        Setting("seeds for every rollout, from SEED, step, row and number: a resumed run samples the same"),
    ] = False

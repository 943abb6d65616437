"""Settings that several recipes share: those of every training, and those of every RL training.

A field without a default has another one in each recipe. What several classes declare is a type with a name here.
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

QWEN = "Qwen/Qwen2.5-0.5B-Instruct"  # of the paper's models the smallest

Model = Annotated[
    kinds.Path,
    Setting(
        "Hugging Face id or folder, or a run folder (its best checkpoint; RUN@last: the newest)",
        key="actor_rollout_ref.model.path",
        variable="MODEL_PATH",
        also=("MODEL", "MODEL_NAME", "MODEL_NAME_OR_PATH", "BASE_MODEL", "MODEL_DIR"),
    ),
]
TrainFile = Annotated[
    Files,
    Setting(
        "training parquet",
        key="data.train_files",
        variable="TRAIN_FILE",
        also=("TRAIN_DATA", "TRAINING_FILE", "TRAIN_DATASET"),
        read=absolute_path,
    ),
]
ValFile = Annotated[
    Files,
    Setting(
        "validation parquet",
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
        "steps between validations; -1: SFT validates at the end alone, RL never",
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
        "newest checkpoints to keep, or all; the best by validation is kept besides",
        key="trainer.max_actor_ckpt_to_keep",
        variable="SAVE_KEEP",
        null="all",
        null_word="all",
    ),
]
BATCH_HELP = "sequences (SFT) or prompts (RL) of a step"
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
        "tokens of a micro-batch, at most; on a CPU as many as free memory holds",
        key="actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    ),
]
LearningRate = Annotated[
    NonNegativeNumber,
    Setting("learning rate", key="actor_rollout_ref.actor.optim.lr", variable="LR", also=("LEARNING_RATE",)),
]
Candidates = Annotated[
    NonNegativeInteger,
    Setting("titles that prompts name, from `convrec retrieval candidates`", variable="CANDIDATES"),
]
MaxPromptLength = Annotated[
    PositiveInteger,
    Setting("tokens of a prompt", key="data.max_prompt_length", variable="MAX_PROMPT_LENGTH"),
]
MaxResponseLength = Annotated[
    PositiveInteger,
    Setting("tokens of a response", key="data.max_response_length", variable="MAX_RESPONSE_LENGTH"),
]
NumGenerations = Annotated[
    PositiveInteger,
    Setting(
        "rollouts of a prompt (G)",
        key="actor_rollout_ref.rollout.n",
        variable="ROLLOUT_N",
        also=("N_ROLLOUTS", "NUM_ROLLOUTS", "NUM_GENERATIONS", "GROUP_SIZE"),
    ),
]
TensorParallel = Annotated[
    PositiveInteger | None,
    Setting(
        "GPUs a rollout replica spans",
        key="actor_rollout_ref.rollout.tensor_model_parallel_size",
        variable="TENSOR_PARALLEL",
        also=("TENSOR_PARALLEL_SIZE", "TENSOR_MODEL_PARALLEL_SIZE"),
        default="N_GPUS_PER_NODE",
    ),
]
GPUMemoryUtilization = Annotated[
    kinds.Fraction | None,
    Setting(
        "share of GPU memory vLLM takes",
        key="actor_rollout_ref.rollout.gpu_memory_utilization",
        variable="GPU_MEMORY_UTILIZATION",
        also=("GPU_MEMORY", "GPU_UTILIZATION"),
        default="0.5",
    ),
]


def default_run_folder(recipe: str, model: str) -> str:
    """Return the folder of a run of this recipe where nobody names one."""
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
            "the run folder: checkpoints, metrics, log; an unfinished run there is resumed",
            key="trainer.default_local_dir",
            variable="SAVE_PATH",
            also=("SAVE_DIR", "OUTPUT_DIR", "CHECKPOINT_DIR"),
            null="checkpoints/<recipe>/<model>",
            read=absolute_path,
        ),
    ] = None
    resume_mode: Annotated[
        Resume | None,
        Setting("whether an unfinished run is resumed", key="trainer.resume_mode"),
    ] = None
    save_freq: SaveFreq
    test_freq: TestFreq
    total_epochs: TotalEpochs
    total_steps: Annotated[
        PositiveInteger | None,
        Setting(
            "steps; wins over epochs",
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
            "accelerators of each node",
            key="trainer.n_gpus_per_node",
            variable="N_GPUS_PER_NODE",
            also=("N_GPUS", "NUM_GPUS", "GPUS_PER_NODE", "NUM_GPUS_PER_NODE"),
            default="what the machine has",
        ),
    ] = None
    # "file" writes <SAVE_PATH>/metrics/*.jsonl, which the reports read
    logger: Annotated[
        Trackers,
        Setting(
            "verl's trackers, comma-separated; without LOGGER also swanlab, where its key is set",
            key="trainer.logger",
            variable="LOGGER",
            read=comma_separated,
        ),
    ] = field(default_factory=lambda: ["console", "file"])
    watchdog: Annotated[
        Watchdog,
        Setting(
            "what follows when a phase of a step hangs: the run ends (status 75), is resumed (when a process is lost, "
            "too) or goes on",
            variable="WATCHDOG",
        ),
    ] = "end"
    watchdog_seconds: Annotated[
        PositiveNumber,
        Setting(
            "seconds that a phase of a step may take; ten times its median where that is more, six times this the "
            "first time"
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

    # at full scale 80 of some 7 GiB are written
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
            "updates of a rollout batch; of judges passes over it, of four updates each (of one where TRAIN_BATCH_SIZE "
            "is no multiple of 4)",
            key="actor_rollout_ref.actor.ppo_epochs",
            variable="MU",
        ),
    ] = 1
    mini_batch_size: Annotated[
        PositiveInteger | None,
        Setting("prompts of an update", key="actor_rollout_ref.actor.ppo_mini_batch_size"),
    ] = None
    num_generations: NumGenerations
    tensor_parallel: TensorParallel
    gpu_memory_utilization: GPUMemoryUtilization
    # the paper's for 1B and 3B: [[0, 1e-6], [8000, 1e-7]]
    lr_schedule: Annotated[
        Schedule | None,
        Setting("learning rate from each of these steps on", null="verl's schedule of optim.lr"),
    ] = None
    rollout_check_bound: Annotated[
        PositiveNumber | None,
        Setting(
            "mean difference of vLLM's and the actor's log-probs above which a run stops at its start",
            null="0.01 where both compute in fp32, else 0.1",
        ),
    ] = None
    reward_timeout: Annotated[
        PositiveNumber,
        Setting("seconds a reward may take; after three attempts the run stops"),
    ] = 600
    # costs vLLM a random generator a request
    deterministic: Annotated[
        Boolean,
        Setting("a seed for every rollout, of SEED, step, row and number: a resumed run samples what it would have"),
    ] = False

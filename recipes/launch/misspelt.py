"""Environment variables whose names look like ours and that no recipe reads."""

import difflib
from collections.abc import Mapping

from convrec.runs.supervisor import SAVE_VARIABLE
from recipes.launch.variables import VARIABLES

# What other trainers call them. Only names that hardly mean anything else in an environment.
ELSEWHERE = {
    "MODEL_PATH": ("MODEL", "MODEL_NAME", "MODEL_NAME_OR_PATH", "BASE_MODEL", "MODEL_DIR"),
    "TRAIN_FILE": ("TRAIN_DATA", "TRAINING_FILE", "TRAIN_DATASET"),
    "VAL_FILE": ("VAL_DATA", "VALIDATION_FILE", "VALID_FILE", "EVAL_FILE"),
    "SAVE_PATH": ("SAVE_DIR", "OUTPUT_DIR", "CHECKPOINT_DIR"),
    "SAVE_FREQ": ("SAVE_STEPS", "SAVE_INTERVAL"),
    "TEST_FREQ": ("EVAL_STEPS", "VAL_FREQ", "EVAL_FREQ"),
    "N_GPUS_PER_NODE": ("N_GPUS", "NUM_GPUS", "GPUS_PER_NODE", "NUM_GPUS_PER_NODE"),
    "N_NODES": ("NUM_NODES",),
    "TENSOR_PARALLEL": ("TENSOR_PARALLEL_SIZE", "TENSOR_MODEL_PARALLEL_SIZE"),
    "GPU_MEMORY_UTILIZATION": ("GPU_MEMORY", "GPU_UTILIZATION"),
    "TRAIN_BATCH_SIZE": ("BATCH_SIZE", "GLOBAL_BATCH_SIZE"),
    "ROLLOUT_N": ("N_ROLLOUTS", "NUM_ROLLOUTS", "NUM_GENERATIONS", "GROUP_SIZE"),
    "LR": ("LEARNING_RATE",),
    "KL_LOSS_COEF": ("KL_COEF", "KL_BETA"),
    "NUM_ITEMS": ("N_ITEMS",),
    "TOTAL_EPOCHS": ("EPOCHS", "NUM_EPOCHS", "N_EPOCHS", "NUM_TRAIN_EPOCHS", "MAX_EPOCHS"),
    "TOTAL_STEPS": ("STEPS", "NUM_STEPS", "MAX_STEPS", "TRAIN_STEPS", "TOTAL_TRAINING_STEPS"),
    "MAX_LENGTH": ("MAX_SEQ_LENGTH", "MAX_SEQ_LEN"),
    "SEED": ("RANDOM_SEED",),
}
SIMILAR = 0.87  # difflib's ratio: one wrong letter in eight, but not MODULEPATH (environment modules) for MODEL_PATH
SHORTEST = 6  # letters of a name that is compared by similarity


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """A warning for each variable that is set and looks like one of ours that is not."""
    ours = [*(variable.name for variable in VARIABLES), "RAY_ADDRESS", SAVE_VARIABLE]
    unset = [name for name in ours if not environment.get(name)]
    warnings = []
    for name in sorted(name for name, value in environment.items() if value and name not in ours):
        meant = _meant(name, unset)
        if meant:
            warnings.append(f"{name} is set, but no recipe reads it: did you mean {meant}?")
    return warnings


def _meant(name: str, unset: list[str]) -> str | None:
    plain = name.upper().replace("_", "")
    for other in unset:
        if plain == other.replace("_", "") or name.upper() in ELSEWHERE.get(other, ()):
            return other
    long = [other for other in unset if len(other) >= SHORTEST]
    return next(iter(difflib.get_close_matches(name.upper(), long, n=1, cutoff=SIMILAR)), None)

"""Variables that look like ours are warned about; those of an everyday environment are not."""

import pytest

from recipes.launch.misspelt import ELSEWHERE, misspelt_variables
from recipes.launch.variables import VARIABLES

NAMES = [variable.name for variable in VARIABLES]

# Of environments in which such trainings are started: the names that come nearest to ours.
USUAL = """
CACHE_DIR CONFIG_FILE CONTAINER_ID CUDA_DEVICE_ORDER DATA_DIR DEBUG ENV_FILE GOPATH GROUP_RANK HF_HOME LOCAL_WORLD_SIZE
LOGNAME LOG_DIR LOG_FILE LOG_LEVEL MANPATH MASTER_PORT MODE MODEL_CACHE MODEL_SERVER_PORT MODEL_SERVICE_HOST MODULEPATH
MODULEPATH_ROOT MODULESHOME NAME NODE_NAME NODE_RANK NPROC_PER_NODE PATH PBS_NODEFILE PID_FILE PYTHONHASHSEED
RAY_AUTH_MODE RAY_TMPDIR RUNNER_TEMP SKYPILOT_NUM_GPUS_PER_NODE SKYPILOT_NUM_NODES SLURM_GPUS_ON_NODE
SLURM_GPUS_PER_NODE SLURM_MEM_PER_NODE SLURM_NNODES SLURM_TASKS_PER_NODE TMUX TOKENIZERS_PARALLELISM
TORCHINDUCTOR_CACHE_DIR TRANSFORMERS_CACHE TRITON_CACHE_DIR VERSION VLLM_CACHE_ROOT WANDB_DIR WORLD_SIZE
"""


def test_a_usual_environment_gives_no_warning() -> None:
    assert misspelt_variables(dict.fromkeys(USUAL.split(), "x")) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRAINFILE", "TRAIN_FILE"),
        ("train_file", "TRAIN_FILE"),
        ("TRIAN_FILE", "TRAIN_FILE"),
        ("TRAIN_FILES", "TRAIN_FILE"),
        ("VAL_FLIE", "VAL_FILE"),
        ("MODELPATH", "MODEL_PATH"),
        ("MODEL", "MODEL_PATH"),
        ("SAVE_PTAH", "SAVE_PATH"),
        ("LEARNING_RATE", "LR"),
        ("lr", "LR"),
        ("NNODES", "N_NODES"),
        ("N_GPUS", "N_GPUS_PER_NODE"),
        ("N_GPU_PER_NODE", "N_GPUS_PER_NODE"),
        ("BATCH_SIZE", "TRAIN_BATCH_SIZE"),
        ("NUM_EPOCHS", "TOTAL_EPOCHS"),
        ("TOTAL_STEP", "TOTAL_STEPS"),
        ("ROLLOUTN", "ROLLOUT_N"),
        ("RWARDS", "REWARDS"),
        ("ALGORITM", "ALGORITHM"),
        ("RAY_ADRESS", "RAY_ADDRESS"),
        ("MAX_RESPONCE_LENGTH", "MAX_RESPONSE_LENGTH"),
    ],
)
def test_a_name_like_ours_is_warned_about_with_ours(name: str, meant: str) -> None:
    assert misspelt_variables({name: "x", "PATH": "/bin"}) == [
        f"{name} is set, but no recipe reads it: did you mean {meant}?"
    ]


def test_ours_and_empty_ones_are_not_misspelt() -> None:
    assert misspelt_variables(dict.fromkeys(NAMES, "x")) == []
    assert misspelt_variables({"TRAINFILE": ""}) == []


def test_who_sets_ours_knows_its_name() -> None:
    assert misspelt_variables({"MODEL": "of another program", "MODEL_PATH": "ours"}) == []
    assert len(misspelt_variables({"MODEL": "ours?", "MODEL_PATH": ""})) == 1


def test_the_names_elsewhere_are_not_ours_and_stand_for_one_of_ours() -> None:
    names = [name for others in ELSEWHERE.values() for name in others]
    assert len(set(names)) == len(names)
    assert not set(names) & set(NAMES)
    assert set(ELSEWHERE) <= set(NAMES)

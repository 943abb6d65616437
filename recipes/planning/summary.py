"""What a run will do, in the lines of its dry run."""

from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from recipes.planning.constants import GPUS
from recipes.planning.estimate import Requirements, checkpoint_bytes
from recipes.planning.figures import GIB
from recipes.planning.models import ModelSize, model_size
from recipes.planning.network import Cluster
from recipes.planning.plan import make_plan
from recipes.planning.run import Data
from recipes.planning.work import checkpoints_of, rows_of, steps_of

GPU = "H100"  # the kind that the hours are told for


def summary(config: DictConfig, requirements: Requirements) -> list[str]:
    """Steps, checkpoints and, on GPUs, hours. The files of the config are there (Recipe.check)."""
    rows = rows_of(config)
    steps = steps_of(config, rows)
    batch, test = config.data.train_batch_size, config.trainer.test_freq
    written, kept = checkpoints_of(config, steps)
    validations = f"a validation every {test} steps" if test > 0 else "no validation on the way"
    text = [f"steps: {steps:,} of {batch:,} rows out of {rows:,}; {validations}"]
    try:
        size = model_size(OmegaConf.select(config, requirements.model_key))
    except (OSError, ValueError):
        return [*text, f"checkpoints: {written}, {kept} of them kept; the model is not here, so their size is unknown"]
    checkpoint = checkpoint_bytes(size) / GIB
    text.append(
        f"checkpoints: {written}, {kept} of them kept: {checkpoint:.2f} GiB each, {kept * checkpoint:.1f} in all"
    )
    return text + _hours(config, size, Data(rows, rows_of(config, "val_files")), requirements)


def _hours(config: DictConfig, size: ModelSize, data: Data, requirements: Requirements) -> list[str]:
    """Nothing for what a plan does not model."""
    gpu = GPUS[GPU]
    cluster = Cluster(config.trainer.nnodes, config.trainer.n_gpus_per_node, gpu, gpu.network)
    try:
        plan = make_plan(config, size, cluster, data, requirements)
    except UserError:
        return []
    parts = ", ".join(f"{phase.name} {phase.value:.2f}" for phase in plan.phases if phase.value)
    return [
        f"time: about {plan.hours.value:.1f} hours by a model of {GPU}s, not a measurement (convrec plan says what it "
        f"rests on); seconds of a step: {parts}"
    ]

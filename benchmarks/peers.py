"""What the peers of bench_training.py share: a job with its rows and settings, TRL's options, the metrics they write.

`write_job` runs in this project's environment. The rest also runs in a peer's, which has Transformers but not convrec.
"""

import json
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

SAVED_MODEL = "model"  # folder of a run
ADAM_BETA2 = 0.99  # as in conf/rl.yaml
MEAN_LENGTH = "completions/mean_length"  # TRL's name


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a peer trains on, and the settings that it has in common with run_rank_grpo.sh.

    Attributes:
        run_folder: where metrics/0.jsonl is written, as by a run of this project.
        model: a Hugging Face folder.
        rows: JSON lines with the columns of the training table; no prompt has more than `max_prompt_length` tokens.
        batch: prompts per step.
        micro_batch: responses per pass.
        min_response_length: tokens of a response at least; the model cannot end before.
        bf16: whether passes compute in bf16, as those of this project would on this processor.
        reward: arguments of reward.catalog_match.compute_score, the catalog and the number of items among them.
    """

    run_folder: str
    model: str
    rows: str
    steps: int
    batch: int
    rollouts: int
    micro_batch: int
    max_prompt_length: int
    max_response_length: int
    min_response_length: int
    learning_rate: float
    kl_loss_coef: float
    temperature: float
    seed: int
    bf16: bool
    reward: dict[str, Any]


def write_job(environment: Mapping[str, str], micro_batch: int, has_whole_responses: bool = False) -> Path:
    """Write a job, and its rows, into the run folder; return its file.

    Args:
        environment: the variables of run_rank_grpo.sh.
        micro_batch: the largest number of responses per pass.
        has_whole_responses: every response is as long as it may be.
    """
    # Only this environment has them.
    import pyarrow.parquet as pq
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    from convrec.checkpoints.models import resolve_model
    from recipes.launch.recipe import RECIPES
    from recipes.launch.settings import compose_elsewhere
    from recipes.preflight.precision import BF16, choose_precision

    run = compose_elsewhere(RECIPES["rank_grpo"], [], ["host=cpu"], environment)
    settings = run.settings
    run.folder.mkdir(parents=True)
    model = resolve_model(settings.model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [row for file in run.files["data.train_files"] for row in pq.read_table(file).to_pylist()]
    rows_file = run.folder / "rows.jsonl"
    with rows_file.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(fit_row(row, tokenizer, settings.max_prompt_length)) + "\n")
    job = Job(
        run_folder=str(run.folder),
        model=model,
        rows=str(rows_file),
        steps=settings.total_steps,
        batch=settings.train_batch_size,
        rollouts=settings.num_generations,
        # Both versions of TRL want equal micro-batches.
        micro_batch=math.gcd(micro_batch, settings.train_batch_size * settings.num_generations),
        max_prompt_length=settings.max_prompt_length,
        max_response_length=settings.max_response_length,
        min_response_length=has_whole_responses * settings.max_response_length,
        learning_rate=settings.learning_rate,
        kl_loss_coef=settings.kl_loss_coef,
        temperature=run.verl_config.actor_rollout_ref.rollout.temperature,
        seed=settings.seed,
        bf16=choose_precision(run).dtype == BF16,
        reward=OmegaConf.to_container(run.verl_config.reward.custom_reward_function.reward_kwargs, resolve=True),  # type: ignore[arg-type]
    )
    file = run.folder / "job.json"
    file.write_text(json.dumps(asdict(job), indent=2), encoding="utf-8")
    return file


def fit_row(row: Mapping[str, Any], tokenizer: Any, max_prompt_length: int) -> dict[str, Any]:
    """Return the columns of a row that a peer reads, with the prompt that the model sees in a run of this project."""
    from convrec.data.chat import fit_prompt
    from convrec.data.schema import TRUTH, get_truth

    return {
        "prompt": fit_prompt(tokenizer, row["prompt"], max_prompt_length),
        "seen_titles": row["seen_titles"] or [],
        TRUTH: [list(pair) for pair in get_truth(row)],
    }


def read_job(file: str) -> Job:
    """Read what `write_job` has written."""
    return Job(**json.loads(Path(file).read_text(encoding="utf-8")))


def read_rows(job: Job) -> list[dict[str, Any]]:
    """Read the rows of a job."""
    return [json.loads(line) for line in Path(job.rows).read_text(encoding="utf-8").splitlines()]


def trainer_options(job: Job) -> dict[str, Any]:
    """Return the options that GRPOConfig has in both versions of TRL: one update per step, as with MU=1."""
    responses = job.batch * job.rollouts
    return {
        "output_dir": job.run_folder,
        "max_steps": job.steps,
        "per_device_train_batch_size": job.micro_batch,
        "gradient_accumulation_steps": responses // job.micro_batch,
        "generation_batch_size": responses,
        "num_generations": job.rollouts,
        "max_completion_length": job.max_response_length,
        "temperature": job.temperature,
        "generation_kwargs": {"min_new_tokens": job.min_response_length},
        "beta": job.kl_loss_coef,
        "learning_rate": job.learning_rate,
        "lr_scheduler_type": "constant",
        "adam_beta2": ADAM_BETA2,
        "seed": job.seed,
        "use_cpu": True,
        "bf16": job.bf16,
        "gradient_checkpointing": False,  # as in conf/host/cpu.yaml
        "dataloader_pin_memory": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def save_model(model: Any, job: Job) -> None:
    """Save a trained model as RUN/model: its weights, with the other files of the model that it was trained from.

    So it is loaded as that one is, whatever the peer's Transformers would write.
    """
    folder = Path(job.run_folder) / SAVED_MODEL
    model.save_pretrained(folder)
    for file in Path(job.model).iterdir():
        if file.is_file() and "safetensors" not in file.name:
            shutil.copy(file, folder / file.name)


class StepRecorder(TrainerCallback):
    """Writes the metrics of each step as a run of this project does, under the names of `read_metrics`.

    A step begins before its responses are generated and ends after the update, as verl's does.
    """

    def __init__(self, model: Any, run_folder: str) -> None:
        """Record the steps of a model.

        Args:
            model: the one that the trainer trains; its `generate` is timed from now on.
            run_folder: the folder of the run.
        """
        self._file = Path(run_folder) / "metrics" / "0.jsonl"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._generate = model.generate
        model.generate = self._time_generate
        self._begin = 0.0
        self._seconds: dict[str, float] = {}

    def _time_generate(self, *arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        responses = self._generate(*arguments, **options)
        self._seconds["timing_s/gen"] = time.perf_counter() - begin
        return responses

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._seconds["timing_s/step"] = time.perf_counter() - self._begin

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or MEAN_LENGTH not in logs:  # the summary at the end
            return
        metrics = {**self._seconds, "response_length/mean": logs[MEAN_LENGTH]}
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": state.global_step, "data": metrics}) + "\n")

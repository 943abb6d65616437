"""GRPO by TRL's GRPOTrainer on a CPU, for bench_training.py: the rows and settings of a job, Transformers' generation.

PYTHONPATH=PEERS/trl:. python benchmarks/trl_grpo.py RUN/job.json

PEERS is what benchmarks/peers_environment.sh has made; the rest is of this project's environment.
"""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.peers import StepRecorder, read_job, read_rows, save_model, trainer_options
from convrec.data.schema import TRUTH
from reward.catalog_match import compute_score


def main() -> None:
    # TRL imports vLLM wherever it is installed. This run does not use it, and is not to pay for it.
    sys.modules["vllm"] = None  # type: ignore[assignment]
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    job = read_job(sys.argv[1])
    trainer = GRPOTrainer(
        model=job.model,
        reward_funcs=make_reward(job.reward),
        args=GRPOConfig(**trainer_options(job), loss_type="grpo", model_init_kwargs={"dtype": "float32"}),
        train_dataset=Dataset.from_list(read_rows(job)),
    )
    trainer.add_callback(StepRecorder(trainer.model, job.run_folder))
    trainer.train()
    save_model(trainer.model, job)


def make_reward(settings: dict[str, Any]) -> Callable[..., list[float]]:
    """Make TRL's reward function: the score on which GRPO trains in this project.

    Args:
        settings: arguments of `compute_score`.
    """

    def catalog_match(completions: list[list[dict[str, str]]], seen_titles: list[list[str]], **columns: Any) -> list:
        scores = []
        for completion, seen, truth in zip(completions, seen_titles, columns[TRUTH], strict=True):
            ground_truth = {"groundtruth": truth, "seen": seen}
            scores.append(compute_score("convrec", completion[0]["content"], ground_truth, **settings)["score"])
        return scores

    return catalog_match


if __name__ == "__main__":
    main()

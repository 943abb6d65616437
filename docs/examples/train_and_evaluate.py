"""Warm start, Rank-GRPO and evaluation from Python: docs/how-to/python.md.

    python docs/examples/train_and_evaluate.py MODEL DATA OUT

DATA holds what `convrec data sample --out DATA` writes. A second start goes on where the first has ended.
"""

import sys

from convrec import RankGRPOConfig, SFTConfig, evaluate, train


def main(model: str, data: str, out: str, total_steps: int | None = None) -> float:
    """Return the NDCG@20 of the trained model on the test split."""
    sft = train(
        SFTConfig(
            model=model,
            train_file=f"{data}/sft_train.parquet",
            val_file=f"{data}/sft_validation.parquet",
            output_dir=f"{out}/sft",
            total_steps=total_steps,
            train_batch_size=8,
        )
    )
    run = train(
        RankGRPOConfig(
            model=str(sft.folder),
            train_file=f"{data}/train.parquet",
            val_file=f"{data}/validation.parquet",
            catalog_file=f"{data}/catalog.parquet",
            output_dir=f"{out}/rank_grpo",
            total_steps=total_steps,
            train_batch_size=4,
            num_generations=2,
            max_prompt_length=256,
            max_response_length=256,
        )
    )
    metrics = evaluate(run, data=f"{data}/test.parquet", catalog=f"{data}/catalog.parquet", out=f"{out}/evaluation")
    return float(metrics["results"]["paper"]["model"]["ndcg@20"]["mean"])


if __name__ == "__main__":
    model, data, out = sys.argv[1:]
    print(f"NDCG@20: {main(model, data, out):.4f}")

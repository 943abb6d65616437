"""What a step should take at full scale: the table of docs/explanation/performance.md. Nothing is run.

python benchmarks/step_time.py [--prompt 400] [--response 220] [--batch 48] [--rollouts 8]
"""

import argparse

from recipes.preflight.step_time import Batch, kv_bytes, step_seconds

MODELS = {  # parameters, bytes of a token in the cache
    "Qwen2.5-0.5B": (0.494e9, kv_bytes(24, 2, 64)),
    "Llama-3.2-1B": (1.236e9, kv_bytes(16, 8, 64)),
    "Llama-3.2-3B": (3.213e9, kv_bytes(28, 8, 128)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=Batch.prompts, help="prompts of a step")
    parser.add_argument("--rollouts", type=int, default=Batch.rollouts)
    parser.add_argument("--prompt", type=int, default=Batch.prompt, help="tokens, in the mean")
    parser.add_argument("--response", type=int, default=Batch.response, help="tokens of a list of 20")
    options = parser.parse_args()
    batch = Batch(options.batch, options.rollouts, options.prompt, options.response)
    print("| model | GPUs | generation | reference | update | sync | step | with old log-probs |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (parameters, cache_bytes) in MODELS.items():
        for gpus in (4, 8):
            parts = step_seconds(parameters, cache_bytes, gpus, batch)
            total = sum(parts.values())
            cells = [f"{seconds:.2f}" for seconds in (*parts.values(), total, total + parts["reference"])]
            print(f"| {name} | {gpus} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

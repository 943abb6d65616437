"""The parts of `python -m recipes.evaluate`: the split, its scoring, baselines, sweeps over a run's checkpoints."""

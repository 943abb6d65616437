"""The parts of `convrec evaluate`: the split, its scoring, baselines, sweeps over a run's checkpoints."""

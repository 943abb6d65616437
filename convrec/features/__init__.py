"""Parts of training that a run may turn on, a folder each: settings, checks, mathematics, rollout, metrics."""

"""Every setting of a run that is ours, that a variable sets or that checks compute with: a class for each recipe."""

"""Trackers that upload (SwanLab, W&B, ...): whether they can be reached, and one curve for a run that was resumed."""

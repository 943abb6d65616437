"""Trackers (SwanLab, W&B, TensorBoard, ...): where they write, and one curve for a run that was resumed."""

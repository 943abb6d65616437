"""Trackers (SwanLab, W&B, TensorBoard, ...): their folders and modes, and whole curves for resumed runs."""

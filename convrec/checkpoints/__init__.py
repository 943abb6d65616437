"""Checkpoints: saving, whole files, names of models, LoRA adapters."""

"""Checkpoints: saving, checks of their files, model paths and ids, LoRA adapters."""

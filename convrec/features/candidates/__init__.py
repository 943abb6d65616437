"""Prompts that name retrieved candidates, which the model may recommend."""

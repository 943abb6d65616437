"""Prompts that name what a retrieval found, which the model may recommend."""

"""Prompts that no rollout hits get a relevant title (docs/explanation/method.md 3)."""

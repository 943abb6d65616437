"""Rank rewards composed of several parts (docs/explanation/method.md 2)."""

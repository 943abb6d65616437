"""Rank rewards that are composed of several parts (docs/explanation/method.md 2)."""

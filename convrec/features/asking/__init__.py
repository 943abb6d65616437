"""Conversations in which the model may ask before it recommends; simulated users (docs/explanation/method.md 10)."""

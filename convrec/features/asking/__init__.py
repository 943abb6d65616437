"""Conversations in which the model may ask before it recommends (docs/explanation/method.md 10), and who answers it."""

"""Training and evaluation of judge models."""

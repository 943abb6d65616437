"""Attention where flash-attn is not installed."""

"""Attention without flash-attn."""

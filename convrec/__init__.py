"""Rank-GRPO for conversational recommenders: the library."""

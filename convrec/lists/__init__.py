"""Lists and their evaluation: the rank grammar in text and tokens, rank rewards, metrics."""

"""Offline batches with vLLM, in a child process; answers kept as parquet."""

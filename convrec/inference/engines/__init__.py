"""vLLM's engines, in separate processes."""

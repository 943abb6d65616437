"""vLLM's engines, in processes of their own."""

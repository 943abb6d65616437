"""verl and vLLM on a host without an accelerator."""

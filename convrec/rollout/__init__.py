"""verl's rollout: agent loop, groups of responses, reward manager, TransferQueue, vLLM server."""

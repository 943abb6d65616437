"""Constrained decoding: lists contain only lines of the catalog (docs/explanation/method.md 9).

`catalog_trie` holds all lines as token sequences, `trie` turns them into a tree in arrays, `walk` computes which tokens
may come next in one list, and `vllm_lists` and `vllm_processor` mask the logits of a batch in vLLM accordingly.
"""

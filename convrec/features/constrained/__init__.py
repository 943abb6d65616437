"""Lists that cannot be wrong: decoding held to the lines of the catalog. docs/explanation/method.md 9.

`catalog_trie` has all lines as token sequences, `trie` as a tree in arrays, `walk` says which tokens may come next in
one list, and `vllm_lists` and `vllm_processor` put that on the logits of a batch in vLLM.
"""

"""Lists without a language model: what similar conversations wanted, what goes with the titles named, whose text fits;
and the one way in which lists are fused."""

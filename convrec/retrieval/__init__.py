"""Lists without a language model: what similar conversations wanted, what goes with titles named, whose text fits."""

"""Lists without a language model: from similar conversations, co-occurring titles and the words of the catalog."""

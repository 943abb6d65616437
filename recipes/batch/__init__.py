"""Lists for many conversations from files: the rows, the parts that are kept as they come, and who writes them."""

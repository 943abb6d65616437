"""What `recipes.matrix` is made of: the file and its runs, training them here or on a cluster, their tables."""

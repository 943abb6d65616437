"""What a list is and what it is worth: ranks, catalog, matching, rank rewards, metrics."""

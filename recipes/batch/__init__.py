"""Lists for many conversations from files: reading them, storing parts of the result, and the replicas."""

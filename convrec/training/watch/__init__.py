"""Watch the processes and nodes of a run."""

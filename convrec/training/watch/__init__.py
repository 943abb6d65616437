"""What watches the processes and nodes of a run."""

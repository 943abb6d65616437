"""What a run needs and how long it takes, computed before there is one: memory, disk, network, steps, hours."""

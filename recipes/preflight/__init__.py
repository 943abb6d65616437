"""What is checked before anything expensive starts: settings, data, machine, cluster."""

"""SFT: what its two trainers share, one for a device of this machine and one for a Ray cluster."""

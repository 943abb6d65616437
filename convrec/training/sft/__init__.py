"""SFT: its loop, and the two trainers, one for a single device of this machine and one on Ray."""

"""Errors, files, kinds and records of options: what everything else stands on."""

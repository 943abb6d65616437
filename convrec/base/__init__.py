"""Errors, files, kinds of values and records of options, on which everything else builds."""

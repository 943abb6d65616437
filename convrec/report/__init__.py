"""Curves, charts and the HTML page of a run."""

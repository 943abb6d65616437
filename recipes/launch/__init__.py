"""A run from settings to its end: variables, config, console, Ray."""

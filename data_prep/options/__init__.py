"""The options of each command that prepares data, one record each, listed in recipes/cli.py. Imports nothing heavy."""

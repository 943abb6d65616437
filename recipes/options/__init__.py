"""The options of each command, a record each: recipes/cli.py has which. They import nothing heavy."""

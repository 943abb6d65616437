"""The options of each command that makes data, a record each: recipes/cli.py has which. They import nothing heavy."""

"""`python -m recipes COMMAND` is `convrec COMMAND`."""

from recipes.cli import main

main()

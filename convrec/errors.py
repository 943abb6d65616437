"""The one exception that means: the user can mend this."""


class UserError(ValueError):
    """Bad input: the message names the file, row or variable and says how to mend it.

    Entry points print it without a traceback and exit with status 2.
    """

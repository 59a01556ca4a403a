"""The one exception for mistakes a user can mend: jobs print it as a sentence and exit with code 2."""


class UserError(ValueError):
    """A wrong setting or input; the message names it and says what would be right, in one sentence."""


class RunFailed(RuntimeError):
    """A run that cannot go on although its settings are right; jobs print it and exit with code 1."""

"""The two ways Graft stops: what it was given is wrong, or the run itself went wrong."""


class GraftError(Exception):
    """One clear sentence for the person who started the run."""


class InputError(GraftError):
    """What was asked for cannot be done: say what was wrong, what is possible, and where."""


class RunError(GraftError):
    """The run failed: say which client, which step and which round."""


class GraftWarning(UserWarning):
    """One clear sentence about a run that goes on."""


class DataWarning(GraftWarning):
    """Something in the data that was given is not used, or is likely not meant."""


class MemoryWarning(GraftWarning):
    """The run may need more memory than there is; it goes on."""

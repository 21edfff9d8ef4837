"""Every error that Chairlift raises on purpose.

ChairliftError
├── InvalidRequest      the request is wrong in itself; asking again gives the same answer
│   └── NeverFits       well-formed, but larger than this engine can ever hold
├── Overloaded          refused for now; the same request may be served later
├── InvalidModel        a model file or folder that cannot be loaded, with the reason in one line
├── InvalidOption       a flag, setting or combination of them that makes no sense here
├── InvalidJournal      a recording that cannot be replayed, with the line that is wrong
└── EngineDead          the engine stopped; nothing in flight will be finished
"""


class ChairliftError(Exception):
    """Parent of all errors raised on purpose; the text is fit for the user's eyes."""


class InvalidRequest(ChairliftError):
    """The request is wrong in itself. `param` names the offending field, where one can be named."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class NeverFits(InvalidRequest):
    """Well-formed, but larger than the context, the cache or the batch can ever hold."""


class Overloaded(ChairliftError):
    """Refused for now; the same request may be served later.

    `reason` is one word of a closed list (see `core/admission.py`), `wait_s` how long until it is worth asking again,
    as far as that can be estimated.
    """

    def __init__(self, message: str, reason: str = "overloaded", wait_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.wait_s = wait_s


class InvalidModel(ChairliftError):
    """A model file or folder that cannot be loaded."""


class InvalidOption(ChairliftError):
    """A flag, setting or combination of them that makes no sense here."""


class InvalidJournal(ChairliftError):
    """A recording that cannot be replayed; the text names the line that is wrong, where it is one."""


class EngineDead(ChairliftError):
    """The engine stopped; nothing in flight will be finished."""

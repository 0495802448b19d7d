"""How the decoder refuses."""


class DecodeError(ValueError):
    """A message that pgoutput would not have sent. `index` counts within the array given to `feed`."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"pgoutput message {index}: {reason}")
        self.index = index
        self.reason = reason

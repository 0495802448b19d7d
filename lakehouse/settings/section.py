"""What every group of settings is made of."""

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr

from lakehouse.text.numbers import StrictNumbers

Port = Annotated[int, Field(ge=1, le=65535)]


def is_blank(given: object) -> bool:
    """Whether a variable is set to nothing: a compose file can leave one empty, but not away."""
    text = given.get_secret_value() if isinstance(given, SecretStr) else given
    return isinstance(text, str) and not text.strip()


Url = Annotated[SecretStr | None, BeforeValidator(lambda given: None if is_blank(given) else given)]
"""A URL that may be unset, which an empty one is; libpq would take that for its own default database."""


class Section(StrictNumbers):
    """A group of settings; unknown names are errors, so that a typing mistake does not go unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

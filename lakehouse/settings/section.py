"""What every group of settings is made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=1, le=65535)]


class Section(BaseModel):
    """A group of settings; unknown names are errors, so that a typing mistake does not go unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

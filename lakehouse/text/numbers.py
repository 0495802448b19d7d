"""Values that are read as numbers and were not written as such."""

from typing import Any

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from lakehouse.text.spelling import kinds_at


class StrictNumbers(BaseModel):
    """A model whose numbers are no truth values: pydantic takes true for 1, and YAML `yes` and `on` for true."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name is not None:
            kinds = kinds_at(cls, [info.field_name])
            if bool not in kinds and {int, float} & set(kinds):
                raise PydanticCustomError(
                    "truth_value", "a number is wanted, not {given}", {"given": str(value).lower()}
                )
        return value

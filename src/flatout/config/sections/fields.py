"""What the sections of a recipe are made of: the base class and the types of quantities."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from flatout import plugins
from flatout.errors import ConfigError
from flatout.units import parse_bits_per_second, parse_bytes, parse_seconds


def as_word(value: Any) -> Any:
    """YAML 1.1 reads a bare off/on as a boolean; where a word is meant it is turned back."""
    return {False: "off", True: "on"}.get(value, value) if isinstance(value, bool) else value


def none_is_empty(value: Any) -> Any:
    """A section set to null is the section with its defaults."""
    return {} if value is None else value


def _quantity(parse: Callable[[Any], float]) -> BeforeValidator:
    """A number with a unit; what is wrong with it is said together with the key it stands under."""

    def parse_or_explain(value: Any) -> float:
        try:
            return parse(value)
        except ConfigError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None

    return BeforeValidator(parse_or_explain)


def _is_numeric(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_numeric(part) for part in get_args(annotation))


def ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise PydanticCustomError("order", "the smallest comes first, then the largest")
    return bounds


def named(group: str, *shipped: str) -> AfterValidator:
    """One of the shipped names, or user code: a reference, or an installed entry point of flatout.<group>."""

    def check(name: str) -> str:
        if name in shipped or plugins.is_user_code(group, name):
            return name
        known = [repr(each) for each in (*shipped, *plugins.installed(group))]
        choice = " or ".join([", ".join(known[:-1]), *known[-1:]] if len(known) > 1 else known)
        also = f"{choice}, or your own as" if known else "your own as"
        raise PydanticCustomError("named", "{text}", {"text": f"input should be {also} module:Name or ./file.py:Name"})

    return AfterValidator(check)


Bytes = Annotated[int, _quantity(parse_bytes)]
Seconds = Annotated[float, _quantity(parse_seconds)]
BitsPerSecond = Annotated[float, _quantity(parse_bits_per_second)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Side = Annotated[int, Field(ge=1, le=4096)]
Auto = Literal["auto"]
OffAuto = Annotated[Literal["off", "auto"], BeforeValidator(as_word)]


MOST_WHOLE, MOST = 1e18, 1e30
"""Of any whole number in a recipe (bytes of an exabyte), and of any other (its square is still finite)."""


class Section(BaseModel):
    """A part of a recipe: unknown keys, infinities and booleans in place of numbers are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, coerce_numbers_to_str=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_true_as_one(cls, value: Any, info: ValidationInfo) -> Any:
        """`epochs: yes` is a boolean in YAML, and would otherwise pass for 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and _is_numeric(field.annotation):
            raise PydanticCustomError("boolean_as_number", "input should be a number, not a boolean")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _refuse_absurd(cls, value: Any) -> Any:
        """No key needs more, and what is computed from it stays finite."""
        most = MOST_WHOLE if isinstance(value, int) else MOST
        if isinstance(value, int | float) and abs(value) > most:
            raise PydanticCustomError("too_large", f"input should be at most {most:g}")
        return value

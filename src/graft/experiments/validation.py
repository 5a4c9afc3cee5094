"""Values against the fields of a dataclass: what does not fit is refused in one sentence. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from graft.errors import InputError
from graft.fields import check_field
from graft.registry import close_to

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

Kind = TypeVar("Kind", bound="DataclassInstance")


def validated(kind: type[Kind], values: Mapping[str, Any], what: str) -> Kind:
    """Returns an instance of a dataclass made of those values; one that does not fit is refused in one sentence."""
    from pydantic import ValidationError

    names = [entry.name for entry in fields(kind)]
    check_known(values, names, what)
    try:
        instance: Kind = type_adapter(kind).validate_python(dict(values))
        return instance
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and part in names)
        if name in values and isinstance(first["input"], int | float):
            check_field(kind, name, first["input"])  # says it in our words, where a bound is not kept
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise InputError(f"Setting '{name}' of {what} is {first['input']!r}: {message}.") from None


@lru_cache(maxsize=64)
def type_adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Returns the validator of a dataclass; it takes longer to make than a study takes to use it hundreds of times."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def check_known(values: Mapping[str, Any], names: list[str], what: str) -> None:
    """Refuses values that there is no field for."""
    for name in values:
        if name not in names:
            possible = ", ".join(sorted(names)) or "none at all"
            raise InputError(f"Unknown setting '{name}'{close_to(name, names)} of {what}: there are {possible}.")

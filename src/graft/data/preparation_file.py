"""What a saved preparation may hold: every value is checked, since the file may come from somebody else."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graft.data.encoding import EncodedColumn, Encoding
from graft.data.scaling import Scaling
from graft.data.schema import MOST_BUCKETS, parse_schema
from graft.errors import InputError

Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Column(_Strict):
    name: Name
    kind: Literal["number", "date", "category"]
    missing: bool
    log: bool
    categories: list[str] | None
    other: bool
    buckets: Annotated[int, Field(ge=0, le=MOST_BUCKETS)]


class _Encoding(_Strict):
    columns: list[_Column]
    directed: bool
    weighted: bool
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class _Scaling(_Strict):
    features: Literal["raw", "row", "l2", "standard"]
    columns: list[Annotated[int, Field(ge=0)]] | None
    mean: list[Finite] | None
    deviation: list[Annotated[Finite, Field(ge=0)]] | None
    factor: Annotated[Finite, Field(gt=0)] = 1.0


class PreparationContent(_Strict):
    """The content of a preparation's JSON, with the types that it must have."""

    format: Literal[1]
    encoding: _Encoding | None
    scaling: _Scaling | None
    feature_names: list[str] | None
    features: Annotated[int, Field(ge=1)]
    class_names: list[str] | None
    classes: Annotated[int, Field(ge=1)]
    positive: str | None


def parse(content: Any) -> PreparationContent:
    """Returns the checked content; raises one sentence about the first value that is wrong."""
    try:
        parsed = PreparationContent.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "it"
        raise InputError(f"The saved preparation cannot be used: {path}: {first['msg']}.") from error
    for message, wrong in _inconsistencies(parsed):
        if wrong:
            raise InputError(f"The saved preparation cannot be used: {message}.")
    return parsed


def _inconsistencies(content: PreparationContent) -> list[tuple[str, bool]]:
    names, classes, scaling = content.feature_names, content.class_names, content.scaling
    checks = [
        ("feature_names are not as many as features", names is not None and len(names) != content.features),
        ("class_names are not as many as classes", classes is not None and len(classes) != content.classes),
        ("class_names repeat themselves", classes is not None and len(set(classes)) < len(classes)),
        ("positive is not a class", content.positive is not None and content.positive not in (classes or ())),
    ]
    if scaling is None:
        return checks
    columns = list(range(content.features)) if scaling.columns is None else scaling.columns
    moments = [values for values in (scaling.mean, scaling.deviation) if values is not None]
    return [
        *checks,
        ("scaling.columns do not rise", any(a >= b for a, b in pairwise(columns))),
        ("scaling.columns name a feature that does not exist", bool(columns) and columns[-1] >= content.features),
        ("scaling has no mean and deviation", len(moments) != 2 * (scaling.features == "standard")),
        ("scaling has not one mean and deviation a column", any(len(values) != len(columns) for values in moments)),
    ]


def to_encoding(content: PreparationContent) -> Encoding | None:
    """Returns the encoding, where its features are those that are named."""
    if content.encoding is None:
        return None
    columns = [
        EncodedColumn(
            **{**column.model_dump(), "categories": None if column.categories is None else tuple(column.categories)}
        )
        for column in content.encoding.columns
    ]
    for column in columns:
        if column.kind == "category" and (column.categories is None) != (column.buckets > 0):
            raise InputError(f"The saved preparation cannot be used: '{column.name}' needs categories or buckets.")
    schema = parse_schema(content.encoding.schema_, "the saved preparation")
    encoding = Encoding(tuple(columns), content.encoding.directed, content.encoding.weighted, schema)
    repeated = len({column.name for column in columns}) < len(columns)
    if repeated or encoding.feature_names != tuple(content.feature_names or ()):
        raise InputError("The saved preparation cannot be used: feature_names are not those of its encoding.")
    return encoding


def to_scaling(content: PreparationContent, encoding: Encoding | None) -> Scaling | None:
    """Returns the scaling, where its columns are the numbers of the encoding."""
    saved = content.scaling
    if saved is None:
        return None
    columns = None if saved.columns is None else np.array(saved.columns, np.int64)
    if encoding is not None and saved.mean is not None and saved.columns != encoding.numeric.tolist():
        raise InputError("The saved preparation cannot be used: scaling.columns are not the numbers of its encoding.")
    mean, deviation = (
        None if values is None else np.array(values, np.float64) for values in (saved.mean, saved.deviation)
    )
    return Scaling(saved.features, columns, mean, deviation, saved.factor)

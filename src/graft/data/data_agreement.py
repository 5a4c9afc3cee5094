"""What the parties of a federation agree on about data before anybody reads a file: columns, features and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from graft.data.class_agreement import find_positive
from graft.data.encoding import EncodedColumn, Encoding
from graft.data.graphs import MOST_CLASSES
from graft.data.preparation import FEATURES, SCALINGS
from graft.data.schema import Schema
from graft.data.splits import parse
from graft.data.streams import check_seed
from graft.data.tables.classes import UNLABELLED, class_spelling
from graft.errors import InputError

# How files are read, which a party may say for itself: no feature depends on it.
READING = (
    "nodes",
    "edges",
    "id",
    "source",
    "target",
    "rename",
    "separator",
    "encoding",
    "decimal",
    "missing",
    "date_formats",
    "unknown_nodes",
)
MERGED = ("rename", "date_formats")  # tables, of which a party's own entries come on top


@dataclass(frozen=True)
class DataAgreement:
    """The part of a federation's agreement that concerns data; every party comes to the same features by it alone."""

    classes: tuple[str, ...] | int  # names in the order of their numbers, or how many there are
    schema: Schema = field(default_factory=Schema)
    declared_features: tuple[str, ...] | int | None = None  # names or number; None: as the columns of the schema say
    features: str = "auto"  # how they are scaled: auto, raw, row, l2 or standard
    scaling: str = "local"
    split: str = "20/40/40"
    inductive: bool = False
    seed: int = 0
    positive: str | None = None  # the class of interest
    feature_norm: float = 0.0  # median length of a party's rows of features; 0: as they are

    def __post_init__(self) -> None:
        check_classes(self.classes)
        if self.features not in FEATURES:
            raise InputError(f"features is '{self.features}'; choose one of {', '.join(FEATURES)}.")
        if self.scaling != "local":
            known = "would tell means and categories to all" if self.scaling in SCALINGS else "does not exist"
            raise InputError(f"scaling is '{self.scaling}', which {known}: parties scale by their own data, local.")
        if self.split != "own":
            parse(self.split)
        check_seed(self.seed)
        self._check_features()
        find_positive([self.positive], self.class_names or tuple(map(str, range(self.class_count))))

    def _check_features(self) -> None:
        names, declared = self.feature_names, self.declared_features
        if isinstance(declared, tuple) and len(set(declared)) < len(declared):
            twice = next(name for name in declared if declared.count(name) > 1)
            raise InputError(f"features names '{twice}' twice.")
        if self.encoding is None:
            if declared is None:
                raise InputError(
                    "Nobody can say how many features there are: name the columns in [schema], or give features as a "
                    "number or a list of names."
                )
            if self.width < 1:
                raise InputError(f"features is {self.width}; at least one is needed.")
            return
        if self.schema.label is None:
            raise InputError(
                '[schema] names columns but no label: say which one holds the classes, as label = "fraud".'
            )
        expected = declared if isinstance(declared, int | None) else len(declared)
        if expected is not None and expected != len(names or ()):
            raise InputError(
                f"features is {expected}, but the columns of [schema] become {len(names or ())}: leave features out, "
                f"or correct one of them."
            )
        if isinstance(declared, tuple) and declared != names:
            mine, other = next(pair for pair in zip(declared, names or (), strict=True) if pair[0] != pair[1])
            raise InputError(f"features names '{mine}' where [schema] has '{other}': leave features out.")

    @cached_property
    def encoding(self) -> Encoding | None:
        """Returns how tables become features, by the schema alone; None where it names no column."""
        return agreed_encoding(self.schema)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Returns the names of all features in their order; None where only their number was agreed on."""
        if self.encoding is not None:
            return self.encoding.feature_names
        return self.declared_features if isinstance(self.declared_features, tuple) else None

    @property
    def width(self) -> int:
        """Returns the number of features."""
        if self.feature_names is not None:
            return len(self.feature_names)
        return self.declared_features if isinstance(self.declared_features, int) else 0

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Returns the names of the classes; None where only their number was agreed on."""
        return self.classes if isinstance(self.classes, tuple) else None

    @property
    def class_count(self) -> int:
        return self.classes if isinstance(self.classes, int) else len(self.classes)

    @property
    def resolved_features(self) -> str:
        """Returns what auto means, the same for everybody: standard where tables were agreed on, raw otherwise."""
        return self.features if self.features != "auto" else "raw" if self.encoding is None else "standard"

    @property
    def preprocessing(self) -> dict[str, str | bool | float]:
        """Returns how every party prepares its data, by the names of the settings."""
        return {
            "features": self.resolved_features,
            "scaling": self.scaling,
            "feature_norm": self.feature_norm,
            "split": self.split,
            "inductive": self.inductive,
        }


def check_classes(classes: tuple[str, ...] | int) -> None:
    """Refuses classes that are fewer than two, or that could not be told apart in a table."""
    if isinstance(classes, bool) or not 2 <= (classes if isinstance(classes, int) else len(classes)) <= MOST_CLASSES:
        raise InputError(
            f"classes is {classes!r:.60}; it is a list of at least two names, or a number from 2 to {MOST_CLASSES}."
        )
    spellings: dict[str, str] = {}
    for name in () if isinstance(classes, int) else classes:
        if name.strip().casefold() in UNLABELLED:
            raise InputError(f"classes names {name!r}, which in a table means that a node has no label: rename it.")
        spelling = class_spelling([name])[name].casefold()
        if spelling in spellings:
            raise InputError(f"classes names '{spellings[spelling]}' and '{name}', which are the same in a table.")
        spellings[spelling] = name


def agreed_encoding(schema: Schema) -> Encoding | None:
    """Returns the features of the columns that a schema names, whatever the cells of anybody hold.

    Numbers come first, then categories, then dates, each in the order of the schema. Every column has a feature that
    says where a cell is empty, and a category that nobody declared counts as other, or falls into a bucket.
    """
    numbers = dict.fromkeys((*schema.numeric, *schema.log))
    columns = [EncodedColumn(name, "number", missing=True, log=name in schema.log) for name in numbers]
    for name in schema.categorical:
        declared = schema.categories.get(name)
        columns.append(
            EncodedColumn(name, "category", missing=True, buckets=schema.hash)
            if declared is None
            else EncodedColumn(name, "category", missing=True, categories=declared, other=True)
        )
    columns += [EncodedColumn(name, "date", missing=True) for name in schema.date]
    if not columns and not schema.directed:
        return None
    weighted = schema.directed and schema.edge_weight is not None
    return Encoding(tuple(columns), schema.directed, weighted, schema.without_files())


def with_own_reading(shared: Schema, own: Schema, where: str) -> Schema:
    """Returns the federation's schema with what a party's own file says of how its tables are read; anything else in
    there that the federation has not agreed on is refused."""
    default, changes = Schema(), dict[str, object]()
    for name in (entry.name for entry in fields(Schema)):
        value = getattr(own, name)
        if value == getattr(default, name) or value == getattr(shared, name):
            continue
        if name in READING:
            changes[name] = {**getattr(shared, name), **value} if name in MERGED else value
        elif name != "date" or not set(value) <= set(shared.date):  # a form of dates comes with their names
            raise InputError(
                f"{where}, [schema]: {name} is for the whole federation to agree on, and it has not agreed on that; a "
                f"party's own file says only how its tables are read ({_listed(READING)})."
            )
    return replace(shared, **changes)  # type: ignore[arg-type]


def _listed(names: Sequence[str]) -> str:
    return ", ".join("date" if name == "date_formats" else name for name in names)

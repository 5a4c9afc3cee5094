"""Tables of names: a name stands for a class or a function, which is imported when it is first asked for.

Beside the names of its table a registry resolves classes of other people: `my_method.py:FedSoft` (a file),
`package.module:FedSoft`, and the names that installed packages announce as entry points.
"""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from base64 import b32decode, b32encode
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields
from functools import cached_property
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from inspect import get_annotations
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from graft.errors import InputError
from graft.source import ClassSource, SourceError, read_class, top_level_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")
FILE_MODULE = "graft_file_"  # a module of this name and an encoded path is loaded from that path
COPIES: dict[Path, Path] = {}  # files of another machine, by their paths there, and where their copies are on this one


class UnknownName(InputError, KeyError):
    """A name that is not in a table; as a KeyError it lets `get` and `in` work."""

    __str__ = Exception.__str__  # a KeyError would show its sentence in quotes


class Reference(NamedTuple):
    """A class or function by where it is: `my_method.py:FedSoft` or `package.module:FedSoft`."""

    where: str
    attribute: str

    @property
    def is_file(self) -> bool:
        return self.where.endswith(".py")

    @property
    def path(self) -> Path:
        return Path(self.where).expanduser().resolve()

    @property
    def file(self) -> Path:
        """Returns where its file can be read."""
        return COPIES.get(self.path, self.path)

    @property
    def module(self) -> str:
        """Returns the name under which it is imported, the same in every process."""
        return file_module(self.file) if self.is_file else self.where

    def __str__(self) -> str:
        """As it is kept in a record: a file by its absolute path, so that it is found from any folder."""
        return f"{self.path if self.is_file else self.where}:{self.attribute}"


def parse_reference(name: str) -> Reference | None:
    """Returns the reference that a name is; None for a name of a table."""
    match = re.fullmatch(r"(.+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)", name, re.DOTALL)
    return Reference(match[1], match[2]) if match else None


class Registry(MutableMapping[str, Entry], Generic[Entry]):
    """A mapping from names to classes or functions; going over its names imports nothing."""

    def __init__(self, noun: str, targets: Mapping[str, str], *, group: str = "", base: str = "") -> None:
        self.noun = noun  # what an entry is called in a sentence, as "method"
        self.targets = dict(targets)  # name -> "module:attribute"
        self.group = group  # of entry points, as "graft.methods"
        self.base = base  # "module:class" that entries must inherit from; without one they must be callable
        self.added: dict[str, Entry] = {}

    __hash__ = object.__hash__
    __eq__ = object.__eq__  # comparing two tables entry by entry would import them all

    @cached_property
    def entry_points(self) -> dict[str, EntryPoint]:
        """Returns what installed packages add; a name of the table itself keeps its meaning."""
        from importlib.metadata import entry_points  # slow to import, and seldom needed

        points = entry_points(group=self.group) if self.group else ()
        return {point.name: point for point in points if point.name not in self.targets}

    def __iter__(self) -> Iterator[str]:
        return iter({**self.targets, **self.entry_points, **self.added})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.targets or name in self.added or name in self.entry_points

    def __setitem__(self, name: str, entry: Entry) -> None:
        self.added[name] = entry

    def __delitem__(self, name: str) -> None:
        del self.added[name]

    def __getitem__(self, name: str) -> Entry:
        """Imports what a name stands for; raises an InputError that says what is wrong with it."""
        if name in self.added:
            return self.added[name]
        entry: Entry = self._load(name, self.reference(name))
        return entry

    def reference(self, name: str) -> Reference:
        """Returns where the entry of a name is defined; imports nothing."""
        target = self.targets.get(name)
        if target is None and name in self.entry_points:
            target = self.entry_points[name].value.partition("[")[0].strip()
        reference = parse_reference(target or name)
        if reference is None:
            raise UnknownName(self.unknown(name))
        return reference

    def unknown(self, name: str) -> str:
        names = ", ".join(sorted(self)) or "none at all"
        own = f", or your own as my_{self.noun}.py:MyClass" if self.group else ""
        return f"Unknown {self.noun} '{name}'{close_to(name, self)}: there are {names}{own}."

    def check(self, name: str) -> None:
        """Refuses a name that cannot be resolved, as far as that can be told without importing anything."""
        if name in self:
            return
        reference = self.reference(name)
        if not reference.is_file:
            return
        try:
            names = top_level_names(reference.file)
        except SourceError as error:
            raise InputError(f"{self.noun.capitalize()} '{name}' cannot be loaded: {error}.") from None
        if names is not None and reference.attribute not in names:
            raise InputError(self._lacks(name, reference, sorted(names)))

    def source(self, name: str) -> ClassSource | None:
        """Returns what the source of an entry says of it; None where it cannot be read. Imports nothing."""
        if name in self.added:
            return None
        reference = self.reference(name)
        return read_class(reference.file if reference.is_file else reference.where, reference.attribute)

    def resolved(self, name: str) -> str:
        """Returns the name as it is kept in a record: your own file by its absolute path."""
        return name if name in self else str(self.reference(name))

    def label(self, name: str) -> str:
        """Returns a short name that can be part of a path: that of the table, or of your own class."""
        if name in self:
            return name
        reference = parse_reference(name)
        if reference is None:
            return re.sub(r"[^\w.-]+", "_", name)
        return self._own_label(
            reference.attribute, Path(reference.where).stem if reference.is_file else reference.where
        )

    def label_of(self, entry: Any) -> str:
        """Returns the short name of a class or function that was imported from anywhere."""
        for name, own in self.added.items():
            if own is entry:
                return name
        for name in self:
            reference = None if name in self.added else self.reference(name)
            if reference and getattr(sys.modules.get(reference.module), reference.attribute, None) is entry:
                return name
        path = file_of_module(entry.__module__)
        return self._own_label(entry.__name__, path.stem if path else entry.__module__)

    def spell(self, entry: Any) -> str:
        """Returns the name that a class or function can be imported by again, or else its short name."""
        label, module, name = self.label_of(entry), entry.__module__, entry.__qualname__
        if label in self or module == "__main__" or getattr(sys.modules.get(module), name, None) is not entry:
            return label
        return f"{file_of_module(module) or module}:{name}"

    def _own_label(self, attribute: str, where: str) -> str:
        label = attribute.lower()
        return re.sub(r"[^\w.-]", "_", f"{where.rpartition('.')[2]}.{label}") if label in self else label

    def matching(self, condition: Any) -> list[str]:
        """Returns the names of the table whose entries fulfil a condition, sorted."""
        return sorted(name for name in self.targets if condition(self[name]))

    def _load(self, name: str, reference: Reference) -> Any:
        module = self._import(name, reference)
        try:
            entry = getattr(module, reference.attribute)
        except AttributeError:
            names = [other for other in vars(module) if not other.startswith("_")]
            raise InputError(self._lacks(name, reference, names)) from None
        if not self.base:
            if not callable(entry):
                raise InputError(f"'{name}' is no {self.noun}: {reference.attribute} cannot be called.")
            return entry
        where, _, base = self.base.partition(":")
        if not (isinstance(entry, type) and issubclass(entry, getattr(import_module(where), base))):
            raise InputError(
                f"'{name}' is no {self.noun}: {reference.attribute} in {reference.where} does not inherit from "
                f"graft.{base}."
            )
        check_dataclass(entry, reference)
        return entry

    def _import(self, name: str, reference: Reference) -> ModuleType:
        if name in self.targets:
            return import_module(reference.module)  # our own code: what goes wrong there is no one's input
        if reference.is_file and not reference.file.is_file():
            raise InputError(f"{self.noun.capitalize()} '{name}' cannot be loaded: there is no file {reference.where}.")
        try:
            return import_module(reference.module)
        except (Exception, SystemExit) as error:
            reason = describe_failure(error, reference)
            raise InputError(f"{self.noun.capitalize()} '{name}' cannot be loaded: {reason}.") from error

    def failure(self, name: str, error: Exception) -> str:
        """Returns why a call of the entry of that name failed."""
        return describe_failure(error, None if name in self.added else self.reference(name))

    def _lacks(self, name: str, reference: Reference, names: Sequence[str]) -> str:
        attribute = reference.attribute
        return (
            f"{self.noun.capitalize()} '{name}' cannot be loaded: {reference.where} has no "
            f"'{attribute}'{close_to(attribute, names)}."
        )


def describe_failure(error: BaseException, reference: Reference | None) -> str:
    """Returns why code that somebody brought failed: the error, with the file and the line where it happened."""
    module = f"{reference.module}." if reference else ""
    if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(f"{error.name}."):
        return f"there is no module '{error.name}'"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.msg} in {error.filename}, line {error.lineno}"
    message = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    summary = f"{type(error).__name__}: {message}" if message else type(error).__name__
    files = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    frames = [frame for frame in files if frame.filename != __file__]
    own = [frame for frame in frames if reference and reference.is_file and Path(frame.filename) == reference.file]
    last = (own or frames)[-1:]
    return "".join([summary, *(f", in {frame.filename}, line {frame.lineno}" for frame in last)])


def check_dataclass(kind: type, reference: Reference) -> None:
    """Refuses a class that declares fields of its own without being a dataclass: they could not be set."""
    declared = [name for name, annotation in get_annotations(kind).items() if "ClassVar" not in str(annotation)]
    if declared and not set(declared) <= {field.name for field in fields(kind)}:
        raise InputError(
            f"{kind.__name__} in {reference.where} declares {declared[0]}, but is no dataclass: write "
            f"@dataclass(frozen=True) above the class, so that it can be set."
        )


def close_to(name: str, names: Iterable[str]) -> str:
    """Returns what was perhaps meant, to go into a sentence; empty if nothing is near."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def file_module(path: Path) -> str:
    """Returns the name of the module of a file; it holds the path, so that every process can import it."""
    return FILE_MODULE + b32encode(str(path).encode("utf-8", "surrogateescape")).decode().rstrip("=").lower()


def file_of_module(name: str) -> Path | None:
    """Returns the path in the name of a module that `file_module` gave; None for any other."""
    if not name.startswith(FILE_MODULE):
        return None
    text = name.removeprefix(FILE_MODULE).upper()
    return Path(b32decode(text + "=" * (-len(text) % 8)).decode("utf-8", "surrogateescape"))


class FileFinder:
    """Finds the modules of `file_module`, also in processes that are sent an object of such a module."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG004
        file = file_of_module(name)
        if file is None:
            return None
        if str(file.parent) not in sys.path:
            sys.path.append(
                str(file.parent)
            )  # at the end: what lies beside the file can be imported, and hides nothing
        return spec_from_file_location(name, file)


if not any(getattr(finder, "__name__", "") == FileFinder.__name__ for finder in sys.meta_path):
    sys.meta_path.append(FileFinder)

"""What the fields of a dataclass are for, read from its source: nothing is imported, so PyTorch need not be."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import annotated_types

from graft.errors import InputError
from graft.fields import Search, bounds_in, in_words
from graft.source import FieldSource, SourceError, read_class, read_value

NOTES = {name: getattr(annotated_types, name) for name in ("Ge", "Gt", "Le", "Lt", "Interval")} | {"Search": Search}


class FieldDoc(NamedTuple):
    """One field, in words for a listing."""

    name: str
    type: str  # as float, or the choices: random | gradient
    bounds: str  # as "at least 0 and below 1"; empty without any
    default: str  # as `--set` takes it; empty where a value must be given
    meaning: str  # the comment beside or above the field; that of the base class where a subclass has none
    search: Search | None = None  # the values that a tuning tries; None: it stays as it is


def describe_fields(source: Path | str, class_name: str) -> list[FieldDoc]:
    """Lists the fields of a dataclass in a file, or in a module by its dotted name, those of its bases first."""
    try:
        definition = read_class(source, class_name)
        if definition is not None:
            return [describe_field(name, field) for name, field in definition.fields.items()]
    except RecursionError:
        raise InputError(f"The definitions of class '{class_name}' in {source} go round in a circle.") from None
    raise InputError(f"There is no class '{class_name}' in {source}.")


def describe_field(name: str, field: FieldSource) -> FieldDoc:
    """Returns a field in words; bounds, meaning and search space are those of the base class where a subclass gives
    none."""
    inherited = describe_field(name, field.redeclares) if field.redeclares else FieldDoc(name, "", "", "", "")
    type_words, notes = describe_type(field.module, ast.parse(field.annotation, mode="eval").body)
    return FieldDoc(
        name,
        type_words,
        in_words(tuple(bounds_in(notes))) or inherited.bounds,
        in_settings(field.module, ast.parse(field.default, mode="eval").body) if field.default else "",
        field.meaning or inherited.meaning,
        next((note for note in notes if isinstance(note, Search)), inherited.search) or None,
    )


def describe_type(module: Path, annotation: ast.expr) -> tuple[str, list[Any]]:
    """Returns a type in words, and the bounds and the search space that are annotated with it."""
    match annotation:
        case ast.Constant(value=str(text)):
            return describe_type(module, ast.parse(text, mode="eval").body)
        case ast.Name(id=name) if alias := definition(module, name):
            return describe_type(*alias)
        case ast.Subscript(value=generic, slice=ast.Tuple(elts=[first, *notes])) if last_name(generic) == "Annotated":
            words, inner = describe_type(module, first)
            return words, [*inner, *(made for note in notes if (made := make_note(module, note)) is not None)]
        case ast.Subscript(value=generic, slice=arguments) if last_name(generic) == "Literal":
            choices = arguments.elts if isinstance(arguments, ast.Tuple) else [arguments]
            return " | ".join(in_settings(module, choice) for choice in choices), []
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            (words, bounds), (other_words, other_bounds) = (describe_type(module, side) for side in (left, right))
            return f"{words} | {other_words}", [*bounds, *other_bounds]
    return ast.unparse(annotation), []


def make_note(module: Path, note: ast.expr) -> Any:
    """Returns a bound as `Ge(0)`, or a search space, from its source; None for any other annotation."""
    if not isinstance(note, ast.Call) or last_name(note.func) not in NOTES:
        return None
    arguments = [constant(module, argument) for argument in note.args]
    named = {str(keyword.arg): constant(module, keyword.value) for keyword in note.keywords}
    return NOTES[last_name(note.func)](*arguments, **named)


def constant(module: Path, node: ast.expr) -> Any:
    """Returns the value of a literal, or of a name that stands for one; the expression itself where it is neither."""
    match node:
        case ast.Name(id=name) if meant := definition(module, name):
            return constant(*meant)
        case ast.Attribute(value=ast.Name(id="math"), attr="inf"):
            return math.inf
    try:
        return ast.literal_eval(node)
    except ValueError:
        return node


def in_settings(module: Path, node: ast.expr) -> str:
    """Returns a default or a choice as a person would write it after `--set name=`."""
    value = constant(module, node)
    if isinstance(value, ast.expr):
        return ast.unparse(value)
    if value is None or isinstance(value, str):
        return "none" if value is None else value or '""'
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)


def definition(module: Path, name: str) -> tuple[Path, ast.expr] | None:
    """Returns what a name stands for; None for a class, or where the source cannot be read."""
    try:
        return read_value(module, name)
    except SourceError:
        return None


def last_name(node: ast.expr) -> str:
    """`Literal` of both `Literal` and `typing.Literal`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

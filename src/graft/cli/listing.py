"""`graft list`: what exists, read from the source without importing it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from graft.cli.console import Text, say
from graft.data import DATASETS, PARTITIONS
from graft.errors import InputError
from graft.federation import TOPOLOGIES
from graft.field_docs import describe_field
from graft.methods import METHOD_FAMILIES, METHODS, PLUGS
from graft.models import FAMILIES, MODELS
from graft.registry import Registry, close_to
from graft.source import split_summary

TABLES: dict[str, Registry[Any]] = {
    "methods": METHODS,
    "datasets": DATASETS,
    "models": MODELS,
    "partitions": PARTITIONS,
    "topologies": TOPOLOGIES,
    "plugs": PLUGS,
}
YOURS = "Yours"  # methods that are in no family
LISTS = ("methods", "datasets", "models", "partitions", "topologies", "studies", "plugs")


def list_names(
    what: Annotated[
        str, typer.Argument(help="methods, datasets, models, partitions, topologies, studies or plugs.")
    ] = "methods",
    name: Annotated[Text, typer.Argument(help="One of them: its paper and its settings.")] = None,
) -> None:
    """Say what exists."""
    if what not in LISTS:
        raise InputError(f"There is no list of '{what}': there are {', '.join(LISTS)}.")
    if name is not None and what in TABLES:
        describe(TABLES[what], name)
        return
    if what == "methods":
        list_methods()
        return
    summaries = summaries_of(what)
    if name is not None:
        if name not in summaries:
            raise InputError(f"Unknown study '{name}'{close_to(name, summaries)}: there are {', '.join(summaries)}.")
        summaries = {name: summaries[name]}
    for entry, summary in summaries.items():
        say(f"{entry:17} {summary}".rstrip())


def list_methods() -> None:
    """Print every method in one line, by families; those of nobody's family last."""
    families = {title: (family.meaning, list(family.methods)) for title, family in METHOD_FAMILIES.items()}
    added = [name for name in METHODS if name not in METHODS.targets]
    families[YOURS] = ("Added by installed packages, or in Python.", added)
    shown = {title: listed for title, listed in families.items() if listed[1]}
    for number, (title, (meaning, names)) in enumerate(shown.items()):
        say(f"{chr(10) if number else ''}{title}: {meaning}")
        for name in sorted(names):
            say(f"  {name:17} {summary_of(METHODS, name)}".rstrip())


def summaries_of(what: str) -> dict[str, str]:
    """Returns the names of a list, each with one line about it."""
    if what == "studies":
        from graft.cli.reproduce import study_meanings

        return study_meanings()
    summaries = {name: summary_of(TABLES[what], name) for name in TABLES[what]}
    if what == "models":
        summaries |= {name: "for client 0, 1, 2, ...: " + ", ".join(models) for name, models in FAMILIES.items()}
    return summaries


def summary_of(table: Registry[Any], name: str) -> str:
    source = table.source(name)
    if source is None and name in table.added:
        return split_summary(table[name].__doc__ or "")[0]
    return source.summary if source else ""


def describe(table: Registry[Any], name: str) -> None:
    """Print the paper of an entry, what it does, and its fields with their bounds and meaning."""
    table.check(name)
    source = table.source(name)
    if source is None:
        say(f"{name}: its source cannot be read.")
        return
    say(f"{name}: {source.summary}")
    for text in (source.details, source.module_doc.strip()):
        if text:
            say(f"\n{text}")
    fields = [describe_field(field, entry) for field, entry in source.fields.items()]
    if fields:
        say("\nSettings, as in --set name=value:" if table in (METHODS, PLUGS) else "\nFields:")
    for field in fields:
        default = f" = {field.default}" if field.default else ""
        search = f"searched {field.search}" if field.search else ""
        kind = ", ".join(filter(None, [field.type, field.bounds, search]))
        say(f"  {field.name}{default}  ({kind})" + (f"\n      {field.meaning}" if field.meaning else ""))

"""From names and settings to a method, with or without a plug. Imports PyTorch only to make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from graft.errors import InputError
from graft.experiments.validation import check_known, validated
from graft.methods import METHODS, PLUGS

if TYPE_CHECKING:
    from graft.federation.method import Method


def check_settings(method: str, settings: Mapping[str, Any], plug: str = "") -> None:
    """Refuses settings that are no field of the method or the plug, as far as their source tells."""
    names = names_in_source(method, plug)
    if names is not None:
        check_known(settings, names, described(method, plug))


def setting_names(method: str, plug: str = "") -> list[str]:
    """Returns the fields of a method and of its plug, either of which may be empty; imports them only where their
    source does not tell."""
    names = names_in_source(method, plug)
    if names is None:
        kinds = ([METHODS[method]] if method else []) + ([PLUGS[plug]] if plug else [])
        names = list(dict.fromkeys(entry.name for kind in kinds for entry in fields(kind)))
    return names


def names_in_source(method: str, plug: str) -> list[str] | None:
    """Returns the fields of a method and of its plug as far as their source tells, or else None."""
    tables = ([(METHODS, method)] if method else []) + ([(PLUGS, plug)] if plug else [])
    sources = [table.source(name) for table, name in tables]
    if not all(source and source.complete for source in sources):
        return None
    return [name for source in sources if source for name in source.fields]


def described(method: str, plug: str) -> str:
    return f"method '{method}' with plug '{plug}'" if plug else f"method '{method}'"


def make_method(name: str, settings: Mapping[str, Any], plug: str = "") -> Method:
    """Returns the method of that name with its own settings, and those of what is added to it."""
    kind = METHODS[name]
    return validated(plugged_kind(kind, plug) if plug else kind, settings, described(name, plug))


def plugged_kind(host: type[Method], plug: str) -> type[Method]:
    """Returns the class of a method with a plug; refused for methods that it cannot be added to."""
    from graft.federation.plug import plugged, takes_plugs

    kind = PLUGS[plug]
    if not takes_plugs(host):
        raise InputError(
            f"Plug '{plug}' cannot be added to {host.__name__}: it needs a server that keeps models of one "
            f"architecture for clients, as these methods have: {', '.join(METHODS.matching(takes_plugs))}."
        )
    return plugged(host, kind)


def add_plug(method: Method, plug: str, settings: Mapping[str, Any]) -> Method:
    """Returns a method that is there already, with a plug of those settings."""
    kind = plugged_kind(type(method), plug)
    return validated(kind, {**asdict(method), **settings}, f"{type(method).__name__} with plug '{plug}'")


def name_of(method: Method) -> str:
    """Returns the short name of a method with its plug: that of the table, or of your own class."""
    host, plug = getattr(method, "host", None), getattr(method, "plug", None)
    return METHODS.label_of(type(method)) if host is None else f"{METHODS.label_of(host)}+{PLUGS.label_of(plug)}"

"""A module of Graft as one file that needs no other: what it imports from Graft is written into it."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

PACKAGE = "graft."


def single_file(module: ModuleType) -> str:
    """Returns the source of a module, after that of the modules of Graft which it imports, under one list of imports.

    They import each other by `from ... import name` without `as`, and at the top.
    """
    bodies: dict[str, str] = {}  # by the name of a module, in the order in which they need each other
    outside = collect_bodies(module, bodies)
    return "\n\n\n".join([f'"""{inspect.getdoc(module)}"""\n\n{import_block(outside)}', *bodies.values()]) + "\n"


def collect_bodies(module: ModuleType, bodies: dict[str, str]) -> list[ast.Import | ast.ImportFrom]:
    """Adds what follows the imports of a module and of those of Graft before it; returns what they import otherwise."""
    text = inspect.getsource(module)
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    outside: list[ast.Import | ast.ImportFrom] = []
    for node in imports:
        source = node.module if isinstance(node, ast.ImportFrom) else None
        if source is None or not source.startswith(PACKAGE):
            outside.append(node)
        elif source not in bodies:
            outside += collect_bodies(import_module(source), bodies)
    end = imports[-1].end_lineno
    bodies[module.__name__] = "\n".join(text.splitlines()[end:]).strip()
    return outside


def import_block(nodes: Iterable[ast.Import | ast.ImportFrom]) -> str:
    """Returns imports merged and sorted: first the standard library, in both parts `import` before `from`."""
    plain: set[str] = set()
    members: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        names = {ast.unparse(alias) for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            members[str(node.module)] |= names
        else:
            plain |= names
    standard: list[str] = []
    installed: list[str] = []
    for name in sorted(plain):
        (standard if is_standard(name) else installed).append(f"import {name}")
    for name in sorted(members):
        listed = ", ".join(sorted(members[name], key=by_case))
        (standard if is_standard(name) else installed).append(f"from {name} import {listed}")
    return "\n\n".join("\n".join(part) for part in (standard, installed) if part)


def is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def by_case(name: str) -> tuple[bool, bool, str]:
    """Sorts constants before classes before functions, as ruff does."""
    return (not name.isupper(), not name[0].isupper(), name)

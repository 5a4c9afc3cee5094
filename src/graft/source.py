"""What the source of a class says, read without importing it: summary, paper, fields with their meaning."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

# A full stop after a single letter, as in "e.g." or "J. Smith", ends no sentence.
END_OF_SENTENCE = re.compile(r"""(?<!\b[A-Za-z])[.!?](?=\s+[A-Z`"'])|\n\s*\n""")


class SourceError(Exception):
    """A file that cannot be read as Python; the message is the end of a sentence."""


@dataclass(frozen=True)
class FieldSource:
    """A field of a dataclass as it is written."""

    annotation: str
    default: str  # empty without one
    meaning: str  # the comment beside it, or above it
    module: Path  # where its annotation is to be understood
    redeclares: FieldSource | None = None  # the field of that name in a base class


@dataclass(frozen=True)
class ClassSource:
    """A class, or a function, as it is written."""

    doc: str
    module_doc: str
    fields: dict[str, FieldSource] = field(default_factory=dict)  # those of its bases first
    complete: bool = True  # False where a base cannot be read, so that it may have more fields

    @property
    def summary(self) -> str:
        """Returns the first sentence of its docstring, in one line."""
        return split_summary(self.doc)[0]

    @property
    def details(self) -> str:
        """Returns what follows the first sentence of its docstring."""
        return split_summary(self.doc)[1]


def split_summary(doc: str) -> tuple[str, str]:
    """Returns the first sentence of a docstring in one line, and what follows it; a paragraph ends a sentence too."""
    doc = doc.strip()
    end = END_OF_SENTENCE.search(doc)
    split = end.end() if end else len(doc)
    return " ".join(doc[:split].split()), doc[split:].strip()


def read_class(module: str | Path, name: str) -> ClassSource | None:
    """Returns a class or function of a module, followed through the imports of its name; None where it cannot be
    found."""
    path = module if isinstance(module, Path) else module_file(module)
    if path is None:
        return None
    try:
        tree, lines = _parse(path)
    except SourceError:
        return None
    module_doc = ast.get_docstring(tree) or ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return ClassSource(ast.get_docstring(node) or "", module_doc)
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _read_body(node, path, lines, module_doc)
    imported = _imports(tree, path).get(name)
    return read_class(*imported) if imported else None


def read_value(path: Path, name: str) -> tuple[Path, ast.expr] | None:
    """Returns the expression that a name of a module stands for, followed through imports, and the file that has it."""
    tree, _ = _parse(path)
    for node in _statements(tree.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return path, value
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                return path, value
    module, original = _imports(tree, path).get(name, (None, ""))
    file = module_file(module) if isinstance(module, str) else module
    return read_value(file, original) if file else None


def top_level_names(path: Path) -> set[str] | None:
    """Returns the names that a file may define or import; None where that cannot be told, as after `import *`."""
    tree, _ = _parse(path)
    names: set[str] = set()
    for node in _statements(tree.body):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name.partition(".")[0] for alias in aliases)
        names.update(
            part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        )
    return None if names & {"*", "__getattr__"} or "globals()" in ast.unparse(tree) else names


def module_file(name: str) -> Path | None:
    """Returns the source file of a module; no package is imported to find it."""
    first, *rest = name.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for folder in spec.submodule_search_locations or ():
        if path := _file_in(Path(folder), rest):
            return path
    return None


@lru_cache(maxsize=256)
def _parse(path: Path) -> tuple[ast.Module, list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SourceError(f"there is no file {path}") from None
    except (OSError, UnicodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from None
    try:
        return ast.parse(text), text.splitlines()
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise SourceError(f"{reason} in {path}{line}") from None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Returns the statements of a module, those under an `if` or a `try` included."""
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _statements(getattr(node, block, []))


def _imports(tree: ast.Module, path: Path) -> dict[str, tuple[str | Path, str]]:
    """Returns the names that `from module import name` brings, and where each comes from."""
    imported: dict[str, tuple[str | Path, str]] = {}
    for node in _statements(tree.body):
        if isinstance(node, ast.ImportFrom):
            source = _relative_file(node, path) if node.level else node.module
            imported |= {alias.asname or alias.name: (source, alias.name) for alias in node.names if source}
    return imported


def _relative_file(node: ast.ImportFrom, path: Path) -> Path | None:
    folder = path.parents[node.level - 1]
    return _file_in(folder, (node.module or "").split("."))


def _file_in(folder: Path, parts: list[str]) -> Path | None:
    inside = folder.joinpath(*parts)
    files = (inside.with_name(f"{inside.name}.py"), inside / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _read_body(node: ast.ClassDef, path: Path, lines: list[str], module_doc: str) -> ClassSource:
    fields: dict[str, FieldSource] = {}
    complete = True
    for base in reversed(node.bases):
        parent = read_class(path, base.id) if isinstance(base, ast.Name) else None
        complete = complete and ((parent is not None and parent.complete) or _is(base, "object"))
        fields |= parent.fields if parent else {}
    if any(_is(mark.func if isinstance(mark, ast.Call) else mark, "dataclass") for mark in node.decorator_list):
        for entry in node.body:
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
                fields |= _read_field(entry, entry.target.id, path, lines, fields.get(entry.target.id))
    return ClassSource(ast.get_docstring(node) or "", module_doc, fields, complete)


def _read_field(
    entry: ast.AnnAssign, name: str, path: Path, lines: list[str], inherited: FieldSource | None
) -> dict[str, FieldSource]:
    annotation = ast.unparse(entry.annotation)
    if annotation.removeprefix("typing.").startswith("ClassVar"):
        return {}
    default = ast.unparse(entry.value) if entry.value is not None else ""
    return {name: FieldSource(annotation, default, _comment(entry, lines), path, inherited)}


def _comment(entry: ast.AnnAssign, lines: list[str]) -> str:
    """Returns the comment at the end of a field's line, or the lines of comment above it."""
    last = (entry.end_lineno or entry.lineno) - 1
    rest = lines[last].encode()[entry.end_col_offset or 0 :].decode().strip()
    if rest.startswith("#"):
        return rest.lstrip("# ")
    above: list[str] = []
    for line in reversed(lines[: entry.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().lstrip("# "))
    return " ".join(above)


def _is(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)

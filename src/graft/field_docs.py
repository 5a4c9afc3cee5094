"""What the fields of a dataclass are for, read from its source: nothing is imported, so PyTorch need not be."""

from __future__ import annotations

import ast
import io
import json
import math
import sys
import tokenize
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import annotated_types

from graft.errors import InputError
from graft.fields import bounds_in, in_words

Definition = ast.ClassDef | ast.expr


class FieldDoc(NamedTuple):
    """One field, in words for a listing."""

    name: str
    type: str  # as float, or the choices: random | gradient
    bounds: str  # as "at least 0 and below 1"; empty without any
    default: str  # as `--set` takes it; empty where a value must be given
    meaning: str  # the comment beside or above the field; that of the base class where a subclass has none


def describe_fields(source: Path, class_name: str) -> list[FieldDoc]:
    """List the fields of the dataclass of that name in a file, those of its bases included, in their order.

    Bases are followed through imports, without importing. A base whose source is not there is left out.
    """
    try:
        match Module(source).find(class_name):
            case Module() as module, ast.ClassDef() as kind:
                return list(class_fields(module, kind).values())
    except RecursionError:
        raise InputError(f"The bases of class '{class_name}' in {source} go round in a circle.") from None
    raise InputError(f"There is no class '{class_name}' in {source}.")


class Module:
    """The source of a module: its definitions, and where the names that it imports are defined."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
            self.tree = ast.parse(self.text)
        except (OSError, UnicodeError, SyntaxError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a Python file: {error}.") from error

    def find(self, name: str) -> tuple[Module, Definition] | None:
        """The class or the value that a name, possibly dotted, stands for, and the module that defines it."""
        first, _, rest = name.partition(".")
        for node in self.statements:
            match node:
                case ast.ClassDef() if node.name == name:
                    return self, node
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    return self, value
                case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                    return self, value
                case ast.ImportFrom(names=names):
                    for alias in names:
                        if (alias.asname or alias.name) == first:
                            return self.follow(f"{self.absolute(node)}.{alias.name}", rest)
                case ast.Import(names=names):
                    for alias in names:
                        bound = alias.asname or alias.name
                        if name.startswith(f"{bound}."):
                            return self.follow(alias.name, name.removeprefix(f"{bound}."))
        return None

    def follow(self, imported: str, rest: str) -> tuple[Module, Definition] | None:
        """The definition of `rest` in a module, or of what was imported from one."""
        owner, _, name = imported.rpartition(".")
        for module_name, wanted in ((imported, rest), (owner, f"{name}.{rest}" if rest else name)):
            path = self.locate(module_name) if wanted and module_name else None
            if path is not None and path != self.path and (found := Module(path).find(wanted)):
                return found
        return None

    def locate(self, name: str) -> Path | None:
        """The file of a module: beside this one's package, or wherever Python would look for it."""
        search: list[str] | None = [str(self.root), *sys.path]
        spec, parts = None, name.split(".")
        for depth in range(len(parts)):
            spec = PathFinder.find_spec(".".join(parts[: depth + 1]), search)
            if spec is None:
                return None
            search = spec.submodule_search_locations or []
        is_source = spec is not None and spec.origin is not None and spec.origin.endswith(".py")
        return Path(str(spec.origin)) if spec and is_source else None

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that names are imported from; one that is given relative to this, in full."""
        if not node.level:
            return node.module or ""
        package = self.path.resolve().parent.relative_to(self.root).parts
        return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])

    @cached_property
    def root(self) -> Path:
        """The folder that holds the outermost package of this module."""
        folder = self.path.resolve().parent
        while (folder / "__init__.py").exists():
            folder = folder.parent
        return folder

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """The statements of the module, those for type checkers included; the last definition of a name comes first."""
        nested = [[*node.body] if isinstance(node, ast.If | ast.Try) else [node] for node in self.tree.body]
        return [node for nodes in nested for node in nodes][::-1]

    @cached_property
    def comments(self) -> dict[int, str]:
        """The comment in every line that has one."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {token.start[0]: token.string.lstrip("#").strip() for token in tokens if token.type == tokenize.COMMENT}

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def class_fields(module: Module, kind: ast.ClassDef) -> dict[str, FieldDoc]:
    """The fields of a class by name; a subclass may give a field another default and keep the rest."""
    docs: dict[str, FieldDoc] = {}
    for base in reversed(kind.bases):
        match module.find(dotted(base)):
            case Module() as owner, ast.ClassDef() as parent:
                docs |= class_fields(owner, parent)
    for node, following in zip(kind.body, [*kind.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if dotted(node.annotation).split(".")[-1] == "ClassVar":
            docs.pop(node.target.id, None)
            continue
        name = node.target.id
        type_words, notes = describe_type(module, node.annotation)
        inherited = docs.get(name)
        docs[name] = FieldDoc(
            name,
            type_words,
            in_words(tuple(bounds_in(notes))) or (inherited.bounds if inherited else ""),
            "" if node.value is None else shown(module, node.value),
            meaning(module, node, following) or (inherited.meaning if inherited else ""),
        )
    return docs


def describe_type(module: Module, annotation: ast.expr) -> tuple[str, list[Any]]:
    """A type in words, and the bounds that are annotated with it."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.Name | ast.Attribute):
        match module.find(dotted(annotation)):
            case Module() as owner, ast.expr() as meant:
                return describe_type(owner, meant)
        return dotted(annotation), []
    if isinstance(annotation, ast.Subscript):
        arguments = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        match dotted(annotation).split(".")[-1]:
            case "Annotated":
                words, notes = describe_type(module, arguments[0])
                return words, [*notes, *(note for each in arguments[1:] if (note := bound(module, each)))]
            case "Literal":
                return " | ".join(shown(module, choice) for choice in arguments), []
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        (left, left_notes), (right, right_notes) = (
            describe_type(module, side) for side in (annotation.left, annotation.right)
        )
        return f"{left} | {right}", [*left_notes, *right_notes]
    return ast.unparse(annotation), []


def bound(module: Module, node: ast.expr) -> Any:
    """A bound as `Ge(0)`, made from its source; None for any other annotation."""
    if not isinstance(node, ast.Call):
        return None
    kind = {"Ge", "Gt", "Le", "Lt", "Interval"} & {dotted(node.func).split(".")[-1]}
    if not kind:
        return None
    positional = [constant(module, argument) for argument in node.args]
    named = {str(keyword.arg): constant(module, keyword.value) for keyword in node.keywords}
    return getattr(annotated_types, kind.pop())(*positional, **named)


def constant(module: Module, node: ast.expr) -> Any:
    """The value of a literal, or of a name that stands for one; the node itself where it is neither."""
    if dotted(node) in ("math.inf", "inf"):
        return math.inf
    match module.find(dotted(node)) if isinstance(node, ast.Name | ast.Attribute) else None:
        case Module() as owner, ast.expr() as value:
            return constant(owner, value)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return node


def shown(module: Module, node: ast.expr) -> str:
    """A default or a choice as a person would write it after `--set name=`."""
    value = constant(module, node)
    if isinstance(value, ast.expr):
        return ast.unparse(value)
    if isinstance(value, str):
        return value or '""'
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)


def meaning(module: Module, node: ast.stmt, following: ast.stmt | None) -> str:
    """The comments above and beside a field, or the string below it."""
    above: list[str] = []
    line = node.lineno - 1
    while line in module.comments and module.lines[line - 1].lstrip().startswith("#"):
        above.insert(0, module.comments[line])
        line -= 1
    last = node.end_lineno or node.lineno
    beside = [module.comments[number] for number in range(node.lineno, last + 1) if number in module.comments]
    match following:
        case ast.Expr(value=ast.Constant(value=str(text))) if not above and not beside:
            return " ".join(text.split())
    return " ".join([*above, *beside])


def dotted(node: ast.expr) -> str:
    """The name that an expression begins with, as `typing.Literal` of `typing.Literal["a"]`; empty without one."""
    if isinstance(node, ast.Subscript | ast.Call):
        return dotted(node.value if isinstance(node, ast.Subscript) else node.func)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""

"""An extension of Griffe: the meaning of a field is the comment beside it, or the `Doc` in its type."""

from __future__ import annotations

import ast
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Takes a field's comment as its docstring."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, agent: Any, **_: Any
    ) -> None:
        """Give a field of a class without a docstring the words that stand beside it."""
        if attr.docstring or not isinstance(node, ast.Assign | ast.AnnAssign) or attr.name.startswith("_"):
            return
        text = documented(node) or comment(agent.filepath, node)
        if text:
            attr.docstring = griffe.Docstring(text[0].upper() + text[1:], parent=attr)


def documented(node: ast.Assign | ast.AnnAssign) -> str:
    """Returns the text of `Annotated[..., Doc("text")]`."""
    annotation = getattr(node, "annotation", None)
    calls = [part for part in ast.walk(annotation) if isinstance(part, ast.Call)] if annotation else []
    texts = [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == "Doc"]
    return texts[0] if texts else ""


def comment(path: Path, node: ast.Assign | ast.AnnAssign) -> str:
    """Returns the comment at the end of a statement."""
    return comments(path).get(node.end_lineno or node.lineno, "") or comments(path).get(node.lineno, "")


@cache
def comments(path: Path) -> dict[int, str]:
    """Returns the comments of a file that stand behind code, by their lines; not those for tools."""
    with Path(path).open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    texts = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokens
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
    }
    return {line: text for line, text in texts.items() if not text.startswith(("noqa", "type:"))}

"""Forms: what a step may be told and may reply, field by field, so that anything else is refused before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from graft.tensors.trees import Tree, all_finite, flatten, unflatten

Audience = Literal["server", "peers", "nobody"]  # who is given what a step returns

LARGEST_INTEGER = 2**63 - 1
PLAIN = {bool: "plain bool", int: "plain int", float: "plain float"}  # numbers that travel without a tensor
PLAIN_BYTES = 8


class RefusedMessage(ValueError):
    """A message that has not the form it must have."""


@dataclass(frozen=True)
class FieldForm:
    """One leaf of a message of one client, without the client axis."""

    shape: tuple[int | None, ...]  # None: a size that depends on the client's data, or on who takes part
    dtype: str  # as "float32", or "plain int" of a number; several as "float32 or float64"
    always: bool = True  # whether no message is without it
    unless: str = ""  # the field in whose place it stands: one of the two is always there
    tied: str = ""  # the field beside it whose one free size is the same as its own one
    finite: bool = True  # off: it may hold NaN or infinity, as a metric of no nodes does
    by_model: bool = False  # whether its shape, or whether it is sent, depends on the client's architecture
    raw: bool = False  # whether the method declares it as the client's data themselves
    logged: bool = False  # whether it stays where the client is: the server would only put it on record

    @property
    def free(self) -> tuple[int, ...]:
        """Returns the axes whose sizes are free."""
        return tuple(axis for axis, size in enumerate(self.shape) if size is None)

    @property
    def numbers(self) -> int | None:
        """Returns how many numbers it holds; None where that depends on the client's data."""
        return None if None in self.shape else math.prod(size or 0 for size in self.shape)

    def most_bytes(self, most_free: int) -> int:
        """Returns the bytes of its numbers where every free size is the largest."""
        numbers = math.prod(most_free if size is None else size for size in self.shape)
        return numbers * max(map(item_bytes, self.dtype.split(" or ")))


Fields = Mapping[str, FieldForm]  # by path, as "model/head/weight"


@dataclass(frozen=True)
class StepForm:
    """What a step may be told, and what it may reply."""

    message: Fields
    reply: Fields
    empty: bool = False  # whether it may be asked without any message
    audience: Audience = "server"
    hears: str = ""  # the step whose replies its inbox holds, where peers have sent them

    @property
    def sent(self) -> Fields:
        """Returns the fields of its reply that leave the client."""
        return {} if self.audience == "nobody" else leaving(self.reply)


Forms = Mapping[str, StepForm]  # by the names of steps


def leaving(fields: Fields) -> Fields:
    """Returns the fields of a reply that travel: all but those that are logged where the client is."""
    return {path: form for path, form in fields.items() if not form.logged}


def check_tree(tree: Any, fields: Fields, where: str, most_free: int) -> None:
    """Refuses a message of one client, as it travels, with one sentence that names the field; `where` begins it."""
    branches = {"/".join(parts[:depth]) for parts in map(path_parts, fields) for depth in range(1, len(parts))}
    leaves = dict(checked_leaves(tree, fields, branches, where))
    for path, form in fields.items():
        if path in leaves:
            problem = problem_of(leaves[path], form, most_free)
            if problem:
                raise RefusedMessage(f"{where}: '{path}' {problem}")
            if form.tied in leaves:  # checked before: it comes first
                size, other = (leaves[name].shape[fields[name].free[0]] for name in (path, form.tied))
                if size != other:
                    raise RefusedMessage(f"{where}: '{path}' has {size} where '{form.tied}' has {other}")
        elif form.always and not (form.unless and form.unless in leaves):
            raise RefusedMessage(f"{where}: '{path}' is missing")


def check_message(tree: Any, form: StepForm, where: str, most_free: int) -> None:
    """Refuses what a step must not be told; no message at all is fine for a step that may be asked without."""
    if tree is None and (form.empty or not form.message):
        return
    if tree is None:
        raise RefusedMessage(f"{where}: there is no message")
    check_tree(tree, form.message, where, most_free)


def path_parts(path: str) -> list[str]:
    return path.split("/")


def checked_leaves(
    tree: Any, fields: Fields, branches: set[str], where: str, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a message, and never goes deeper than the form does."""
    if not isinstance(tree, Mapping):
        raise RefusedMessage(f"{where}: it is a bare {type(tree).__name__}, not a tree of named fields")
    for name, branch in tree.items():
        path = f"{prefix}{name}"
        if (
            not isinstance(name, str)
            or "/" in name
            or path not in (branches if isinstance(branch, Mapping) else fields)
        ):
            raise RefusedMessage(f"{where}: {printed(path)} is not a field of it")
        if isinstance(branch, Mapping):
            if not branch:
                raise RefusedMessage(f"{where}: {printed(path)} is empty")
            yield from checked_leaves(branch, fields, branches, where, f"{path}/")
        else:
            yield path, branch


def printed(path: str) -> str:
    """Returns a name that a stranger chose, so that it cannot flood or disguise a log."""
    shown = path if len(path) <= 80 else f"{path[:80]}..."
    return ascii(shown)


def problem_of(leaf: Any, form: FieldForm, most_free: int) -> str:
    """Returns what is wrong with a leaf, as what follows its name in a sentence; nothing where nothing is."""
    dtype = dtype_of(leaf)
    if dtype is None:
        return f"is a {type(leaf).__name__}, neither a tensor nor a number"
    if dtype not in form.dtype.split(" or "):
        return f"is {dtype}, not {form.dtype}"
    shape = tuple(leaf.shape) if isinstance(leaf, Tensor) else ()
    if len(shape) != len(form.shape) or any(
        size != wanted for size, wanted in zip(shape, form.shape, strict=True) if wanted is not None
    ):
        return f"has the shape {shape}, not {shape_in_words(form.shape)}"
    if any(size > most_free for size, wanted in zip(shape, form.shape, strict=True) if wanted is None):
        return f"has the shape {shape}, and no size of it may be above {most_free:,}"
    if form.finite and not is_finite(leaf):
        return "holds numbers that are not finite"
    return ""


def dtype_of(leaf: Any) -> str | None:
    """Returns the name of what a leaf holds; None where it is neither a dense tensor nor a number."""
    if isinstance(leaf, Tensor):
        return str(leaf.dtype).removeprefix("torch.") if leaf.layout is torch.strided else None
    return PLAIN.get(type(leaf))


def is_finite(leaf: Any) -> bool:
    """Returns whether all numbers of a leaf are finite; a plain integer must fit into one of 64 bits."""
    if isinstance(leaf, Tensor):
        return all_finite(leaf)
    return abs(leaf) <= LARGEST_INTEGER if isinstance(leaf, int) else math.isfinite(leaf)


def shape_in_words(shape: tuple[int | None, ...]) -> str:
    """Returns a shape as tuples are written, with `any` for a free size."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def item_bytes(dtype: str) -> int:
    """Returns the bytes of one number."""
    return PLAIN_BYTES if dtype in PLAIN.values() else getattr(torch, dtype).itemsize


def most_bytes(fields: Fields, most_free: int) -> int:
    """Returns the payload of the largest message that has this form."""
    return sum(form.most_bytes(most_free) for form in fields.values())


def split_logged(reply: Any, fields: Fields) -> tuple[Tree, Tree]:
    """Returns what of a reply travels, and what is logged where the client is."""
    leaves = dict(flatten(reply))
    stays = {path for path in leaves if path in fields and fields[path].logged}
    return (
        unflatten({path: leaf for path, leaf in leaves.items() if path not in stays}),
        unflatten({path: leaf for path, leaf in leaves.items() if path in stays}),
    )


def fill_logged(reply: Any, fields: Fields) -> Tree:
    """Returns a reply of one client with NaN for the fields that were logged where it is."""
    leaves = dict(flatten(reply))
    for path, form in fields.items():
        if form.logged and path not in leaves and form.always:
            leaves[path] = torch.full([size or 0 for size in form.shape], torch.nan)
    return unflatten(leaves)


# Forms as JSON: approved ones are kept, compared and sent.


def to_json(forms: Forms) -> dict[str, Any]:
    """Returns forms as plain values, the same for the same forms; fields that are as usual are left out."""
    usual = asdict(FieldForm((), ""))

    def plain(fields: Fields) -> dict[str, Any]:
        return {
            path: {"shape": list(form.shape), "dtype": form.dtype}
            | {
                name: value
                for name, value in asdict(form).items()
                if name not in ("shape", "dtype") and value != usual[name]
            }
            for path, form in sorted(fields.items())
        }

    return {
        step: {
            "message": plain(form.message),
            "reply": plain(form.reply),
            "empty": form.empty,
            "audience": form.audience,
            "hears": form.hears,
        }
        for step, form in sorted(forms.items())
    }


def from_json(content: Any) -> dict[str, StepForm]:
    """Returns the forms that `to_json` gave these values of; anything else is refused."""

    def fields(values: Any) -> Fields:
        return {str(path): field(dict(entry)) for path, entry in dict(values).items()}

    def field(entry: dict[str, Any]) -> FieldForm:
        shape = tuple(entry.pop("shape"))
        if not all(size is None or (type(size) is int and size >= 0) for size in shape):
            raise ValueError(f"{shape} is no shape")
        form = FieldForm(shape, **entry)
        for dtype in form.dtype.split(" or "):
            if dtype not in PLAIN.values() and not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ValueError(f"{dtype} is no dtype")
        return form

    try:
        return {
            str(step): StepForm(
                fields(entry["message"]),
                fields(entry["reply"]),
                bool(entry["empty"]),
                entry["audience"],
                str(entry["hears"]),
            )
            for step, entry in dict(content).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedMessage(f"not forms of messages: {error}") from error


def differences(forms: Forms, others: Forms) -> list[str]:
    """Returns what is not the same in two forms, as "step 'train': reply 'model/head/weight'"."""

    def entries(form: StepForm) -> dict[str, Any]:
        facts = {"whether it may be asked without a message": form.empty, "audience": form.audience}
        sides = {
            f"{side} '{path}'": value for side in ("message", "reply") for path, value in getattr(form, side).items()
        }
        return facts | {"whom it hears": form.hears} | sides

    listed = [f"step '{step}'" for step in sorted(forms.keys() ^ others.keys())]
    for step in sorted(forms.keys() & others.keys()):
        here, there = entries(forms[step]), entries(others[step])
        names = dict.fromkeys([*here, *there])
        listed += [f"step '{step}': {name}" for name in names if here.get(name) != there.get(name)]
    return listed

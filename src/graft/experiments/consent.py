"""The sheet that a party consents to: what a method is, and exactly what will leave, before anything does."""

from __future__ import annotations

import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from graft.engines.forms import FieldForm, Forms, StepForm, most_bytes, shape_in_words, to_json
from graft.errors import InputError
from graft.federation.method import Method
from graft.federation.reveals import covering, declared
from graft.files import canonical, explained

WIDTH = 80  # of a terminal
CONSENT = "consent.json"  # what was approved, in the folder of who did
INDENT = "    "
ONCE = (
    "names of your features and of the classes that occur, how your data were prepared, whether your edges have "
    "directions and weights"
)
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True)
class Row:
    """One field of what a step returns, with all that is in its branch, as the method declares it."""

    step: str
    field: str  # as "model"; empty where all that a step returns is declared at once
    leaves: bool  # off: it stays where the party is
    shape: str  # where it is a single tensor, as "(1433, 64)"; free sizes are `any`
    numbers: int | None  # None: as many as depend on the party's data
    bytes: int | None  # each time that the step is asked
    what: str
    depends_on: tuple[str, ...]  # of the party's data; without any, on nothing but their amount
    when: str  # the settings with which it is sent, if not always
    model: bool  # whether it is trained weights
    raw: bool  # whether it is the party's data themselves
    always: bool  # whether every reply to the step holds it


@dataclass(frozen=True)
class Setting:
    """A field of the method."""

    name: str
    value: Any
    default: Any  # None where a value must be given

    @property
    def changed(self) -> bool:
        return bool(self.value != self.default)


@dataclass(frozen=True)
class ConsentSheet:
    """All that a party is shown and approves of."""

    method: str
    summary: str
    settings: tuple[Setting, ...]
    rounds: int
    facts: Mapping[str, str | int | float]  # whatever else was agreed on, as {"server": "hub", "parties": 3}
    one_model: bool  # whether the server names the architecture
    rows: tuple[Row, ...]
    forms: Forms


def consent_rows(method: Method, forms: Forms) -> list[Row]:
    """Returns what the steps of a method return, grouped as it declares it; a field that it does not is refused."""
    table, rows = declared(method), []
    for step, form in forms.items():
        groups: dict[tuple[str, bool], dict[str, FieldForm]] = {}
        for path, field in form.reply.items():
            key = covering(table, f"{step}/{path}")
            if key is None:
                raise InputError(
                    f"{type(method).__name__} sends {step}/{path}, which it does not declare in `reveals`: nobody can "
                    "consent to that."
                )
            groups.setdefault((key, path in form.sent), {})[path] = field
        for (key, leaves), group in groups.items():
            reveals = table[key]
            paths, members = list(group), list(group.values())
            name = key.partition("/")[2]
            free = any(member.numbers is None for member in members)
            rows.append(
                Row(
                    step=step,
                    field=name,
                    leaves=leaves,
                    shape=shape_in_words(members[0].shape) if paths == [name] else "",
                    numbers=None if free else sum(member.numbers or 0 for member in members),
                    bytes=None if free else most_bytes(group, 0),
                    what=reveals.what,
                    depends_on=reveals.depends_on,
                    when=reveals.when,
                    model=reveals.model,
                    raw=reveals.raw,
                    always=any(member.always for member in members),
                )
            )
    return rows


def consent_sheet(
    method: Method, name: str, forms: Forms, *, rounds: int, facts: Mapping[str, str | int | float] | None = None
) -> ConsentSheet:
    """Returns the sheet of a method for a federation with these forms of messages."""
    paragraph = (inspect.getdoc(type(method)) or "").partition("\n\n")[0]
    return ConsentSheet(
        method=name,
        summary=" ".join(paragraph.split()),
        settings=tuple(Setting(entry.name, getattr(method, entry.name), default_of(entry)) for entry in fields(method)),
        rounds=rounds,
        facts=dict(facts or {}),
        one_model=bool(method.one_model or method.architecture),
        rows=tuple(consent_rows(method, forms)),
        forms=forms,
    )


def default_of(entry: Field[Any]) -> Any:
    """Returns the default of a dataclass field."""
    if entry.default_factory is not MISSING:
        return entry.default_factory()
    return None if entry.default is MISSING else entry.default


def consent_json(sheet: ConsentSheet) -> dict[str, Any]:
    """Returns all of a sheet as plain values, to be kept with the approval."""
    return {
        "method": sheet.method,
        "summary": sheet.summary,
        "settings": {setting.name: setting.value for setting in sheet.settings},
        "rounds": sheet.rounds,
        "facts": dict(sheet.facts),
        "one_model": sheet.one_model,
        "rows": [asdict(row) | {"depends_on": list(row.depends_on)} for row in sheet.rows],
        "forms": to_json(sheet.forms),
    }


def consent_hash(sheet: ConsentSheet) -> str:
    """Returns the hash of all that a sheet says: an approval is of this and of nothing else."""
    return hashlib.sha256(canonical(consent_json(sheet)).encode()).hexdigest()


def approve_once(out: Path, sheet: ConsentSheet, approve: Callable[[ConsentSheet], bool]) -> None:
    """Has a sheet approved, unless the very same was before; what was approved is kept."""
    path, hash_of_sheet = out / CONSENT, consent_hash(sheet)
    if path.is_file():
        with explained(f"{path} cannot be read", InputError):
            if json.loads(path.read_text()).get("hash") == hash_of_sheet:
                return
    if not approve(sheet):
        raise InputError("Not approved: nothing was sent, and the federation goes on without you.")
    with explained(f"{path} cannot be written", InputError):
        path.write_text(json.dumps({"hash": hash_of_sheet, **consent_json(sheet)}, indent=1) + "\n")


def describe_consent(sheet: ConsentSheet) -> str:
    """Returns the sheet as a text for a terminal of 80 columns."""
    lines = [f"Method    {sheet.method}", *paragraph(sheet.summary), f"Rounds    {sheet.rounds:,}"]
    lines += [f"{name.capitalize():<9} {value}" for name, value in sheet.facts.items()]
    lines += ["", "Settings  (* differs from the default)"]
    lines += [settings_line(setting) for setting in sheet.settings] or [f"{INDENT}none of its own"]
    leaving, staying = ([row for row in sheet.rows if row.leaves is leaves] for leaves in (True, False))
    if any(row.raw for row in leaving):
        warning = "WARNING: with these settings the method sends data of yours as they are, see (!) below."
        lines += ["", *textwrap.wrap(warning, WIDTH)]
    lines += ["", "What will leave, each time that the step is asked"]
    lines += [line for row in leaving for line in describe_row(row, sheet.forms[row.step])] or [f"{INDENT}nothing"]
    lines += ["", "What leaves once, before training", *paragraph(f"{ONCE}.")]
    lines += ["", "What stays here"]
    lines += [line for row in staying for line in paragraph(f"{title(row)}: {row.what}", INDENT)] or [
        f"{INDENT}nothing"
    ]
    lines += ["", "What will never leave"]
    lines += [line for promise in promises(sheet, leaving) for line in paragraph(f"- {promise}", f"{INDENT}  ", INDENT)]
    return "\n".join([*lines, "", f"This sheet {consent_hash(sheet)}"])


def promises(sheet: ConsentSheet, leaving: list[Row]) -> list[str]:
    """Returns what can be said of all that is not listed as leaving."""
    listed = [] if any(row.raw for row in leaving) else ["your nodes, edges, features and labels themselves"]
    if not any(row.model for row in leaving):
        listed.append("weights of any model that is trained here")
    if not sheet.one_model:
        listed.append("the architecture of your model")
    return [*listed, "anything else: whatever is asked that is not on this sheet is refused"]


def describe_row(row: Row, form: StepForm) -> list[str]:
    """Returns the lines of one field that leaves."""
    size = "as much as depends on your data"
    if row.numbers is not None and row.bytes is not None:
        shape = f"{row.shape} " if row.shape not in ("", "()") else ""
        size = f"{shape}{row.numbers:,} {'number' if row.numbers == 1 else 'numbers'}, {in_bytes(row.bytes)}"
    elif row.shape:
        size = f"{row.shape}, {size}"
    to = "to peers" if form.audience == "peers" else ""
    mark = "(!) " if row.raw else ""
    depends = f"depends on your {', '.join(row.depends_on)}" if row.depends_on else "depends on no data but its amount"
    condition = f"only {row.when}" if row.when else "" if row.always else "not each time"
    return [
        *paragraph(", ".join(filter(None, (f"{mark}{title(row)}: {size}", to))), INDENT * 2, INDENT),
        *paragraph("; ".join(filter(None, (row.what, depends, condition))), INDENT * 2),
    ]


def title(row: Row) -> str:
    return f"{row.step}/{row.field}" if row.field else row.step


def settings_line(setting: Setting) -> str:
    mark = "*" if setting.changed else " "
    usual = f", by default {setting.default}" if setting.changed else ""
    return f"  {mark} {textwrap.shorten(f'{setting.name} = {setting.value}{usual}', WIDTH - len(INDENT))}"


def paragraph(text: str, indent: str = INDENT, first: str | None = None) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent)


def in_bytes(count: int) -> str:
    """Returns an amount with the largest unit that it has one of."""
    for size, unit in UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"

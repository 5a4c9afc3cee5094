"""Fills the marked regions of docs/methods/*.md from the code: summaries, settings, what messages reveal, the list.

    python tools/method_pages.py            # rewrites what is out of date
    python tools/method_pages.py --check    # rewrites nothing; names what is out of date, and exits with 1

A region stands between `<!-- name -->` and `<!-- /name -->`; all around it is written by hand. The list of all methods
takes two of its columns from the pages: what travels, and the paper.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graft.federation.method import Method, judging_settings
from graft.federation.peers import PeerMethod
from graft.federation.plug import takes_plugs
from graft.federation.reveals import Reveals, declared
from graft.field_docs import FieldDoc, describe_field
from graft.methods import METHOD_FAMILIES, METHODS, PLUGS
from graft.registry import Registry

PAGES = Path(__file__).resolve().parent.parent / "docs" / "methods"
REGION = re.compile(r"<!-- (?P<name>\w+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)
TRAVELS = re.compile(r"^\*\*Travels:\*\* (.+)$", re.MULTILINE)
SCORES_OF_PEERS = ("score_trained/", "measure_trained/")
VARIANTS = ("paper", "released")  # endings of the names of methods that have other defaults than their main one


def family_of(name: str) -> str:
    """Returns the title of a method's family."""
    return next(title for title, family in METHOD_FAMILIES.items() if name in family.methods)


def models_of(kind: type[Method]) -> str:
    """Returns what `--models` may be for a method."""
    if kind.architecture:
        return f"always `{kind.architecture}`"
    if default := kind.experiment_defaults.get("models"):
        return f"one architecture; `{default}` unless named"
    return "one architecture" if kind.one_model else "any, also a different one for each client"


def messages(kind: type[Method]) -> dict[str, Reveals]:
    """Returns what leaves a client in the rounds of a method; scores, which leave with every method, are left out."""
    general = {**declared(Method), **scores_of_peers()}
    return {field: reveals for field, reveals in declared(kind).items() if field not in general}


def scores_of_peers() -> dict[str, Reveals]:
    """Returns what the scores of peers before mixing reveal, which all methods without a server send."""
    return {field: reveals for field, reveals in declared(PeerMethod).items() if field.startswith(SCORES_OF_PEERS)}


def main_name(name: str, table: Registry[Any]) -> str | None:
    """Returns the method that a variant has the same fields as, `fedgkc` of `fedgkc_paper`; None for any other."""
    stem, _, ending = name.rpartition("_")
    return stem if ending in VARIANTS and stem in table else None


def summary(table: Registry[Any], name: str) -> str:
    """Returns the first sentence of the docstring, in one line."""
    source = table.source(name)
    assert source is not None
    return source.summary


def fields_of(table: Registry[Any], name: str) -> dict[str, FieldDoc]:
    source = table.source(name)
    assert source is not None
    return {field: describe_field(field, entry) for field, entry in source.fields.items()}


# The regions of a method's page.


def summary_region(name: str) -> str:
    kind = METHODS[name]
    facts = {
        "family": f"[{family_of(name)}](index.md#{anchor(family_of(name))})",
        "`--models`": models_of(kind),
        "`--plug`": "yes" if takes_plugs(kind) else "no",
        "`--topology`": "yes" if kind.takes_topology else "no",
        "`--batches`": "yes" if kind.supports_batches else "no",
    }
    source = Path(inspect.getfile(kind)).relative_to(PAGES.parent.parent)
    command = f"`graft run --method {name}`; its source is `{source}`."
    return f"{summary(METHODS, name)}\n\n{table_of([facts])}\n\n{command}"


def reveals_region(name: str) -> str:
    kind = METHODS[name]
    fields = messages(kind)
    if not fields:
        return "Nothing but [what every method sends](index.md#what-every-method-sends) leaves a client."
    rows = [reveals_row(field, reveals) for field, reveals in fields.items()]
    text = f"What leaves a client, and what that reveals of its data:\n\n{table_of(rows)}"
    averages, logged = (", ".join(f"`{field}`" for field in fields) for fields in (kind.averages, kind.logged))
    if averages:
        text += f"\n\nOf {averages} the server uses nothing but averages, which workers of a cluster sum themselves."
    if logged:
        text += f"\n\nThe server only puts {logged} on record: where clients are organisations, that stays with them."
    return text


def reveals_row(field: str, reveals: Reveals) -> dict[str, str]:
    return {
        "message": f"`{field}`",
        "what it reveals": reveals.what + (", **the data themselves**" if reveals.raw else ""),
        "depends on the client's": ", ".join(reveals.depends_on) or "amount of data alone",
        "when": reveals.when,
    }


def settings_region(name: str, table: Registry[Any] = METHODS) -> str:
    fields = fields_of(table, name)
    main = main_name(name, table)
    if main is not None:
        others = fields_of(table, main)
        changed = [field for field in fields.values() if field.default != others[field.name].default]
        rows = [
            {
                "setting": f"`{field.name}`",
                "here": f"`{field.default}`",
                f"`{main}`": f"`{others[field.name].default}`",
                "meaning": note(field.meaning),
            }
            for field in changed
        ]
        return f"{table_of(rows)}\n\nAll others are those of [`{main}`]({main}.md#settings)."
    if not fields:
        return "It has none of its own; those of the experiment are in [running.md](../running.md)."
    return table_of([setting_row(field) for field in fields.values()]) + judging_note(table[name])


def judging_note(kind: type[Method]) -> str:
    """Returns with which settings a method reads labels of validation nodes; nothing where it never does."""
    blind = {name: " or ".join(f"`{value}`" for value in values) for name, values in judging_settings(kind).items()}
    if not blind:
        return ""
    conditions = " and ".join(f"`{name}` is {values}" for name, values in blind.items())
    return (
        f"\n\nIt reads labels of validation nodes, to judge models by them, unless {conditions}, or the experiment's "
        "`judge_on` is `training`."
    )


def setting_row(field: FieldDoc) -> dict[str, str]:
    kind = " or ".join(f"`{choice}`" for choice in field.type.split(" | ")) if " | " in field.type else field.type
    return {
        "setting": f"`{field.name}`",
        "default": f"`{field.default}`",
        "values": f"{kind}, {field.bounds}" if field.bounds else kind,
        "meaning": note(field.meaning),
        "a tuning tries": f"`{field.search}`" if field.search else "",
    }


def note(meaning: str) -> str:
    """Returns a comment as a note in a table: neither a capital nor a full stop, but for several sentences."""
    if ". " in meaning:
        return meaning
    begins_a_sentence = meaning[:1].isupper() and meaning[1:2].islower()
    return (meaning[:1].lower() if begins_a_sentence else meaning[:1]) + meaning[1:].removesuffix(".")


# The regions of the list and of the page about plugs.


def families_region() -> str:
    return "\n\n".join(
        f"## {title}\n\n{family.meaning}\n\n{table_of([method_row(name) for name in sorted(family.methods)])}"
        for title, family in METHOD_FAMILIES.items()
        if family.methods
    )


def anchor(title: str) -> str:
    """Returns what the address of a section ends in, on GitHub and on the site."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def method_row(name: str) -> dict[str, str]:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    travels = TRAVELS.search(page)
    return {
        "method": f"[`{name}`]({name}.md)",
        "in one line": summary(METHODS, name),
        "paper": venue(page),
        "what travels": travels[1].removesuffix(".") if travels else "",
    }


def venue(page: str) -> str:
    """Returns where and when the paper of a page appeared: what follows its title, which is in italics."""
    after_title = re.search(r"^## Paper\n\n[^*\n]+\*[^*\n]+\* (.+)\.$", page, re.MULTILINE)
    return after_title[1] if after_title else ""


def everybody_region() -> str:
    general = {**declared(Method), **scores_of_peers()}
    return table_of([reveals_row(field, reveals) for field, reveals in general.items()])


def plugs_region() -> str:
    rows = [
        {"plug": f"`{name}`", "in one line": summary(PLUGS, name), "settings": f"as [`{name}`]({name}.md#settings)"}
        for name in PLUGS
    ]
    return table_of(rows)


def hosts_region() -> str:
    return ", ".join(f"[`{name}`]({name}.md)" for name in sorted(METHODS) if takes_plugs(METHODS[name])) + "."


def table_of(rows: list[dict[str, str]]) -> str:
    """Returns a Markdown table of rows that have the same columns; a column without a word in it is left out."""
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    lines = [columns, ["---"] * len(columns)]
    lines += [[row[column].replace("|", "\\|") for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


ON_METHOD_PAGES: dict[str, Callable[[str], str]] = {
    "summary": summary_region,
    "reveals": reveals_region,
    "settings": settings_region,
}
ON_OTHER_PAGES: dict[str, Callable[[], str]] = {
    "families": families_region,
    "everybody": everybody_region,
    "plugs": plugs_region,
    "hosts": hosts_region,
}


def filled(page: Path) -> str:
    """Returns the text of a page with its regions as the code has them."""

    def fill(region: re.Match[str]) -> str:
        name = region["name"]
        if name in ON_OTHER_PAGES:
            content = ON_OTHER_PAGES[name]()
        elif name in ON_METHOD_PAGES and page.stem in METHODS:
            content = ON_METHOD_PAGES[name](page.stem)
        else:
            raise SystemExit(f"{page.name} has a region '{name}', which this page cannot have.")
        return f"<!-- {name} -->\n{content}\n<!-- /{name} -->"

    return REGION.sub(fill, page.read_text(encoding="utf-8"))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--check", action="store_true", help="rewrite nothing; exit with 1 if a page is out of date")
    check = arguments.parse_args().check
    outdated = [page for page in sorted(PAGES.glob("*.md")) if filled(page) != page.read_text(encoding="utf-8")]
    for page in outdated:
        print(f"{'out of date' if check else 'written'}: docs/methods/{page.name}")
        if not check:
            page.write_text(filled(page), encoding="utf-8")
    if check and outdated:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

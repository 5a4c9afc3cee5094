"""Writes the table of docs/threats.md: what leaves an organisation with every method, by the sheets that are approved.

A sheet is of forms, which are found by running the method on made-up clients, so this takes about a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from graft.experiments.consent import Row, consent_rows
from graft.experiments.federation_file import FederationFile, parse_federation
from graft.experiments.parties_setup import forms_of
from graft.federation.method import Method
from graft.federation.peers import PeerMethod
from graft.federation.reveals import declared
from graft.methods import METHODS
from tools.method_pages import REGION, table_of

PAGE = Path(__file__).parents[1] / "docs" / "threats.md"
NAMES = ("a", "b", "c")
SCORES = {field.partition("/")[0] for field in declared(Method)} | {"score_trained", "measure_trained"}


def federation_of(name: str) -> FederationFile:
    """Returns a federation of a method with its usual settings."""
    content: dict[str, Any] = {"name": "any", "classes": 3, "features": 8, "experiment": {"method": name, "rounds": 3}}
    if issubclass(METHODS[name], PeerMethod):
        content["peers"] = {party: f"127.0.0.1:{7451 + number}" for number, party in enumerate(NAMES)}
    else:
        content |= {"server": "hub", "address": "127.0.0.1:7447", "parties": list(NAMES)}
    return parse_federation(content, "the federation")


def row_of(name: str) -> dict[str, str]:
    """Returns a method's row: what its sheet says that leaves, but for scores, and what stays."""
    file = federation_of(name)
    forms = forms_of(file, [file.method.architecture] if file.method.architecture else file.experiment.model_names)
    rows = [row for row in consent_rows(file.method, forms) if row.step not in SCORES]
    leaving = [row for row in rows if row.leaves]
    return {
        "method": f"[`{name}`](methods/{name}.md)",
        "to": "peers" if not file.has_server else "server" if leaving else "nobody",
        "trained weights, or updates of them": listed(row for row in leaving if row.model),
        "other numbers of the data": listed(row for row in leaving if row.depends_on and not row.model),
        "amounts alone": listed(row for row in leaving if not row.depends_on),
        "stays": listed(row for row in rows if not row.leaves),
    }


def listed(rows: Any) -> str:
    fields: list[Row] = list(rows)
    return ", ".join(f"`{row.step}/{row.field}`" for row in fields)


def table() -> str:
    """Returns the table of all methods that organisations can run."""
    return table_of([row_of(name) for name in sorted(METHODS) if METHODS[name].place is Method.place])


def filled() -> str:
    """Returns the text of the page with its table as the code has it."""
    content = table()
    return REGION.sub(lambda _: f"<!-- leaves -->\n{content}\n<!-- /leaves -->", PAGE.read_text(encoding="utf-8"))


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    PAGE.write_text(filled(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The documents say what is: links resolve, names exist, and a round goes the way it is said to go."""

import pkgutil
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graft
from graft import Clients, Fleet, Method, Peers, Server
from graft.cli import app
from tests.documents import PAGES, ROOT, blocks, page_id


def anchors(page):
    """The anchors that a renderer gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page):
    """The relative links of a page that lead nowhere."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_resolve(page):
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[here](#a-heading) [there](nowhere.md) [else](#other) [web](https://example.org)")
    assert broken_links(page) == ["nowhere.md", "#other"]


def the_way():
    """The functions that docs/architecture.md says a round goes through, as (file, name)."""
    text = (ROOT / "docs/architecture.md").read_text().partition("## The way of one round")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", text, re.MULTILINE)


def in_order(wanted, calls):
    """Whether the wanted calls happen in this order, others between them."""
    remaining = iter(calls)
    return all(call in remaining for call in wanted)


def test_a_round_goes_the_way_it_is_said_to_go(tmp_path):
    package = str(Path(graft.__file__).parent) + "/"
    calls = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            calls.append((code.co_filename.removeprefix(package), code.co_qualname))

    flags = shlex.split("--method fedgkc --models gcn,gat --clients 2 --rounds 1 --width 8 --epochs 1 --device cpu")
    sys.setprofile(note)
    try:
        result = CliRunner().invoke(app, ["run", *flags, "--out", str(tmp_path / "run")])
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0, result.output
    way = the_way()
    assert len(way) == 25
    assert set(way) <= set(calls)
    assert in_order(way, calls)
    assert not in_order([way[1], way[0], *way[2:]], calls)


def test_the_picture_of_the_layers_is_that_of_the_linter():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"\w+", layer) for layer in contracts[0]["layers"]]
    picture = next(
        block.code for block in blocks(ROOT / "docs/architecture.md") if block.code.lstrip().startswith("cli ")
    )
    drawn = [line.split() for line in picture.splitlines()]
    assert [words[: len(names)] for words, names in zip(drawn, layers, strict=True)] == layers


def test_glossary_names_what_is_in_the_code():
    text = (ROOT / "docs/architecture.md").read_text().partition("## Glossary")[2]
    code = "\n".join(path.read_text() for path in (ROOT / "src/graft").rglob("*.py"))
    names = [
        name for row in text.splitlines() if row.count("|") == 4 for name in re.findall(r"`([^`]+)`", row.split("|")[2])
    ]
    assert len(names) > 30
    missing = [name for name in names for part in re.findall(r"\w+", name) if not re.search(rf"\b{part}\b", code)]
    assert missing == []


HOLDERS = {"fleet": Fleet, "batch": Fleet, "server": Server, "clients": Clients, "peers": Peers}


def unknown_attributes(text):
    """What a text says of a fleet, a server, clients or peers that they do not have."""
    pairs = re.findall(rf"\b({'|'.join(HOLDERS)})\.(?!py\b|md\b|svg\b)(\w+)", text)
    own = {"peers": {"round", "rounds", "members"}}  # set when an object is made
    return [
        f"{holder}.{name}"
        for holder, name in pairs
        if name not in {*dir(HOLDERS[holder]), *getattr(HOLDERS[holder], "__annotations__", ()), *own.get(holder, ())}
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=page_id)
def test_attributes_exist(page):
    assert unknown_attributes(page.read_text()) == []


def test_an_attribute_that_is_not_there_is_seen():
    assert unknown_attributes("`fleet.fit`, `batch.at_hand`, `server.derived`, docs/peers.md") == [
        "batch.at_hand",
        "server.derived",
    ]


def test_modules_that_pages_name_can_be_imported():
    text = "".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    names = set(re.findall(r"\bgraft(?:\.[a-z_]+)+\b", text)) - {"graft.run", "graft.resume"}
    assert len(names) > 4
    for name in sorted(names):
        if name.split(".")[1] in graft.__all__ or name in {
            "graft.methods",
            "graft.plugs",
            "graft.models",
            "graft.datasets",
        }:
            continue  # a public name, or a group of entry points
        pkgutil.resolve_name(name)


def test_declarations_are_those_of_a_method():
    text = (ROOT / "docs/architecture.md").read_text().partition("## What a method declares")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)", row)} - {
        "Annotated",
        "Search",
    }  # which annotate fields
    assert names <= set(dir(Method))
    class_variables = {name for name, kind in Method.__annotations__.items() if "ClassVar" in kind}
    assert class_variables <= names

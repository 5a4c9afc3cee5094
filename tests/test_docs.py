"""The documents say what is: links resolve, commands parse, snippets compile and run, and a round goes the way it is
said to go."""

import ast
import contextlib
import pkgutil
import re
import shlex
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import graft
from graft import Clients, Fleet, Method, Peers, Server
from graft.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
RUNNABLE = "<!-- run -->"  # stands before a snippet that must run, and before text files that it reads


def page_id(path):
    return str(path.relative_to(ROOT))


def blocks(page, language=""):
    """The code blocks of a page in that language, each with the line before it."""
    pattern = rf"([^\n]*)\n+ *```{language}\n(.*?)\n *```"
    return [(before.strip(), code) for before, code in re.findall(pattern, page.read_text(), re.DOTALL)]


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


def commands(page):
    """The command lines of a page that call graft, comments left out."""
    lines = [line.strip() for _, code in blocks(page) for line in code.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`(graft [a-z][a-z-]*(?: [^`]*)?)`", page.read_text())
    return [shlex.split(line, comments=True) for line in (*lines, *inline) if line.startswith("graft ")]


def parse_command(words):
    """Parse a command line as Typer would, without running it; raises where that fails."""
    _, name, *arguments = ["1" if word.isupper() else word for word in words]  # CLIENTS stands for a number of them
    command = typer.main.get_command(app).commands[name]
    if arguments:  # without any it may be a command that is only mentioned
        with contextlib.suppress(typer.Exit):  # of --help
            command.make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_resolve(page):
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[here](#a-heading) [there](nowhere.md) [else](#other) [web](https://example.org)")
    assert broken_links(page) == ["nowhere.md", "#other"]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=page_id)
def test_commands_parse(page):
    for words in commands(page):
        try:
            parse_command(words)
        except Exception as error:  # Typer's own, or a KeyError for a command that is not there
            pytest.fail(f"{shlex.join(words)}: {error!r}")


@pytest.mark.parametrize(
    "line", ["graft train", "graft run --no-such-flag 3", "graft run --clients some", "graft resume a b"]
)
def test_a_wrong_command_is_seen(line):
    with pytest.raises(Exception):  # noqa: B017, PT011
        parse_command(shlex.split(line))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=page_id)
def test_snippets_compile(page):
    for _, code in blocks(page, "python"):
        ast.parse(textwrap.dedent(code))


def snippets_to_run():
    return [(page, code) for page in PAGES for before, code in blocks(page, "python") if before == RUNNABLE]


@pytest.mark.parametrize(("page", "code"), snippets_to_run(), ids=lambda value: getattr(value, "stem", ""))
def test_snippets_run(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in re.findall(r"^`(\w+\.py)`:?\n+```python\n(.*?)\n```", page.read_text(), re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(text)
    exec(compile(code, page.name, "exec"), {"__name__": "snippet"})


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
    picture = next(code for _, code in blocks(ROOT / "docs/architecture.md") if code.lstrip().startswith("cli "))
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
    pairs = re.findall(rf"\b({'|'.join(HOLDERS)})\.(?!py\b|md\b)(\w+)", text)
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
    names = {name for row in rows for name in re.findall(r"`(\w+)", row)} - {"Annotated"}
    assert names <= set(dir(Method))
    class_variables = {name for name, kind in Method.__annotations__.items() if "ClassVar" in kind}
    assert class_variables <= names

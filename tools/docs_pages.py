"""A hook of MkDocs: pages that are made of something else than Markdown in docs/.

* The reference of the Python interface, one page for every section of docs/api.md.
* The commands with their options, and the settings of an experiment, from the code; PyTorch is not imported.
* Files of the repository that pages link to: they become pages too, so that a link to an example or to the changelog
  works on GitHub and on the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from typing_extensions import Doc

import graft
from graft.cli import app
from graft.cli.options import default_of
from graft.experiments.experiment import GROUPS, Experiment
from graft.fields import in_words, rules

ROOT = Path(__file__).parents[1]
FENCES = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
NAMED_LINK = re.compile(r"\[([\w/]+\.md)\]\(([^)\s#]+\.md)(#[^)\s]*)?\)")
TITLE = re.compile(r"^# ([^{\n]+?) *(?:\{.*)?$", re.MULTILINE)
API_ROW = re.compile(r"^\| `(\w+)` \|(?:.*\|)? (.+) \|$", re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".cff": "yaml", ".sh": "bash"}
OF_FIELDS = ("Experiment", "ExperimentSettings")  # names whose fields have a page of their own


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the folders `methods` and `reference` where the navigation names these folders."""
    config.nav = with_folders(config.nav, {"methods": method_pages, "reference": api_pages})
    return config


def with_folders(entries: list[Any], folders: dict[str, Any]) -> list[Any]:
    """Returns a navigation in which the names of folders are replaced by their pages."""
    replaced = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            inner = folders[inner]() if isinstance(inner, str) and inner in folders else inner
            replaced.append({title: with_folders(inner, folders) if isinstance(inner, list) else inner})
        else:
            replaced.append(entry)
    return replaced


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for title, names in api_sections().items():
        files.append(File.generated(config, api_path(title), content=api_page(title, names)))
    in_navigation = set(flat(config.nav))
    outside = [name for name in (*ROOT_PAGES, *notebooks()) if site_path(name) in in_navigation]
    shown: set[str] = set()
    while outside:  # pages that are added may link to others
        for name in sorted(set(outside) - shown):
            level = InclusionLevel.INCLUDED if site_path(name) in in_navigation else InclusionLevel.NOT_IN_NAV
            if files.get_file_from_path(site_path(name)) is None:
                files.append(File.generated(config, site_path(name), content=page_of(name), inclusion=level))
        shown |= set(outside)
        pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")] + sorted(shown)
        linked = [target for page in pages if page.endswith(".md") for target in linked_files(page)]
        outside = [name for name in linked if not name.startswith("docs/") and name not in {*shown, START}]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Point links out of docs/ to the pages that stand for these files, and names of the API to their descriptions."""
    path = page.file.src_uri
    source = next((name for name in (*ROOT_PAGES, *notebooks()) if site_path(name) == path), f"docs/{path}")
    markdown = with_site_links(with_titles(markdown, source), source, path)
    if path == "api.md":
        markdown = re.sub(r"^\| `(\w+)` \|", r"| [`\1`][graft.\1] |", markdown, flags=re.MULTILINE)
    if path in LISTS:
        mark, make = LISTS[path]
        before, _, rest = markdown.partition(f"<!-- {mark} -->")
        markdown = f"{before}{make()}{rest.partition(f'<!-- /{mark} -->')[2]}"
    return markdown


# Files of the repository.

START = "README.md"  # the site has a first page of its own
ROOT_PAGES = tuple(path.name for path in sorted(ROOT.glob("*.md")) if path.name != START)


def notebooks() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))]


def site_path(path: str) -> str:
    """Returns where the site has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == START:
        return "index.md"
    if path in ROOT_PAGES:
        return path.lower()
    if path.endswith(".ipynb"):
        return str(Path(path).with_suffix(".md"))
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def outside_code(text: str) -> Iterator[tuple[bool, str]]:
    """Yields the parts of a page in order, each with whether it is text and not a block of code."""
    position = 0
    for block in FENCES.finditer(text):
        yield True, text[position : block.start()]
        yield False, block.group()
        position = block.end()
    yield True, text[position:]


def linked_files(page: str) -> list[str]:
    """Returns the files and folders of the repository that a page links to."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [match[2] for is_text, part in outside_code(text) if is_text for match in LINK.finditer(part)]
    paths = [repository_path(page, link) for link in links]
    return [path for path in paths if path is not None]


def repository_path(page: str, link: str) -> str | None:
    """Returns the file that a link of a page leads to; None for an address elsewhere and for what does not exist."""
    if re.match(r"[a-z]+:", link):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def with_site_links(text: str, source: str, path: str) -> str:
    """Returns a page whose links lead to pages of the site wherever they lead to files of the repository."""

    def replaced(match: re.Match[str]) -> str:
        target = repository_path(source, match[2])
        if target is None or (target.startswith("docs/") and source.startswith("docs/")):
            return match[0]
        link = posixpath.relpath(site_path(target), posixpath.dirname(path) or ".")
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    return "".join(LINK.sub(replaced, part) if is_text else part for is_text, part in outside_code(text))


def with_titles(text: str, source: str) -> str:
    """Returns a page in which links that are called by a file's name, as on GitHub, have the title of that page."""

    def titled(match: re.Match[str]) -> str:
        target = repository_path(source, match[2])
        title = TITLE.search((ROOT / target).read_text(encoding="utf-8")) if target else None
        return f"[{title[1]}]({match[2]}{match[3] or ''})" if title else match[0]

    return "".join(NAMED_LINK.sub(titled, part) if is_text else part for is_text, part in outside_code(text))


def page_of(path: str) -> str:
    """Returns the page that shows a file or a folder of the repository."""
    file = ROOT / path
    if path in ROOT_PAGES:
        return file.read_text(encoding="utf-8")
    if file.is_dir():
        entries = [entry for entry in sorted(file.iterdir()) if entry.is_file() and entry.suffix in LANGUAGES]
        return "\n".join([f"# {path}", "", *(f"* `{entry.name}`" for entry in entries)])
    text = file.read_text(encoding="utf-8")
    return notebook_page(json.loads(text)) if path.endswith(".ipynb") else code_page(path, text)


def code_page(path: str, text: str) -> str:
    return f"# {Path(path).name}\n\n`{path}`\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n"


def notebook_page(notebook: dict[str, Any]) -> str:
    """Returns the cells of a notebook as a page; what they print is not kept in it."""
    shown = {"markdown": "{}", "code": "```python\n{}\n```"}
    return "\n\n".join(shown[cell["cell_type"]].format("".join(cell["source"])) for cell in notebook["cells"])


# The reference.


def api_sections() -> dict[str, dict[str, str]]:
    """Returns the public names and what is said of them, by the sections of docs/api.md; fails where they are not those
    of the package."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    sections = {title: dict(API_ROW.findall(part)) for title, part in zip(parts[::2], parts[1::2], strict=True)}
    listed = {name for names in sections.values() for name in names}
    differing = listed ^ (set(graft.__all__) - {"__version__"})
    if differing:
        raise PluginError(f"docs/api.md and graft.__all__ differ in {', '.join(sorted(differing))}.")
    return {title: names for title, names in sections.items() if names}


@cache
def undocumented_values() -> set[str]:
    """Returns the public names that are values and have no docstring; fails if a class or a function has none."""
    package = griffe.load("graft", search_paths=[ROOT / "src"])
    targets = {name: package[name] for name in graft.__all__}
    without = {name: target for name, target in targets.items() if not target.has_docstring}
    missing = [name for name, target in without.items() if not target.is_attribute]
    if missing:
        raise PluginError(f"Public names without a docstring: {', '.join(missing)}.")
    return set(without)


def api_path(title: str) -> str:
    return f"reference/{re.sub(r'[^a-z]+', '_', title.lower())}.md"


def api_pages() -> list[str]:
    return ["api.md", *map(api_path, api_sections())]


def api_page(title: str, names: dict[str, str]) -> str:
    """Returns a page with the docstrings of some public names."""
    lines = [f"# {title}", "", "All of these are imported from `graft`; [one line for each](../api.md).", ""]
    for name, sentence in names.items():
        lines += [f"::: graft.{name}"]
        if name in OF_FIELDS:
            lines += ["    options:", "      members: false", "      show_signature: false", ""]
            lines += ["Its fields are the [settings of an experiment](settings.md)."]
        lines += ["", sentence if name in undocumented_values() else "", ""]
    return "\n".join(lines)


def list_commands() -> str:
    """Returns the commands with all their arguments and options, in the order of the help."""
    lines = []
    for name, command in every_command():
        usage = command.get_usage(command.make_context(name, [], resilient_parsing=True))
        lines += [f"## graft {name}", "", plain(command.help or ""), ""]
        lines += ["```", f"graft {plain(usage).removeprefix('Usage: ')}", "```", ""]
        tables: dict[str, list[Any]] = {}
        for parameter in command.params:
            if parameter.name != "help":
                panel = getattr(parameter, "rich_help_panel", None) or parameter.param_type_name
                tables.setdefault(panel, []).append(parameter)
        for panel, parameters in tables.items():
            lines += [f"| {panel} | |", "| --- | --- |", *map(parameter_row, parameters), ""]
    return "\n".join(lines)


def every_command() -> Iterator[tuple[str, Any]]:
    """Yields the commands by their names, those of a group after the group."""
    for name, command in typer.main.get_command(app).commands.items():
        yield name, command
        for inner, subcommand in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", subcommand


def parameter_row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    shown = "" if default in (None, False, "", ()) or callable(default) else f" ({default})"
    return f"| {names} | {cell((parameter.help or '') + shown)} |"


def list_settings() -> str:
    """Returns the fields of an experiment with type, bounds, default and meaning, in their groups."""
    lines = []
    hints, bounds = get_type_hints(Experiment, include_extras=True), rules(Experiment)
    for field in fields(Experiment):
        if field.name in GROUPS:
            lines += ["", f"## {GROUPS[field.name]}", "", "| setting | type | default | meaning |"]
            lines += ["| --- | --- | --- | --- |"]
        kind, *notes = get_args(hints[field.name])
        meaning = next(note.documentation for note in notes if isinstance(note, Doc))
        rule = bounds.get(field.name)
        allowed = f" It must be {in_words(rule.bounds)}." if rule and rule.bounds else ""
        default = default_of(field)
        shown = f"`{json.dumps(default)}`" if default or default in (0, False) else ""
        lines += [f"| `{field.name}` | `{cell(type_name(kind))}` | {shown} | {cell(meaning + allowed)} |"]
    return "\n".join(lines)


def type_name(kind: Any) -> str:
    choices = get_args(kind)
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(map(repr, choices))
    if get_args(kind) and getattr(kind, "__metadata__", None):
        return type_name(get_args(kind)[0])
    return kind.__name__ if isinstance(kind, type) and not choices else str(kind).replace("typing.", "")


def plain(text: str) -> str:
    return " ".join(text.split())


def cell(text: str) -> str:
    """Returns a text that can stand in a table."""
    return plain(text).replace("|", "\\|")


# Pages in which a list from the code takes the place of a mark.
LISTS = {
    "reference/command_line.md": ("commands", list_commands),
    "reference/settings.md": ("settings", list_settings),
}


# The navigation.


def method_pages() -> list[Any]:
    """Returns the pages of docs/methods, in the order and the groups of its index."""
    folder = ROOT / "docs" / "methods"
    parts = re.split(r"^## (.+)$", (folder / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries: list[Any] = ["methods/index.md"]
    listed = {"methods/index.md"}
    for title, part in zip(parts[1::2], parts[2::2], strict=True):
        pages = [f"methods/{match[2]}" for match in LINK.finditer(part) if re.fullmatch(r"\w+\.md", match[2])]
        pages = [page for page in dict.fromkeys(pages) if page not in listed]
        listed |= set(pages)
        entries += [{title: pages}] if pages else []
    return entries


def flat(entries: Any) -> list[str]:
    """Returns the paths in a navigation."""
    if isinstance(entries, str):
        return [entries]
    inner = entries.values() if isinstance(entries, dict) else entries
    return [path for entry in inner for path in flat(entry)]

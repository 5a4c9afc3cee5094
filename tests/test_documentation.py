"""The site is built without a warning, says everything that is public, and fetches nothing."""

import fcntl
import json
import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest
import typer
from mkdocs.utils import yaml_load

import graft
from graft.cli import app
from graft.experiments.experiment import Experiment
from graft.methods import METHODS
from tests.documents import ROOT

CONFIG = ROOT / "mkdocs.yml"
ARTICLE = re.compile(r"<article.*?</article>", re.DOTALL)
CODE = re.compile(r"<pre.*?</pre>|<code.*?</code>", re.DOTALL)
LEFT_OVER = {
    "a list that has no empty line before it": r"<p>[^<]*\n[*-] ",
    "a table": r"\| ?---",
    "a fence": r"```",
    "bold": r"\*\*\w",
    "an equation": r"\$\S[^$\n]*\$|arithmatex",
    "a file's name in the place of a title": r">[\w/]+\.md</a>",
    "a link": r"\]\([^)]+\)|\]\[graft",
}


def build(config, site):
    """Build a site as `make docs` does; returns the exit code and what was printed."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site, as pages by their paths; processes that share the tests share it."""
    shared = "PYTEST_XDIST_WORKER" in os.environ
    folder = tmp_path_factory.getbasetemp().parent / "site" if shared else tmp_path_factory.mktemp("site")
    with folder.with_name("site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "index.html").is_file():
            code, printed = build(CONFIG, folder)
            assert code == 0, printed
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.html")}


def test_every_page_of_the_folder_is_on_the_site(site):
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert len(pages) > 30
    assert set(pages) <= set(site)
    assert {"changelog.html", "contributing.html"} <= set(site)


def test_every_method_has_a_page_and_every_public_name_a_place(site):
    assert all(f"methods/{name}.html" in site for name in METHODS)
    reference = "".join(page for path, page in site.items() if path.startswith("reference/"))
    missing = [name for name in graft.__all__ if f'id="graft.{name}"' not in reference]
    assert missing == ["__version__"]


def test_reference_lists_every_command_option_and_setting(site):
    page = site["reference/command_line.html"]
    for name, command in typer.main.get_command(app).commands.items():
        assert f"graft {name}" in page
        options = [option for entry in command.params for option in entry.opts if option.startswith("--")]
        assert [option for option in options if f"<code>{option}</code>" not in page and option != "--help"] == []
    settings = site["reference/settings.html"]
    assert [entry.name for entry in fields(Experiment) if f"<code>{entry.name}</code>" not in settings] == []
    assert "at least 0 and at most 1" in settings
    assert "when it is built" not in page + settings  # which stands where the lists go


def test_equations_are_drawn_by_the_browser(site):
    assert site["methods/fedavg.html"].count("<math ") > 3


@pytest.mark.parametrize("what", LEFT_OVER)
def test_nothing_of_the_source_is_left_in_a_page(site, what):
    for path, page in site.items():
        for article in ARTICLE.findall(page):
            left = re.search(LEFT_OVER[what], CODE.sub("", article))
            assert left is None, f"{path}: {what}: {article[left.start() : left.end() + 60]}"


def test_what_is_left_over_would_be_seen():
    assert re.search(LEFT_OVER["a list that has no empty line before it"], "<p>Text:\n* one\n* two</p>")
    assert re.search(LEFT_OVER["an equation"], "where $x_i$ is")
    assert not re.search(LEFT_OVER["an equation"], "it costs $5 a month")


def test_pages_fetch_nothing_from_elsewhere(site):
    for path, page in site.items():
        sources = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", page)
        assert sources == [], path
        assert "fonts.googleapis" not in page


# The settings that make a mistake fail.


def build_page(folder, text, **changes):
    """Build a site of two pages with the validation of ours."""
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(text)
    (folder / "docs" / "other.md").write_text("# Other\n\n## A part\n")
    validation = yaml_load(CONFIG.read_text())["validation"]
    settings = {"site_name": "Two pages", "validation": validation, "nav": ["index.md", "other.md"], **changes}
    (folder / "mkdocs.yml").write_text(json.dumps(settings))
    return build(folder / "mkdocs.yml", folder / "site")


def test_a_page_without_mistakes_is_built(tmp_path):
    code, printed = build_page(tmp_path, "# Start\n\n[part](other.md#a-part)\n")
    assert code == 0, printed


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("[nowhere](missing.md)", {}),
        ("[no such part](other.md#b-part)", {}),
        ("[not a page](missing)", {}),
        ("# Start", {"nav": ["index.md"]}),
    ],
    ids=["link", "anchor", "file", "page that no menu has"],
)
def test_a_mistake_fails_the_build(tmp_path, text, changes):
    code, printed = build_page(tmp_path, text, **changes)
    assert code == 1
    assert "Aborted with 1 warnings in strict mode" in printed


def test_a_public_name_without_a_line_fails_the_build(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import docs_pages

    docs_pages.api_sections()
    monkeypatch.setattr(graft, "__all__", [*graft.__all__, "new_name"])
    with pytest.raises(docs_pages.PluginError, match=r"differ in new_name\."):
        docs_pages.api_sections()


def test_lists_from_the_code_need_no_pytorch():
    code = (
        "import docs_pages, sys; docs_pages.list_commands(); docs_pages.list_settings(); print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_an_equation_that_cannot_be_read_fails_the_build(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import docs_math

    class Page:
        class file:  # noqa: N801
            src_uri = "page.md"

    def page_with(latex):
        return docs_math.on_page_content(rf'<p><span class="arithmatex">\({latex}\)</span></p>', Page)

    assert "<mfrac>" in page_with(r"\frac{a}{b}")
    with pytest.raises(docs_math.PluginError, match=r"page\.md: the equation .* cannot be read"):
        page_with(r"\left( a")
    with pytest.raises(docs_math.PluginError, match=r"page\.md: \\nosuch in the equation"):
        page_with(r"\nosuch{a}")

"""Every method has a page that says what the code does: settings, messages, equations; and what was measured."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints
from xml.etree import ElementTree

import pytest

from graft.errors import InputError
from graft.experiments.experiment import Experiment
from graft.experiments.make_method import make_method
from graft.experiments.studies import STUDIES
from graft.federation.method import Method
from graft.federation.peers import PeerMethod
from graft.federation.reveals import covering, declared
from graft.methods import METHOD_FAMILIES, METHODS
from graft.options import parse_settings
from graft.testing.leaks import observe
from graft.testing.toy import toy_graphs
from tools import method_pages
from tools.method_pages import PAGES, REGION, anchor, family_of, filled, main_name, messages, note, table_of, venue

SECTIONS = ["Idea", "Equations", "Messages", "Settings", "Differences from the paper", "Results", "Paper"]
SHORT = {"fedsage_plus": {"generator_epochs": 1, "shared_epochs": 1, "rank": 2}}  # its generator is large
PUBLISHED = ["dfed_sst_paper", "fedgkc_paper", "fedomd_paper", "fedtad_paper"]
OPTIONS = {field.name.replace("_", "-") for field in fields(Experiment)}
OTHER_PAGES = ["index", "plugs"]
METHOD_PAGES = [PAGES / f"{name}.md" for name in sorted(METHODS)]
ALL_PAGES = sorted(PAGES.glob("*.md"))


def sections(text):
    """The sections of a page, by their titles."""
    titles, bodies = (re.split(r"^## (.+)$", text, flags=re.MULTILINE)[start::2] for start in (1, 2))
    return {title: body.strip() for title, body in zip(titles, bodies, strict=True)}


def empty_sections(text):
    """The sections with nothing in them but marks of regions."""
    return [title for title, body in sections(text).items() if not re.sub(r"<!--.*?-->", "", body).strip()]


def equations(text):
    """The equations of a text, those on lines of their own first."""
    code = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
    text = code.sub("", text)
    displayed = re.findall(r"\$\$(.+?)\$\$", text, re.DOTALL)
    return displayed + re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.DOTALL))


def unbalanced(latex):
    """Whether a brace, a \\left or an environment has no counterpart."""
    depth = 0
    for mark in re.findall(r"\\[{}]|[{}]", latex):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        if depth < 0:
            return True
    pairs = ((r"\\left(?![a-z])", r"\\right(?![a-z])"), (r"\\begin\{", r"\\end\{"))
    return depth != 0 or any(len(re.findall(first, latex)) != len(re.findall(last, latex)) for first, last in pairs)


def unread(latex):
    """What a converter to MathML could not make sense of; empty where all is well."""
    from latex2mathml.converter import convert

    try:
        text = "".join(ElementTree.fromstring(convert(latex)).itertext())
    except Exception as error:
        return repr(error)
    return " ".join(re.findall(r"\\\w*|[&_]", text))


def unfounded_numbers(page, text):
    """The numbers of a page's results that are on none of the pages of results that they link to."""
    results = sections(text)["Results"]
    linked = {(page.parent / link).resolve() for link in re.findall(r"\]\((\.\./results/\w+\.md)", results)}
    there = "".join(path.read_text(encoding="utf-8") for path in linked)
    numbers = re.findall(r"\d+\.\d+", re.sub(r"\$[^$]+\$|\]\([^)]*\)", "", results))
    return [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", there)]


def test_every_method_has_a_page_and_every_page_a_method():
    assert [page.stem for page in ALL_PAGES] == sorted([*METHODS, *OTHER_PAGES])


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_regions_are_as_the_code_has_them(page):
    text = page.read_text(encoding="utf-8")
    assert filled(page) == text, "out of date: run python tools/method_pages.py"
    assert len(REGION.findall(text)) == len(re.findall("<!-- /", text)) == len(re.findall("<!-- [a-z]", text))


def test_a_region_that_is_out_of_date_is_seen(tmp_path):
    page = tmp_path / "fedprox.md"
    page.write_text((PAGES / "fedprox.md").read_text().replace("strength of the pull", "weakness of the pull"))
    assert filled(page) == (PAGES / "fedprox.md").read_text() != page.read_text()


def test_a_region_that_a_page_cannot_have_is_refused(tmp_path):
    page = tmp_path / "fedprox.md"
    page.write_text("<!-- weather -->\n<!-- /weather -->")
    with pytest.raises(SystemExit, match="a region 'weather'"):
        filled(page)


def test_the_command_writes_what_is_out_of_date_and_checks_without_writing(tmp_path, monkeypatch, capsys):
    page = tmp_path / "moon.md"
    page.write_text("<!-- settings -->\n<!-- /settings -->")
    monkeypatch.setattr(method_pages, "PAGES", tmp_path)
    monkeypatch.setattr("sys.argv", ["method_pages.py", "--check"])
    with pytest.raises(SystemExit) as stopped:
        method_pages.main()
    assert (stopped.value.code, page.read_text()) == (1, "<!-- settings -->\n<!-- /settings -->")
    monkeypatch.setattr("sys.argv", ["method_pages.py"])
    method_pages.main()
    assert "| `temperature` | `0.5` |" in page.read_text()
    assert "written: docs/methods/moon.md" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["method_pages.py", "--check"])
    method_pages.main()


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda page: page.stem)
def test_pages_have_all_sections_and_none_is_empty(page):
    text = page.read_text(encoding="utf-8")
    assert list(sections(text)) == SECTIONS
    assert empty_sections(text) == []
    assert re.findall(r"<!-- (\w+)", text) == ["summary", "reveals", "settings"]
    assert method_pages.TRAVELS.search(text)


def test_an_empty_section_is_seen():
    assert empty_sections("# A\n\n## Idea\n\n<!-- x -->\n<!-- /x -->\n\n## Paper\n\nNone.") == ["Idea"]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_steps_that_send_are_among_the_messages(name):
    said = sections((PAGES / f"{name}.md").read_text(encoding="utf-8"))["Messages"]
    by_hand = REGION.sub("", said)
    steps = {field.partition("/")[0] for field in messages(METHODS[name])}
    assert {step for step in steps if f"`{step}`" not in by_hand} == set()


def test_a_declaration_that_a_method_takes_back_is_not_among_its_messages():
    assert {field.partition("/")[0] for field in messages(METHODS["gossip"])} == {"cut", "pull", "assemble"}
    assert "share/model" in messages(METHODS["pens"])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_round_sends_what_the_page_says(name):
    """Both ways: nothing that leaves a client is missing, and nothing is listed that is not sent."""
    general, table = {**declared(Method), **method_pages.scores_of_peers()}, messages(METHODS[name])
    round_trip = observe(METHODS[name](**SHORT.get(name, {})), toy_graphs(), rounds=1)
    fields = {sent.field for sent in round_trip.sent}
    assert {field for field in fields if covering(general, field) is None and covering(table, field) is None} == set()
    always = {field for field, reveals in table.items() if not reveals.when}
    assert always - {covering(table, field) for field in fields} == set()


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_equations_are_balanced(page):
    text = page.read_text(encoding="utf-8")
    found = equations(text)
    assert found
    assert [latex for latex in found if unbalanced(latex)] == []
    # A backslash before a mark is an escape to some readers of Markdown, which would leave a comma of a thin space.
    assert [latex for latex in found if re.search(r"\\[^a-zA-Z ]", latex)] == []
    assert re.sub(r"`[^`\n]*`", "", text).count("$") == sum(4 if f"$${e}$$" in text else 2 for e in found)


@pytest.mark.parametrize("latex", [r"\frac{1}{2", r"a}{b", r"\left( x", r"\begin{cases} x"])
def test_an_unbalanced_equation_is_seen(latex):
    assert unbalanced(latex)
    assert not unbalanced(r"\left( \frac{1}{2} \{ x \} \leftarrow y \right)")


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_equations_become_mathml(page):
    pytest.importorskip("latex2mathml")
    problems = {latex: unread(latex) for latex in equations(page.read_text(encoding="utf-8"))}
    assert {latex: problem for latex, problem in problems.items() if problem} == {}


@pytest.mark.parametrize("latex", [r"\frob{x}", r"\begin{aligned} a &= b \end{aligned}", "x_", r"\left( x"])
def test_an_equation_that_no_browser_would_draw_is_seen(latex):
    pytest.importorskip("latex2mathml")
    assert unread(latex)
    assert unread(r"\theta_k \leftarrow \frac{1}{N_k} \sum_i x_i^2") == ""


@pytest.mark.parametrize("page", [*METHOD_PAGES, PAGES / "plugs.md"], ids=lambda page: page.stem)
def test_numbers_of_results_are_on_the_pages_of_results(page):
    assert unfounded_numbers(page, page.read_text(encoding="utf-8")) == []


def test_a_number_that_nobody_measured_is_seen():
    text = "\n## Results\n\nIt has 84.26 and 99.99, and 4.26 ([study](../results/fedtad.md)).\n"
    assert unfounded_numbers(PAGES / "fedavg.md", text) == ["99.99", "4.26"]


# What published variants do otherwise than the print.


def departures(text):
    """The cells of every line of the tables of departures, by the titles of their columns."""
    lines = []
    for table in re.findall(r"(?:^\|.*\n?)+", sections(text)["Differences from the paper"], re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.strip().splitlines()]
        lines += [dict(zip(head, row, strict=True)) for row in rows]
    return lines


def wrong_switches(name, cell):
    """The switches in a cell that a method, or an experiment, does not have or that do not take this value."""
    hints = get_type_hints(METHODS[name])
    choices = {choice for hint in hints.values() for choice in get_args(hint)}
    wrong = []
    for switch in re.findall(r"`([^`]+)`", cell):
        if switch.startswith("graft reproduce "):
            wrong += [study for study in switch.split()[2:] if study not in STUDIES]
        elif "--" in switch:
            wrong += [f"--{option}" for option in re.findall(r"--([a-z-]+)", switch) if option not in OPTIONS]
        elif "=" in switch:
            try:
                make_method(name, parse_settings([switch]))
            except InputError:
                wrong.append(switch)
        elif switch not in {*hints, *choices, "true", "false"}:
            wrong.append(switch)
    return wrong


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_variants_say_what_they_do_otherwise_with_switch_and_cost(name):
    lines = departures((PAGES / f"{name}.md").read_text(encoding="utf-8"))
    assert len(lines) >= 7
    for line in lines:
        titles = list(line)
        assert len(titles) >= 4, titles
        assert titles[2].startswith("switch"), titles
        assert wrong_switches(name, line[titles[2]]) == [], line


def test_a_switch_that_is_not_there_is_seen():
    cell = "`beta=0.3`, `betta`, `include_self`, `schedule=nobody_first`, `block`, `--epochs 1 --epoch 2`"
    assert wrong_switches("fedgkc_paper", cell) == ["betta", "include_self", "schedule=nobody_first", "--epoch"]


def test_families_say_what_the_classes_do():
    """Who exchanges nothing is a reference, and who has no server is with those; the rest is a matter of judgement."""
    families = {name: family_of(name) for name in METHODS.targets}
    alone = {name for name in METHODS.targets if not messages(METHODS[name])}
    peers = {name for name in METHODS.targets if issubclass(METHODS[name], PeerMethod)} - alone
    assert {name for name, family in families.items() if family == "References"} == alone
    assert {name for name, family in families.items() if family == "No server"} == peers
    of_one_model = {name for name, family in families.items() if family.startswith("One model")}
    assert of_one_model
    assert all(METHODS[name].one_model for name in of_one_model)


def test_families_are_on_the_list_and_lead_to_it():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    titles = [title for title, family in METHOD_FAMILIES.items() if family.methods]
    assert [title for title in re.findall(r"^## (.+)$", index, re.MULTILINE) if title in METHOD_FAMILIES] == titles
    assert anchor("One model, a server") == "one-model-a-server"
    assert "[One model, a server](index.md#one-model-a-server)" in (PAGES / "fedprox.md").read_text(encoding="utf-8")


def test_variants_list_what_they_change():
    assert main_name("fedgkc_paper", METHODS) == "fedgkc"
    assert main_name("fedsage_plus", METHODS) is None
    region = method_pages.settings_region("fedomd_paper")
    assert "| `beta` | `10.0` | `0.01` |" in region
    assert "`alpha`" not in region


def test_tables_leave_out_columns_without_a_word_and_keep_bars_in_their_cells():
    rows = [{"name": "a", "when": "", "values": "x | y"}, {"name": "b", "when": "", "values": ""}]
    assert table_of(rows).splitlines() == ["| name | values |", "| --- | --- |", "| a | x \\| y |", "| b |  |"]


@pytest.mark.parametrize(
    ("meaning", "shown"),
    [
        ("Weight of the labels.", "weight of the labels"),
        ("S: number of segments", "S: number of segments"),
        ("Three things. And one more.", "Three things. And one more."),
        ("", ""),
    ],
)
def test_comments_become_notes(meaning, shown):
    assert note(meaning) == shown


def test_the_list_says_where_papers_appeared():
    assert venue("## Paper\n\nA and B: *On graphs.* arXiv 2501.12624, 2025.\n\nMore.") == "arXiv 2501.12624, 2025"
    assert venue("## Paper\n\nNone: a reference.\n") == ""
    index = Path(PAGES / "index.md").read_text(encoding="utf-8")
    assert all(f"]({name}.md)" in index for name in METHODS)

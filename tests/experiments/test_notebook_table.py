"""Tables in notebooks: what others named is shown, and never obeyed."""

from graft.experiments.notebook_table import notebook_table

HOSTILE = "<img src=x onerror=alert(1)>"


def test_every_part_shows_foreign_markup_as_text():
    page = notebook_table(HOSTILE, [HOSTILE], [[HOSTILE]], [HOSTILE])
    assert "<img" not in page
    assert page.count("&lt;img") == 4


def test_control_characters_are_spelled_out():
    assert "\x1b" not in notebook_table("red \x1b[31m", ["\x1b"], [["\x1b"]])


def test_a_table_has_a_row_each_and_there_is_none_without_rows():
    page = notebook_table("title", ("name", "score"), [("a", 1), ("b", None)], ["below"])
    assert page.count("<tr>") == 3
    assert "<td>a</td><td>1</td>" in page
    assert page.index("</table>") < page.index("<p>below</p>")
    assert "<table" not in notebook_table("title", ("name",), [], ["below"])

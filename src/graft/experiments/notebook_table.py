"""How results look in a notebook: a headline, a table, and sentences below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graft.files import printable

TEMPLATE = """<p>{{ headline }}</p>
{% if rows %}<table><thead><tr>{% for name in head %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table>
{% endif %}{% for note in notes %}<p>{{ note }}</p>
{% endfor %}"""


def notebook_table(
    headline: str, head: Iterable[str] = (), rows: Iterable[Sequence[object]] = (), notes: Iterable[str] = ()
) -> str:
    """Returns texts as HTML for a notebook; whatever they hold is shown as text."""
    from jinja2 import Template

    html: str = Template(TEMPLATE, autoescape=True).render(
        headline=printable(headline),
        head=[printable(name) for name in head],
        rows=[[printable(cell) for cell in row] for row in rows],
        notes=[printable(note) for note in notes],
    )
    return html

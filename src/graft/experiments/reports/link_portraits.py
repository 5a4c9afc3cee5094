"""Pictures of who hears whom as the rounds of methods without a server go by, each from a run of its own."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from graft.experiments.experiment import make_experiment
from graft.experiments.reports.colours import LIGHT, PALETTE
from graft.experiments.reports.links import link_networks, link_weights
from graft.experiments.reports.pages import Block, Page, Picture, Section, Text, render
from graft.experiments.run import run_experiment
from graft.experiments.studies.study import Portrait
from graft.files import write_text

SIDE = 320  # of the picture of a round, in pixels
TITLE = 26  # the line above a row of them
STYLE = (
    f"text{{font:12px system-ui,sans-serif;fill:{LIGHT['soft']}}}.link{{stroke:{PALETTE[0]}}}"
    f".peer{{fill:{PALETTE[0]};stroke:{PALETTE[0]}}}.absent{{fill:{LIGHT['paper']}}}"
)
HEAD = ("dataset", "clients", "method", "round", "to", "from", "weight")


def write_links(
    portrait: Portrait,
    name: str,
    out: Path,
    datasets: Sequence[str],
    clients: Sequence[int],
    report: Callable[[str], None],
) -> list[Path]:
    """Writes figure.svg, links.csv and portrait.html for the chosen columns."""
    pictures: list[Picture] = []
    table: list[Sequence[Any]] = []
    for dataset in datasets:
        for count in clients:
            for method in portrait.links_of:
                values = {**portrait.values(dataset, method), "dataset": dataset, "clients": count}
                result = run_experiment(make_experiment(values))
                title = f"{dataset}-{count}, {method}: test accuracy {100 * result.accuracy['test']:.1f} %"
                for picture in link_networks(result.rounds, range(count), portrait.rounds):
                    pictures.append(Picture(picture.svg, title, picture.note))
                table += [(dataset, count, method, *line) for line in links_of(result.rounds, portrait.rounds)]
                report(f"{dataset} with {count} clients, {method}")
    note: list[Block] = [Text(portrait.note, "note")] if portrait.note else []
    page = render(Page(name, sections=[Section("Links", [*note, *pictures])], subtitle=f"{portrait.meaning}."))
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([HEAD, *table])
    texts = {"figure.svg": one_figure(pictures) + "\n", "links.csv": file.getvalue(), "portrait.html": page}
    out.mkdir(parents=True, exist_ok=True)
    for file_name, text in texts.items():
        write_text(out / file_name, text)
    return [out / file_name for file_name in texts]


def links_of(rounds: Sequence[dict[str, Any]], wanted: Sequence[int]) -> list[tuple[int, int, int, float]]:
    """Returns a line a link of the wanted rounds: the round, who hears, whom, and with what weight."""
    return [
        (record["round"], to, sender, round(weight, 6))
        for record in rounds
        if record["round"] in wanted
        for links in record.get("links", {}).values()
        for (to, sender), weight in link_weights(links).items()
    ]


def one_figure(pictures: Sequence[Picture]) -> str:
    """Returns all pictures as one SVG that needs no page: a row a run, a column a round."""
    height = SIDE + TITLE
    parts = []
    for row, picture in enumerate(pictures):
        parts.append(f'<text x="4" y="{row * height + 18}" style="font-weight:600">{escape(picture.title)}</text>')
        for column, network in enumerate(picture.svg):
            place = f'x="{column * SIDE}" y="{row * height + TITLE}" width="{SIDE}" height="{SIDE}"'
            parts.append(network.replace("<svg ", f"<svg {place} ", 1))
    width, total = SIDE * max((len(picture.svg) for picture in pictures), default=1), height * len(pictures)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}">'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>"
    )

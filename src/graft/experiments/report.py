"""What a person reads after a run: a page for one run, a table for several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from graft.experiments.records import RunDirectory, write_text

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #dde3ea }
td:first-child, th:first-child { text-align: left }
.big { font-size: 2.2rem; font-weight: 600 } .note { color: #5b6675 }
svg text { font: 12px system-ui, sans-serif; fill: #5b6675 }
"""
CURVES = {
    "test": ("own model, test", "#1f6fb4"),
    "validation": ("own model, validation", "#7fb3dd"),
    "test_global": ("global model, test", "#c4622d"),
}


def write_report(directory: Path) -> Path:
    """Make report.html of a finished run: one file, no script, nothing fetched."""
    run = RunDirectory(directory)
    write_text(run.report, page(run.read_result(), run.read_rounds()))
    return run.report


def page(result: dict[str, Any], rounds: Sequence[dict[str, Any]]) -> str:
    accuracy = result["accuracy"]
    title = f"{result['method']} on {result['dataset']}, {result['clients']} clients, seed {result['seed']}"
    facts = [
        ("Best round", f"{result['best_round']} of {result['rounds']}"),
        ("Test accuracy, weighted by nodes", percent(accuracy["test_node_weighted"])),
        ("Test accuracy, each client at its own best round", percent(local_best(rounds))),
        ("Test accuracy of the global model", percent(accuracy["test_global"])),
        ("Sent up", size(result["communication"]["up_bytes"])),
        ("Sent down", size(result["communication"]["down_bytes"])),
        ("Sent between peers", size(result["communication"]["peer_bytes"])),
        ("Time", f"{result['seconds']['total']:.1f} s, {1000 * result['seconds']['per_round']:.1f} ms a round"),
        ("Peak memory", size(result["peak_memory_bytes"])),
        ("Partition", result["partition"]),
        ("Device", result["device"]),
    ]
    clients = [
        (row["client"], row["model"], row["nodes"], row["edges"], percent(row["validation"]), percent(row["test"]))
        for row in result["per_client"]
    ]
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>
<h1>{escape(title)}</h1>
<p><span class="big">{percent(accuracy["test"])}</span> mean test accuracy of the clients' own models
<br><span class="note">at the round with the best validation accuracy, {percent(accuracy["validation"])}</span></p>
<h2>Accuracy over rounds</h2>
{curves(rounds)}
<h2>Facts</h2>
{html_table((), facts)}
<h2>Clients</h2>
{html_table(("client", "model", "nodes", "edges", "validation", "test"), clients)}
<p class="note">Made by Graft {escape(result["graft"])}.</p>
</html>
"""


def local_best(rounds: Sequence[dict[str, Any]]) -> float | None:
    """Mean test accuracy if every client stopped at its own best validation round; friendlier than a common round."""
    evaluated = [record["per_client"] for record in rounds if "per_client" in record]
    found = []
    for client in range(len(evaluated[0]["test"]) if evaluated else 0):
        scored = [record for record in evaluated if record["validation"][client] is not None]
        best = max(scored, key=lambda record: record["validation"][client], default=None)
        if best is not None and best["test"][client] is not None:
            found.append(best["test"][client])
    return mean(found) if found else None


def html_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{top}</tr>' if head else ''}{body}</table>"


def curves(rounds: Sequence[dict[str, Any]], width: int = 720, height: int = 280) -> str:
    """Accuracy against rounds as a picture in the page."""
    drawn = {name: [(r["round"], r[name]) for r in rounds if r.get(name) is not None] for name in CURVES}
    last = max((point[0] for points in drawn.values() for point in points), default=1)
    left, bottom = 40, height - 40
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - share * (bottom - 20)
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{100 * share:.0f}</text>')
    parts.append(f'<text x="{left}" y="{bottom + 16}">round 1</text>')
    parts.append(f'<text x="{width - 10}" y="{bottom + 16}" text-anchor="end">{last}</text>')
    for place, (name, (label, colour)) in enumerate(item for item in CURVES.items() if drawn[item[0]]):
        scale = (width - 10 - left) / max(last - 1, 1)
        points = " ".join(f"{left + (x - 1) * scale:.1f},{bottom - y * (bottom - 20):.1f}" for x, y in drawn[name])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        x = left + 200 * place
        parts.append(f'<line x1="{x}" x2="{x + 18}" y1="{height - 6}" y2="{height - 6}" stroke="{colour}"/>')
        parts.append(f'<text x="{x + 24}" y="{height - 2}">{label}</text>')
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Accuracy over rounds">{"".join(parts)}</svg>'


def comparison(results: Sequence[dict[str, Any]]) -> Table:
    """Runs side by side; runs that differ only in their seed become one row with mean and deviation."""
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        models = ",".join(dict.fromkeys(row["model"] for row in result["per_client"]))
        clients = f"{result['clients']} clients"
        rows[result["dataset"], clients, result["partition"], models, result["method"]].append(result)
    # What all runs have in common goes into the title, what differs into columns.
    varies = [len({key[place] for key in rows}) > 1 for place in range(4)]
    common = [value for value, differs in zip(next(iter(rows)), varies, strict=False) if not differs]
    table = Table(title=f"Test accuracy in percent: {', '.join(common)}", title_justify="left")
    for name, differs in zip(("dataset", "clients", "partition", "models"), varies, strict=True):
        if differs:
            table.add_column(name)
    table.add_column("method")
    for name in ("own models", "by nodes", "global model", "sent", "ms a round"):
        table.add_column(name, justify="right")
    for key, group in rows.items():
        sent = mean(sum(result["communication"].values()) for result in group)
        table.add_row(
            *(value for value, differs in zip(key, varies, strict=False) if differs),
            key[-1],
            *(spread([result["accuracy"][name] for result in group]) for name in HEADLINES),
            size(sent) if sent else "nothing",
            f"{1000 * mean(result['seconds']['per_round'] for result in group):.1f}",
        )
    seeds = sorted({len(group) for group in rows.values()})
    runs = "one run a row" if seeds == [1] else f"mean ± standard deviation over {' or '.join(map(str, seeds))} seeds"
    table.caption = (
        f"{runs}; own models: each client's own, mean over clients; by nodes: the same, weighted by nodes;\n"
        "global model: the one all clients share, scored the same way; all at the best validation round."
    )
    table.caption_justify = "left"
    return table


HEADLINES = ("test", "test_node_weighted", "test_global")


def spread(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    return f"{mean(known):.1f}" + (f" ± {stdev(known):.1f}" if len(known) > 1 else "")


def percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")

"""The HTML page of a run, and the table that compares several."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

from graft.experiments.reports.links import link_networks
from graft.experiments.reports.summary_table import readable_bytes
from graft.experiments.run_directory import RunDirectory
from graft.experiments.verdicts import Verdict, read_verdicts
from graft.federation.metric_names import METRICS, format_difference, format_metric
from graft.files import write_text

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #dde3ea }
td:first-child, th:first-child { text-align: left }
.big { font-size: 2.2rem; font-weight: 600 } .note { color: #5b6675 }
svg text { font: 12px system-ui, sans-serif; fill: #5b6675 }
.panels { display: flex; flex-wrap: wrap } .panels svg { width: 19rem }
"""
CURVES = {
    "test": ("own model, test", "#1f6fb4"),
    "validation": ("own model, validation", "#7fb3dd"),
    "test_global": ("global model, test", "#c4622d"),
    "test_trained": ("before mixing, test", "#3d8b57"),
}


def write_report(directory: Path, drawn: Sequence[int] | None = None) -> Path:
    """Writes report.html of a finished run, one file without scripts; `drawn` are the rounds whose links it shows."""
    run = RunDirectory(directory)
    result, rounds = run.read_record()
    write_text(run.report, page(result, rounds, drawn, read_verdicts(directory)))
    return run.report


def page(
    result: dict[str, Any],
    rounds: Sequence[dict[str, Any]],
    drawn: Sequence[int] | None = None,
    verdicts: Sequence[Verdict] = (),
) -> str:
    """Returns the HTML of a run's report."""
    accuracy = result["accuracy"]
    title = f"{result['method']} on {result['dataset']}, {result['clients']} clients, seed {result['seed']}"
    facts = [
        ("Best round", f"{result['best_round']} of {result['rounds']}"),
        ("Test accuracy, weighted by nodes", percent(accuracy["test_node_weighted"])),
        ("Test accuracy, each client at its own best round", percent(best_round_of_each_client(rounds))),
        ("Test accuracy of the global model", percent(accuracy["test_global"])),
        ("Sent up", readable_bytes(result["communication"]["up_bytes"])),
        ("Sent down", readable_bytes(result["communication"]["down_bytes"])),
        ("Sent between peers", readable_bytes(result["communication"]["peer_bytes"])),
        ("Time", f"{result['seconds']['total']:.1f} s, {1000 * result['seconds']['per_round']:.1f} ms a round"),
        ("Peak memory", readable_bytes(result["peak_memory_bytes"])),
        ("Partition", result["partition"]),
        ("Device", result["device"]),
    ]
    if "test_trained" in accuracy:
        facts.insert(3, ("Test accuracy before mixing", percent(accuracy["test_trained"])))
        facts[-2:-2] = [("Topology", result.get("topology", "as the method says")), *busiest_peers(rounds)]
    metric = result.get("metric", "accuracy")
    headline = result.get("metrics", {}).get(metric, accuracy)
    title_of_metric = METRICS[metric].title
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>
<h1>{escape(title)}</h1>
<p><span class="big">{format_metric(metric, headline["test"])}</span> mean test {title_of_metric} of the clients' own
models<br><span class="note">at the round with the best validation {title_of_metric},
{format_metric(metric, headline["validation"])}</span></p>
{"".join(f"<p><b>Note.</b> {escape(warning)}</p>" for warning in result.get("warnings", []))}
{metric_table(result)}
{verdict_table(verdicts)}
{"".join(score_curves(rounds, name) for name in dict.fromkeys((*result.get("metrics", {}), "accuracy")))}
{link_networks(rounds, [row["client"] for row in result["per_client"]], drawn)}
<h2>Facts</h2>
{html_table((), facts)}
{agreement_table(result["communication"].get("before_training", {}))}
<h2>Clients</h2>
{client_table(result)}
{method_details(rounds)}
<p class="note">Made by Graft {escape(result["graft"])}.</p>
</html>
"""


def metric_table(result: dict[str, Any]) -> str:
    """Returns a table of the metrics that were asked for, a row a metric; empty where there is the accuracy alone."""
    columns = {"validation": "validation", "test": "test", "test_pooled": "test, all nodes together"}
    columns |= {"test_global": "test, global model", "test_trained": "test, before mixing"}
    table = {name: scores for name, scores in result.get("metrics", {}).items() if scores}
    present = [column for column in columns if any(column in scores for scores in table.values())]
    rows = [
        (METRICS[name].title, *(format_metric(name, scores.get(column)) for column in present))
        for name, scores in table.items()
    ]
    return f"<h2>Metrics</h2>{html_table(('', *(columns[name] for name in present)), rows)}" if rows else ""


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Returns whether joining helps each client, and what it gives to the others; empty where that was not asked."""
    if not verdicts:
        return ""
    metric = verdicts[0].metric
    head = ("client", "alone", "in the federation", "difference", "95 % interval", "verdict", "gives the others")
    rows = [
        (
            verdict.client,
            *(format_metric(metric, score) for score in (verdict.alone, verdict.federated)),
            format_difference(metric, verdict.difference),
            " to ".join(format_difference(metric, end) for end in verdict.interval),
            verdict.verdict,
            format_difference(metric, verdict.contribution),
        )
        for verdict in verdicts
    ]
    return f"""<h2>Does joining help?</h2>{html_table(head, rows)}
<p class="note">{METRICS[metric].title} on each client's own test nodes; positive differences are improvements. The
interval is by bootstrap over the test nodes. What a client gives the others is how much better they are with it than
without, on average.</p>"""


def agreement_table(sent: dict[str, Any]) -> str:
    """Returns what clients told each other before the first round, field by field; empty where that was nothing."""
    rows = [
        (name, readable_bytes(field["up_bytes"]), readable_bytes(field["down_bytes"]), field["reveals"])
        for name, field in sent.items()
    ]
    head = ("field", "sent up", "sent down", "what it reveals")
    return f"<h2>What clients told before training</h2>{html_table(head, rows)}" if rows else ""


def client_table(result: dict[str, Any]) -> str:
    """Returns a table of the clients with their metrics, the accuracy last."""
    metrics = [name for name in result.get("metrics", {}) if name != "accuracy"]
    rows = [
        (
            *(row[name] for name in ("client", "model", "nodes", "edges")),
            *(format_metric(name, row["metrics"][name]["test"]) for name in metrics),
            percent(row["validation"]),
            percent(row["test"]),
        )
        for row in result["per_client"]
    ]
    accuracies = ("validation", "test") if not metrics else ("validation accuracy", "test accuracy")
    return html_table(
        ("client", "model", "nodes", "edges", *(f"test {METRICS[name].title}" for name in metrics), *accuracies), rows
    )


def best_round_of_each_client(rounds: Sequence[dict[str, Any]]) -> float | None:
    """Mean test accuracy if every client stopped at its own best validation round, and not at a common one."""
    evaluated = [record["per_client"] for record in rounds if "per_client" in record]
    accuracies = []
    for client in range(len(evaluated[0]["test"]) if evaluated else 0):
        scored = [record for record in evaluated if record["validation"][client] is not None]
        best = max(scored, key=lambda record: record["validation"][client], default=None)
        if best is not None and best["test"][client] is not None:
            accuracies.append(best["test"][client])
    return mean(accuracies) if accuracies else None


def html_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{top}</tr>' if head else ''}{body}</table>"


def score_curves(rounds: Sequence[dict[str, Any]], metric: str, width: int = 720, height: int = 280) -> str:
    """Returns a heading and a metric against rounds as SVG."""
    evaluated = [(r["round"], r.get("metrics", {}).get(metric, r)) for r in rounds if "per_client" in r]
    series = {
        name: [(number, scores[name]) for number, scores in evaluated if scores.get(name) is not None]
        for name in CURVES
    }
    in_percent = METRICS[metric].percent
    highest = 1.0 if in_percent else max((value for points in series.values() for _, value in points), default=1.0)
    last = max((point[0] for points in series.values() for point in points), default=1)
    left, bottom = 40, height - 40
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - share * (bottom - 20)
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#e3e8ee"/>')
        mark = f"{100 * share:.0f}" if in_percent else f"{highest * share:.2g}"
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{mark}</text>')
    parts.append(f'<text x="{left}" y="{bottom + 16}">round 1</text>')
    parts.append(f'<text x="{width - 10}" y="{bottom + 16}" text-anchor="end">{last}</text>')
    for index, (name, (label, colour)) in enumerate(item for item in CURVES.items() if series[item[0]]):
        scale = (width - 10 - left) / max(last - 1, 1)
        points = " ".join(
            f"{left + (x - 1) * scale:.1f},{bottom - y / (highest or 1) * (bottom - 20):.1f}" for x, y in series[name]
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        x = left + 200 * index
        parts.append(f'<line x1="{x}" x2="{x + 18}" y1="{height - 6}" y2="{height - 6}" stroke="{colour}"/>')
        parts.append(f'<text x="{x + 24}" y="{height - 2}">{label}</text>')
    title = METRICS[metric].title
    heading = f"{title[:1].upper()}{title[1:]} over rounds"
    figure = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{heading}">{"".join(parts)}</svg>'
    return f"<h2>{heading}</h2>\n{figure}\n"


def method_details(rounds: Sequence[dict[str, Any]]) -> str:
    """Returns a table of what the method recorded in its rounds, a row a quantity."""
    details: dict[str, list[float]] = defaultdict(list)
    for record in rounds:
        for name, value in record.get("details", {}).items():
            if numbers := list(finite_numbers(value)):
                details[name].append(mean(numbers))
    if not details:
        return ""
    rows = []
    for name, values in details.items():
        formatted = readable_bytes if name.endswith("_bytes") else "{:.4g}".format
        rows.append((name.replace("_", " "), *(formatted(value) for value in (values[0], values[-1], mean(values)))))
    return f"""<h2>Noted by the method</h2>
{html_table(("in a round", "first", "last", "mean"), rows)}
<p class="note">Where there is a number for each client, the mean over clients.</p>"""


def finite_numbers(value: Any) -> Iterator[float]:
    """Returns all finite numbers in a recorded value, at any depth."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from finite_numbers(part)
    elif isinstance(value, int | float) and math.isfinite(value):
        yield float(value)


def busiest_peers(rounds: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns the most that one peer sent and received in a round, as facts of the page."""
    verbs = {"busiest_sender_bytes": "sent", "busiest_receiver_bytes": "received"}
    most = {field: max((record["details"].get(field, 0) for record in rounds), default=0) for field in verbs}
    return [(f"Most that one peer {verb} in a round", readable_bytes(most[field])) for field, verb in verbs.items()]


def percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"

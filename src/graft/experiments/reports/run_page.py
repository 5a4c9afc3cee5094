"""The page of one run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from graft.experiments.comparison.comparison import data_label
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.reports.charts import Mark, Point, curves
from graft.experiments.reports.client_sections import client_blocks, metric_cell, said_of_joining
from graft.experiments.reports.data_sections import agreement_table, partition_blocks, read_card, read_classes
from graft.experiments.reports.method_sections import own_numbers
from graft.experiments.reports.pages import Block, Facts, Figure, Figures, Page, Section, Table, Text
from graft.experiments.reports.record_sections import run_record
from graft.experiments.reports.series import (
    axis_title,
    best_mark,
    loss_curve,
    megabytes_sent,
    points_of,
    score_curve,
    thinned,
)
from graft.experiments.reports.summary_table import Cell, readable_bytes, total_bytes
from graft.experiments.verdicts import Verdict
from graft.federation.metric_names import METRICS, format_metric

CURVES = {
    "test": "own model, test",
    "validation": "own model, validation",
    "test_global": "global model, test",
    "test_trained": "after local training, before mixing, test",
}
SCORES = {
    "validation": "validation",
    "test": "test",
    "test_node_weighted": "test, weighted by nodes",
    "test_pooled": "test, all nodes together",
    "test_trained": "test, after local training",
    "test_served": "test, as handed out",
}
WAYS = {"up": "to the server", "down": "to clients", "peer": "between peers"}


def run_page(run: FinishedRun, verdicts: Sequence[Verdict] = (), drawn: Sequence[int] | None = None) -> Page:
    """Returns the page of a run; `drawn` are the rounds whose links it shows."""
    summary, classes = run.summary, read_classes(run.path)
    clients = f"{summary['clients']:,} client{'s' if summary['clients'] != 1 else ''}"
    sections = [
        Section("Scores at the best round", [score_table(run), Facts(score_facts(run))], "Scores"),
        Section("Over the rounds", curve_blocks(run), "Curves"),
        Section("Client by client", client_blocks(run, verdicts, classes), "Clients"),
        Section("What the method shows of itself", own_numbers(run, drawn), "Method"),
        Section("The data of the clients", partition_blocks(read_card(run.path), classes), "Data"),
        Section("What was sent", traffic_blocks(run), "Traffic"),
        Section("Time and memory", cost_blocks(run), "Time"),
        Section("Settings, and how to repeat it", run_record(run), "Settings"),
    ]
    return Page(
        title=f"{summary['method']} on {summary['dataset']}",
        subtitle=f"{clients}, {summary['partition']}, seed {summary['seed']}",
        verdict=[*said_of_run(run), *said_of_joining(verdicts)],
        warnings=summary.get("warnings", []),
        sections=sections,
        made_by=f"Graft {summary['graft']}",
    )


def said_of_run(run: FinishedRun) -> list[str]:
    """Returns what came out, in a sentence, and what it cannot tell."""
    summary, metric = run.summary, run.metric
    title = METRICS[metric].title
    test, validation = run.score(metric, "test"), run.score(metric, "validation")
    if test is None:
        return ["No round of this run was scored on test nodes, so nothing can be said of how good its models are."]
    sentence = (
        f"{summary['method']} reaches {format_metric(metric, test)} mean test {title} of the clients' own models on "
        f"{data_label(run.experiment)}"
    )
    shared = run.score(metric, "test_global")
    sentence += f", and {format_metric(metric, shared)} with the global model." if shared is not None else "."
    if validation is None:
        where = "There are no validation nodes to pick a round by, so it is the last one that was scored"
    else:
        where = (
            f"At round {summary['best_round']} of {summary['rounds']}, the one with the best validation {title} "
            f"({format_metric(metric, validation)})"
        )
    return [sentence, f"{where}. One seed: how much another one would change is not known."]


def score_table(run: FinishedRun) -> Table:
    """Returns the metrics at the best round, a row a metric."""
    metrics = list(dict.fromkeys((*run.summary.get("metrics", {}), "accuracy")))
    scores = {metric: {name: run.score(metric, name) for name in SCORES} for metric in metrics}
    scores["accuracy"] |= {name: run.summary["accuracy"].get(name) for name in SCORES if name != "test_pooled"}
    present = [name for name in SCORES if any(scores[metric][name] is not None for metric in metrics)]
    rows = [
        [Cell(METRICS[metric].title), *(metric_cell(metric, scores[metric][name]) for name in present)]
        for metric in metrics
    ]
    return Table(("", *(SCORES[name] for name in present)), rows)


def score_facts(run: FinishedRun) -> list[tuple[str, str]]:
    own_best = best_round_of_each_client(run.rounds)
    facts = [("Best round", f"{run.summary['best_round']} of {run.summary['rounds']}")]
    if own_best is not None:
        facts.append(("Test accuracy, each client at its own best round", format_metric("accuracy", own_best)))
    return facts


def best_round_of_each_client(rounds: Sequence[dict[str, Any]]) -> float | None:
    """Mean test accuracy if every client stopped at its own best validation round, and not at a common one; None where
    rounds score some clients only."""
    evaluated = [record["per_client"] for record in rounds if "per_client" in record and "scored" not in record]
    accuracies = []
    for client in range(len(evaluated[0]["test"]) if evaluated else 0):
        seen = [record for record in evaluated if None not in (record["validation"][client], record["test"][client])]
        if seen:
            accuracies.append(max(seen, key=lambda record: record["validation"][client])["test"][client])
    return mean(accuracies) if accuracies else None


def curve_blocks(run: FinishedRun) -> list[Block]:
    """Returns the metrics and the training loss over rounds."""
    figures = []
    for metric in dict.fromkeys((*run.summary.get("metrics", {}), "accuracy")):
        lines = {label: score_curve(run, metric, name) for name, label in CURVES.items()}
        best = run.summary["best_round"]
        marks = best_mark(CURVES["test"], run, metric, lines[CURVES["test"]])
        series = {label: points_of(line, [best]) for label, line in lines.items()}
        if any(series.values()):
            spec = curves(series, "round", axis_title(metric, "").strip(), marks)
            title = METRICS[metric].title
            figures.append(Figure(f"{title[:1].upper()}{title[1:]} over rounds", spec))
    if losses := points_of(loss_curve(run)):
        figures.append(Figure("Training loss", curves({"training loss": losses}, "round", "mean loss of a round")))
    if not figures:
        return [Text("No round was scored, and no loss is on record.", "note")]
    notes = "The dot marks the best round, by validation nodes. Click on a name to hide its curve."
    return [Figures(figures), Text(notes, "note")]


def traffic_blocks(run: FinishedRun) -> list[Block]:
    """Returns what was sent, a round and in all, and what a megabyte bought."""
    sent = run.summary["communication"]
    total, test = total_bytes(run.summary), run.score(run.metric, "test")
    facts = [(f"Sent {words}", readable_bytes(sent[f"{way}_bytes"])) for way, words in WAYS.items()]
    facts.append(("A round, on average", readable_bytes(mean_bytes(run))))
    by_round = megabytes_sent(run)
    best = by_round.get(run.summary["best_round"])
    if best:
        facts.append(("Up to the best round", readable_bytes(1e6 * best)))
    if best and test is not None and METRICS[run.metric].percent:
        facts.append((f"{METRICS[run.metric].title} per megabyte", f"{100 * test / best:.3g} points"))
    facts += busiest_peers(run.rounds)
    if run.experiment.get("topology") or sent["peer_bytes"]:
        facts.append(("Topology", run.experiment.get("topology") or "as the method says"))
    blocks: list[Block] = [Facts(facts)]
    if not total:
        return [Text("Nothing was sent."), *agreement_table(sent.get("before_training", {}))]
    figures = [figure for figure in (bytes_figure(run), score_by_megabytes(run, by_round)) if figure]
    return [*blocks, *([Figures(figures)] if figures else []), *agreement_table(sent.get("before_training", {}))]


def mean_bytes(run: FinishedRun) -> float:
    counts = [sum(record[f"{way}_bytes"] for way in WAYS) for record in run.rounds]
    return mean(counts) if counts else 0.0


def bytes_figure(run: FinishedRun) -> Figure | None:
    """Returns the megabytes of each round, every way; None where all rounds are alike, as facts say it then."""
    ways = {
        words: {record["round"]: record[f"{way}_bytes"] / 1e6 for record in run.rounds} for way, words in WAYS.items()
    }
    used = {words: counts for words, counts in ways.items() if any(counts.values())}
    if all(max(counts.values()) < 1.01 * min(counts.values()) for counts in used.values()):
        return None
    series = {words: points_of(counts) for words, counts in used.items()}
    return Figure("Sent in a round", curves(series, "round", "MB"))


def score_by_megabytes(run: FinishedRun, by_round: dict[int, float]) -> Figure | None:
    """Returns the test score against all that was sent so far."""
    scores = score_curve(run, run.metric)
    if len(scores) < 2:
        return None
    points = [Point(by_round[number], scores[number]) for number in thinned(list(scores), [run.summary["best_round"]])]
    label = "own model, test"
    marks = [
        Mark(label, by_round[int(mark.x)], mark.y, mark.words) for mark in best_mark(label, run, run.metric, scores)
    ]
    spec = curves({label: points}, "MB sent so far", axis_title(run.metric), marks, whole=False)
    return Figure(f"What a megabyte buys: test {METRICS[run.metric].title}", spec)


def busiest_peers(rounds: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Returns the most that one peer sent and received in a round, as facts; none where there are no peers."""
    verbs = {"busiest_sender_bytes": "sent", "busiest_receiver_bytes": "received"}
    most = {
        verb: max((record.get("details", {}).get(field, 0) for record in rounds), default=0)
        for field, verb in verbs.items()
    }
    return [(f"Most that one peer {verb} in a round", readable_bytes(count)) for verb, count in most.items() if count]


def cost_blocks(run: FinishedRun) -> list[Block]:
    """Returns how long it took, on what."""
    seconds, summary = run.summary["seconds"], run.summary
    facts = [
        ("In all", f"{seconds['total']:.1f} s"),
        ("Before the first round", f"{seconds['setup']:.1f} s"),
        ("A round", f"{1000 * seconds['per_round']:.1f} ms"),
        ("Peak memory", readable_bytes(summary["peak_memory_bytes"])),
        ("Device", str(summary["device"])),
        ("Threads", str(summary["threads"])),
    ]
    times = {record["round"]: 1000 * record["seconds"] for record in run.rounds if "seconds" in record}
    blocks: list[Block] = [Facts(facts)]
    if len(times) > 1:
        spec = curves({"a round": points_of(times)}, "round", "ms", height=170)
        blocks.append(Figure("Time of each round", spec, "Evaluation included."))
    return blocks

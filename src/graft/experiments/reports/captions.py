"""What stands below the tables of a comparison: plain text, with every mark explained."""

from __future__ import annotations

from graft.experiments.comparison.comparison import Comparison, method_label
from graft.experiments.comparison.conclusion import caveats, listed, most_seeds, ranking_of, tests_used
from graft.experiments.comparison.differences import compare_with, competitors, find_row, is_reference
from graft.experiments.comparison.statistics import ALPHA
from graft.federation.metric_names import METRICS
from graft.methods import REFERENCES

BETTER, WORSE = "↑", "↓"


def scores_caption(comparison: Comparison, baseline: str | None = None) -> str:
    """Returns what the table of scores shows, and what bold, arrows, ranks and the last rows mean."""
    sentences = [what_is_shown(comparison), bold_means(comparison)]
    if baseline is not None and most_seeds(comparison) > 1:
        sentences.append(
            f"{BETTER} and {WORSE}: significantly better and worse than {find_row(comparison, baseline)} (pairs of the "
            f"same seed and partition, Holm-corrected over all rows and columns, p < {ALPHA})."
        )
    return " ".join(
        filter(None, [*sentences, rank_means(comparison), references_mean(comparison), *caveats(comparison)])
    )


def what_is_shown(comparison: Comparison) -> str:
    """Returns the metric with its direction, and over what it is averaged."""
    metric = METRICS[comparison.metric]
    title = metric.title[0].upper() + metric.title[1:]
    unit = " in percent" if metric.percent else ""
    seeds = most_seeds(comparison)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if any(0 < len(comparison.values(row, column)) < seeds for row, column in comparison.cells):
        spread += ", or as many as the brackets say"
    direction = "higher" if metric.higher else "lower"
    return (
        f"{title}{unit} on test nodes, {direction} is better: mean over clients, at the round with the best validation "
        f"value; {spread}."
    )


def bold_means(comparison: Comparison) -> str:
    """Returns what is in bold; without tests, that it proves nothing."""
    if most_seeds(comparison) < 2:
        return "Bold: the best of a column, by one seed, which proves nothing."
    return (
        "Bold: the best mean of a column, and every row that a paired test over seeds cannot tell from it (two-sided, "
        f"Holm-corrected over the rows of the column, p ≥ {ALPHA})."
    )


def rank_means(comparison: Comparison) -> str:
    """Returns what ranks are, and how far they must be apart; empty where there are none."""
    ranking = ranking_of(comparison)
    if ranking is None:
        return ""
    tested = ranking.friedman
    friedman = "" if tested is None else f"Friedman test {spell_p(tested.corrected_p)}; "
    return (
        f"Rank: average over the {ranking.columns} columns, 1 is best ({friedman}ranks closer than "
        f"{ranking.critical_difference:.2f} cannot be told apart, Nemenyi)."
    )


def references_mean(comparison: Comparison) -> str:
    """Returns why some rows do not compete; empty where all do."""
    rows = [row for row in comparison.rows if is_reference(comparison, row)]
    methods = {
        method_label(run.experiment)
        for (row, _), cell in comparison.cells.items()
        if row in rows
        for run in cell.values()
    }
    reasons = [f"{name} ({REFERENCES[name]})" for name in REFERENCES if name in methods]
    return f"Below the line, without competing: {listed(reasons)}." if reasons and competitors(comparison) else ""


def differences_caption(comparison: Comparison, baseline: str) -> str:
    """Returns what the table of paired differences shows."""
    baseline = find_row(comparison, baseline)
    metric = METRICS[comparison.metric]
    unit = "points of percent" if metric.percent else f"the units of {metric.title}"
    differences = compare_with(comparison, baseline)
    tests = tests_used(differences)
    several = len(comparison.columns) > 1
    sentences = [
        f"Improvement of {metric.title} over {baseline} in {unit} (positive is better), mean over pairs of runs with "
        "the same data, seed and partition, and its 95 % interval by the t distribution.",
        f"p: {' or '.join(tests)}, two-sided; corrected: by Holm over all rows and columns."
        if tests
        else "No pair can be tested: there is one seed.",
        "Over all columns: means over columns, seed by seed, corrected over the rows." if several else "",
        f"Bold: corrected p < {ALPHA}." if tests else "",
        "W/T/L: pairs won, tied and lost.",
    ]
    return " ".join(filter(None, sentences))


def cost_caption(comparison: Comparison) -> str:
    """Returns what the table of costs shows, and on which machines it was measured."""
    summaries = [run.summary for run in comparison.runs]
    devices = sorted({str(summary.get("device", "an unknown device")) for summary in summaries})
    threads = sorted({summary["threads"] for summary in summaries if summary.get("threads")})
    on_threads = f" with {', '.join(map(str, threads))} thread{'' if threads == [1] else 's'}" if threads else ""
    return (
        "What runs cost, mean over seeds. Megabytes: all messages of all rounds, to and from the server and between "
        "peers, and what was told before training. Seconds: the whole run with set-up and evaluation; ms/round: rounds "
        f"alone. Times are comparable only if the machine was equally busy ({', '.join(devices)}{on_threads})."
    )


def figure_captions(comparison: Comparison, baseline: str | None = None) -> dict[str, str]:
    """Returns what each figure shows, by its name."""
    title, ranking = METRICS[comparison.metric].title, ranking_of(comparison)
    captions = {
        "scores": f"Test {title}: mean and its 95 % interval (t distribution) over seeds, which are the thin strokes. "
        "Filled: the best mean and those that cannot be told from it. Diamonds: references, which do not compete.",
        "curves": f"Test {title} as the rounds go by: mean and standard deviation over seeds. The mark is the median "
        "of the rounds that validation picked.",
        "communication": f"Test {title} against all that was sent until then; dotted lines are methods that send "
        "nothing, at their best round.",
    }
    if ranking is not None:
        captions["ranks"] = (
            f"Average ranks over {ranking.columns} columns, the best on the left. Rows below one bar cannot be told "
            f"apart (Nemenyi, critical difference {ranking.critical_difference:.2f}, p < {ALPHA})."
        )
    if baseline is not None:
        captions["gains"] = (
            f"What clients gain over {find_row(comparison, baseline)} on their own test nodes: a dot for each client "
            "and seed, their median, and the share of them that gain."
        )
    return captions


def spell_p(p: float) -> str:
    """Returns a p-value in words: its size, or that it is tiny."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"

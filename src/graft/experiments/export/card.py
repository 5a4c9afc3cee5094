"""The model card of an exported model: what it is, how good it was, how to use it and what training gave away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graft.data.preparation import Preparation
from graft.data.scaling import Scaling
from graft.federation.method import Method
from graft.federation.metric_names import METRICS, format_metric
from graft.federation.reveals import declared
from graft.files import printable

MOST_NAMED = 30  # clients, classes or features in a list

USE = """\
```python
import torch
from model import load  # in this folder; torch, torch_geometric and safetensors are all it needs

model = load()
with torch.no_grad():
    logits = model(x, edge_index)  # or with the weights of edges: model(x, edge_index, edge_weight)
probabilities = logits.softmax(1)
```"""


@dataclass(frozen=True)
class Described:
    """What a model card is about."""

    architecture: str  # of two models that predict together, both
    method: Method
    method_name: str
    client: str
    number: int  # of the client
    names: Sequence[str] | None  # of all clients
    kind: str  # own or global
    at: str  # best or last
    round: int
    preparation: Preparation
    class_names: Sequence[str]
    facts: Mapping[str, Any]  # what result.json says of the run
    scores: Mapping[str, Any]  # the record of the round
    baseline: Mapping[str, Any]  # what the client's model compares with: labels by class, training alone
    extra_file: str | None  # beside the weights, as model.onnx


def write_card(about: Described) -> str:
    """Returns the text of MODEL_CARD.md."""
    sections = (
        ("", summary_lines(about)),
        ("How good it was", score_lines(about)),
        ("What it takes", input_lines(about)),
        ("How to use it", use_lines(about)),
        ("Limits", limit_lines(about)),
        ("What left the clients in training", privacy_lines(about)),
    )
    whose = "of all clients" if about.kind == "global" else f"of client {plain(about.client)}"
    text = f"# {plain(about.architecture)} {whose}\n"
    for title, lines in sections:
        text += (f"\n## {title}\n" if title else "") + "\n" + "\n".join(lines) + "\n"
    return text


def summary_lines(about: Described) -> Iterator[str]:
    facts = about.facts
    model = "the model that all clients have in common" if about.kind == "global" else "the client's own model"
    when = "the best round on validation nodes" if about.at == "best" else "the last round"
    yield f"A classifier of nodes, trained by federated learning: {model}, as it was in {when}."
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    yield f"| architecture | {plain(about.architecture)} |"
    yield f"| method | {plain(about.method_name)} |"
    yield f"| data | {plain(facts.get('dataset', ''))}, partition {plain(facts.get('partition', ''))} |"
    yield f"| clients | {clients_of(about)} |"
    yield f"| round | {about.round} of {facts.get('rounds', '?')} |"
    yield f"| seed | {facts.get('seed', '?')} |"
    import torch_geometric  # slow to import, and no run needs it

    versions = f"Graft {about.facts.get('graft', '?')}, PyTorch {torch.__version__}, PyG {torch_geometric.__version__}"
    yield f"| versions | {versions} |"


def clients_of(about: Described) -> str:
    count = about.facts.get("clients", len(about.names or ()))
    return str(count) if about.names is None else f"{count}: {listed(about.names)}"


def score_lines(about: Described) -> Iterator[str]:
    """Yields the scores of this client's model, or of the global one over all clients, with what else is known."""
    record = about.scores
    if about.kind == "global":
        yield f"Mean over clients of the global model's accuracy on test nodes: {percent(record.get('test_global'))}."
        return
    if "per_client" not in record:
        yield "This round was not scored."
        return
    scored = record.get("scored")
    if scored is not None and about.number not in scored:
        yield "This client did not take part in that round, so it was not scored."
        return
    row = about.number if scored is None else scored.index(about.number)
    values = {kind: record["per_client"][kind][row] for kind in ("validation", "test")}
    yield "| on this client's nodes | validation | test |"
    yield "| --- | --- | --- |"
    yield f"| accuracy | {percent(values['validation'])} | {percent(values['test'])} |"
    for name, scores in record.get("metrics", {}).items():
        cells = (format_metric(name, scores["per_client"][kind][row]) for kind in ("validation", "test"))
        if name != "accuracy":
            yield f"| {METRICS[name].title} | {' | '.join(cells)} |"
    baselines = baseline_lines(about)
    if baselines:
        yield ""
        yield from baselines


def baseline_lines(about: Described) -> list[str]:
    """Returns what the scores compare with: the most frequent class and, where that was run, training alone."""
    row, lines = about.baseline, []
    labels = row.get("labels", [])
    if sum(labels):
        largest = max(range(len(labels)), key=labels.__getitem__)
        name, share = about.class_names[largest], labels[largest] / sum(labels)
        lines.append(f"* Most frequent class: {plain(name)}, {percent(share)} of the client's labelled nodes.")
    if row.get("alone") is not None and row.get("metric") in METRICS:
        alone, joined = (format_metric(row["metric"], row[name]) for name in ("alone", "federated"))
        title = METRICS[row["metric"]].title
        lines.append(f"* {title} on test nodes alone {alone}, in the federation {joined}: {plain(row['verdict'])}.")
    return lines


def input_lines(about: Described) -> Iterator[str]:
    preparation = about.preparation
    yield f"* `x`: float32 [nodes, {preparation.features}]{feature_words(preparation)}"
    yield (
        "* `edge_index`: int64 [2, edges], every edge in both directions, once, without self-loops: "
        "`torch_geometric.utils.to_undirected(remove_self_loops(edge_index)[0])`"
    )
    yield "* `edge_weight`: float32 [edges], above 0 and the same in both directions; leave it out where there are none"
    yield ""
    yield f"It gives logits of {len(about.class_names)} classes, in this order: {listed(about.class_names)}."


def feature_words(preparation: Preparation) -> str:
    scaling = preparation.scaling or Scaling("raw")
    words = {"raw": "", "row": ", rows scaled to sum 1", "l2": ", rows scaled to length 1"}
    fitted = words.get(scaling.features, ", scaled as preparation.json says")
    factor = "" if scaling.factor == 1 else f", multiplied by {scaling.factor!r}"
    columns = f": {listed(preparation.feature_names)}" if preparation.feature_names else ""
    return f"{fitted}{factor}{columns}"


def use_lines(about: Described) -> Iterator[str]:
    yield USE
    yield ""
    yield "With Graft, `graft predict RUN --client NAME --data NEW --out scores.csv` also reads and prepares files."
    if about.extra_file:
        yield ""
        yield f"`{about.extra_file}` is the same model with the inputs x, edge_index and edge_weight."


def limit_lines(about: Described) -> Iterator[str]:
    yield (
        "* It was trained on the data of the clients above and scored on nodes of the same graphs; on other data it "
        "may be worse, so look at some labelled nodes first."
    )
    yield "* Probabilities are the model's own, and not calibrated."
    if about.kind == "own":
        yield f"* It is the model of client {plain(about.client)}: for others it was not scored."


def privacy_lines(about: Described) -> Iterator[str]:
    yield (
        "The weights in this folder were made from private data and may tell something of them: treat them as these "
        "are treated. Beside them, this is what clients sent while the federation trained, as the method declares it:"
    )
    yield ""
    for name, told in about.facts.get("communication", {}).get("before_training", {}).items():
        yield f"* before training, `{plain(name)}`: {plain(told['reveals'])}"
    for name, reveals in sorted(declared(about.method).items()):
        yield f"* `{name}`: {plain(reveals)}"


def plain(text: object) -> str:
    """Returns text from outside in one line that is no markup."""
    return printable(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(plain, names[:MOST_NAMED])) + more


def percent(value: Any) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"

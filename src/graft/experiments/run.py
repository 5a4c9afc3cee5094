"""Run an experiment: build the federation, play the rounds, keep the record."""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import graft
from graft.data import cards, datasets, federation
from graft.data.federation import Federation
from graft.data.graphs import Graph
from graft.engines.capture import capture_stream
from graft.engines.in_process import InProcess
from graft.engines.loopback import Loopback
from graft.engines.memory import parse_memory
from graft.engines.threads import choose_threads, read_cpu_usage, use_threads
from graft.errors import InputError, RunError
from graft.experiments.experiment import (
    GIVEN,
    Experiment,
    add_plug,
    format_experiment,
    make_experiment,
    make_method,
    name_of,
    read_experiment,
    split_options,
)
from graft.experiments.records import Checkpoint, RunDirectory
from graft.federation.evaluation import KINDS, Best, Losses, accuracy, gather_losses
from graft.federation.exchange import Engine, Request, Server, Traffic
from graft.federation.method import Method
from graft.federation.peers import LinkRecord, PeerMethod, play_round
from graft.federation.setup import Setup
from graft.federation.topologies import Topology
from graft.files import write_text
from graft.methods import METHODS
from graft.models import Model, assign_models
from graft.tensors.randomness import seed_for
from graft.tensors.trees import Tree, flatten, map_tree, select_clients, strip_architectures

ENGINES: dict[str, Callable[[Setup], Engine]] = {"in_process": InProcess, "loopback": Loopback}

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Result:
    """What a run found out; `summary` is what result.json holds."""

    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    server: Tree  # state after the last round
    clients: dict[int, Tree]  # state after the last round, every client's own model among it
    finished: bool = True  # False when Ctrl-C ended the run before its time

    @property
    def accuracy(self) -> dict[str, Any]:
        return self.summary["accuracy"]  # type: ignore[no-any-return]


def run(
    method: str | Method = "fedgkc",
    dataset: Any = "digits",
    *,
    models: str | nn.Module | Model | Sequence[str | nn.Module | Model] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Result:
    """Run one experiment, described by the fields of `Experiment`; without `out` nothing is written.

    A dataset may be a name, a path or a PyG `Data`; a model a name or any `nn.Module`; a method a name or a `Method`.
    """
    values = {**method.experiment_defaults, **settings} if isinstance(method, Method) else dict(settings)
    values["method"] = method if isinstance(method, str) else name_of(method)
    values["dataset"] = str(dataset) if isinstance(dataset, str | Path) else GIVEN
    if models is not None:
        values["models"] = models if _all_names(models) else GIVEN
    given = Given(
        method=None if isinstance(method, str) else method,
        dataset=None if isinstance(dataset, str | Path) else dataset,
        models=None if models is None or _all_names(models) else models,
    )
    return run_experiment(make_experiment(values), out, overwrite=overwrite, progress=progress, given=given)


def resume(
    out: str | Path,
    *,
    method: Method | None = None,
    dataset: Any = None,
    models: Any = None,
    progress: Progress | None = None,
) -> Result:
    """Go on with a run from its last checkpoint; what was given as an object must be given again."""
    directory = RunDirectory(Path(out))
    if not directory.experiment.exists():
        raise InputError(f"{out} is not a run directory: it holds no experiment.toml.")
    experiment = make_experiment(read_experiment(directory.experiment))
    checkpoint = directory.load()
    given = Given(method, dataset, models)
    for name, value in (("dataset", dataset), ("models", models)):
        if getattr(experiment, name) == GIVEN and value is None:
            raise InputError(
                f"This run was given its {name} in Python: resume it there, graft.resume(..., {name}=...)."
            )
    return _play(experiment, directory, progress, given, checkpoint)


@dataclass(frozen=True)
class Given:
    """Objects that stand in for names."""

    method: Method | None = None
    dataset: Any = None
    models: Any = None
    federation: Federation | None = None  # built before, for several runs on the same data


def run_experiment(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    given: Given | None = None,
) -> Result:
    directory = None if out is None else RunDirectory(Path(out))
    return _play(experiment, directory, progress, given or Given(), None, overwrite)


def build_federation(experiment: Experiment, dataset: Any = None) -> Federation:
    """Load the data and share it out among the clients."""
    by, options = split_options(experiment.partition)
    return federation.build(
        datasets.load(experiment.dataset if dataset is None else dataset),
        experiment.clients,
        partition=by,
        split=experiment.split,
        features=experiment.features,
        seed=experiment.seed,
        perturbation=experiment.perturbation,
        **options,
    )


def build_setup(experiment: Experiment, method: Method, shared: Federation, models: Any = None) -> Setup:
    """What an engine needs: a graph and an architecture a client."""
    whole = shared.graph
    pooled = method.pooled
    graphs = graphs_of(shared, method)
    assigned = assign_models(
        method.architecture or (experiment.models if models is None else models),
        len(graphs),
        whole.features,
        whole.classes,
        width=experiment.width,
        dropout=experiment.dropout,
        head=experiment.head,
    )
    if method.one_model and len(set(assigned)) > 1:
        names = ", ".join(dict.fromkeys(model.name for model in assigned))
        raise InputError(f"Method '{name_of(method)}' needs one architecture for all clients, not {names}.")
    check_batches(experiment.batches, method, graphs)
    return Setup(
        method=method,
        name=name_of(method),
        graphs=graphs,
        models=assigned,
        training=experiment.training,
        width=experiment.width,
        dropout=experiment.dropout,
        seed=experiment.seed,
        device=experiment.torch_device(),
        participation=1.0 if pooled else experiment.participation,
        groups=shared.membership if pooled else None,
        clean=None if shared.clean is None else graphs_of(shared.clean, method),
        topology=make_topology(experiment, method, len(graphs)),
        memory=parse_memory(experiment.memory),
    )


def check_batches(batches: int, method: Method, graphs: list[Graph]) -> None:
    """Refuse batches that a method cannot train in, or that would leave a client with an empty one."""
    if batches > 1 and not method.supports_batches:
        raise InputError(f"Method '{name_of(method)}' trains on whole graphs only: batches must be 1, not {batches}.")
    least = min(range(len(graphs)), key=lambda client: graphs[client].nodes)
    if batches > graphs[least].nodes:
        raise InputError(f"batches is {batches}, but client {least} has only {graphs[least].nodes} nodes.")


def graphs_of(shared: Federation, method: Method) -> list[Graph]:
    """A graph a client, or all of them as one."""
    return [shared.pooled(getattr(method, "edges", "all"))] if method.pooled else shared.clients


def make_topology(experiment: Experiment, method: Method, peers: int) -> Topology | None:
    """The topology that was asked for; without one a method has its own."""
    if not experiment.topology:
        return None
    if not isinstance(method, PeerMethod):
        able = ", ".join(sorted(name for name, kind in METHODS.items() if issubclass(kind, PeerMethod)))
        raise InputError(
            f"Method '{name_of(method)}' sends nothing between peers, so it takes no topology; these do: {able}."
        )
    name, options = split_options(experiment.topology)
    topology = Topology(name, options)
    topology.check(peers, experiment.rounds)
    return topology


def _play(
    experiment: Experiment,
    directory: RunDirectory | None,
    progress: Progress | None,
    given: Given,
    checkpoint: Checkpoint | None,
    overwrite: bool = False,
) -> Result:
    begun, before = time.perf_counter(), read_cpu_usage()
    if given.method is None:
        method = make_method(experiment.method, experiment.settings, experiment.plug)
    else:
        method = add_plug(given.method, experiment.plug, experiment.settings) if experiment.plug else given.method
    models = method.architecture or experiment.models
    experiment = replace(experiment, settings=asdict(method), models=models)
    shared = given.federation or build_federation(experiment, given.dataset)
    setup = build_setup(experiment, method, shared, given.models)
    if checkpoint is not None and checkpoint.facts["partition"] != shared.hash:
        raise InputError(
            "The data or its partition is not what this run began with: the partition's hash is "
            f"{shared.hash[:16]}, the checkpoint's {checkpoint.facts['partition'][:16]}."
        )
    if directory is not None and checkpoint is None:
        directory.create(overwrite)
        write_text(directory.experiment, format_experiment(experiment))
        cards.save(shared.card, shared.membership, directory.path / "partition.json")
    on_cpu = setup.device.type == "cpu"
    count = choose_threads(experiment.threads, before if on_cpu else None)
    with capture_stream(setup.device), products_in(experiment.precision), use_threads(count):
        engine = ENGINES[experiment.engine](setup)
        try:
            game = Game(experiment, setup, shared, engine, directory, progress)
            return game.play(begun, checkpoint)
        finally:
            engine.close()


@dataclass(frozen=True)
class Facts:
    """What is known of a round without looking at a tensor."""

    traffic: Traffic
    links: LinkRecord
    owners: list[tuple[str, int]]  # the step and the client of every loss
    details: dict[str, Any]  # what the method recorded


@dataclass
class Game:
    """The rounds of one run."""

    experiment: Experiment
    setup: Setup
    shared: Federation
    engine: Engine
    directory: RunDirectory | None
    progress: Progress | None
    traffic: Traffic = field(default_factory=Traffic)
    best: Best = field(default_factory=Best)
    best_shared: Best = field(default_factory=Best)
    best_trained: Best = field(default_factory=Best)  # of peers before they mix
    records: list[dict[str, Any]] = field(default_factory=list)
    own_graphs: InProcess | None = None  # where a model trained on pooled data is scored on each client's graph alone
    stale: int = 0  # evaluations since the best one
    spent: float = 0.0  # seconds in rounds, those before a resume included

    def play(self, begun: float, checkpoint: Checkpoint | None) -> Result:
        experiment, method = self.experiment, self.setup.method
        models = self.setup.models
        server = Server(
            model=models[0] if len(set(models)) == 1 else None,
            models=models,
            clients=len(models),
            seed=experiment.seed,
            device=self.setup.device,
            architecture=self.setup.architecture,
            rounds=experiment.rounds,
        )
        method.start_server(server)
        first = 1
        if checkpoint is not None:
            first = self.restore(checkpoint, server) + 1
        if method.pooled and getattr(method, "inference", "whole") == "own":
            each = [models[0]] * len(self.shared.clients)
            own = (self.shared.clean or self.shared).clients
            self.own_graphs = InProcess(replace(self.setup, graphs=own, models=each, groups=None, clean=None))
        counting: Engine = self.own_graphs or self.engine
        counted = counting.ask(Request("count", 0, counting.members()))
        self.totals, self.nodes = counted.totals.cpu(), counted.nodes.cpu()
        setup_seconds = time.perf_counter() - begun
        with stop_politely() as asked_to_stop:
            for number in range(first, experiment.rounds + 1):
                start = time.perf_counter()
                record = self.play_round(server, number)
                self.spent += time.perf_counter() - start
                finished = number == experiment.rounds or (experiment.patience and self.stale >= experiment.patience)
                stopping = asked_to_stop.is_set()
                due = experiment.checkpoint_every and number % experiment.checkpoint_every == 0
                if self.directory is not None:
                    self.directory.append_round(record)
                    if due or finished or stopping:
                        self.save(number, server)
                if self.progress is not None:
                    self.progress(record)
                if finished or stopping:
                    break
        result = Result(
            summary=self.summary(setup_seconds, time.perf_counter() - begun),
            rounds=self.records,
            server=server.state,
            clients={client: strip_architectures(state) for client, state in self.engine.state().items()},
            finished=bool(finished),
        )
        if self.directory is not None and result.finished:
            self.directory.write_result(result.summary)
        return result

    def play_round(self, server: Server, number: int) -> dict[str, Any]:
        start = time.perf_counter()
        members = participants(self.engine.members(), self.setup.participation, self.experiment.seed, number)
        scored = number % self.experiment.evaluate_every == 0 or number == self.experiment.rounds
        server.round = number
        # Peers' links may change from round to round, and a second engine cannot be recorded with the first.
        steady = not isinstance(self.setup.method, PeerMethod) and self.own_graphs is None
        found, facts = self.engine.play(
            server, scored if steady else None, lambda: self.on_device(server, number, members, scored)
        )
        losses = Losses(facts.owners, found.losses)
        bad = losses.first_bad()
        if bad is not None:
            step, client = bad
            raise RunError(
                f"The loss of client {client} is no longer a finite number in step '{step}' of {self.setup.name}, "
                f"round {number}{self.last_good()}; a smaller learning_rate may help."
            )
        self.traffic.add(facts.traffic)
        tensors = dict(flatten(found.get("details", {})))
        record: dict[str, Any] = {
            "round": number,
            "loss": losses.mean(),
            **{f"{way}_bytes": count for way, count in asdict(facts.traffic).items()},
            "participants": members,
            "details": {
                name: tensors[name].tolist() if name in tensors else value for name, value in facts.details.items()
            },
            **({"links": facts.links} if facts.links else {}),
        }
        if scored:
            record |= self.scores(found.correct, number)
        record["seconds"] = time.perf_counter() - start
        self.records.append(record)
        return record

    def on_device(self, server: Server, number: int, members: list[int], scored: bool) -> tuple[Tree, Facts]:
        """All of a round that works on tensors; nothing of it is read here."""
        traffic = Traffic()
        links = play_round(self.setup.method, server, self.engine, members, traffic, self.setup.topology)
        owners, losses = gather_losses(self.engine.losses(), self.setup.device)
        details, server.records = server.records, {}
        tensors = {name: value for name, value in details.items() if isinstance(value, torch.Tensor)}
        correct = self.count_correct(server, number) if scored else Tree()
        found = Tree(losses=losses, details=Tree(tensors), correct=correct)
        return found, Facts(traffic, links, owners, details)

    def count_correct(self, server: Server, number: int) -> Tree:
        """How many nodes of each client are right: by its own model, and by others that the method may have."""
        method, everyone = self.setup.method, self.engine.members()
        made = method.personalised(server)
        if self.own_graphs is not None:
            pooled = self.engine.state()[0].model
            own = self.own_graphs.ask(Request("score_shared", number, self.own_graphs.members(), pooled))
        elif made is not None:
            each = {client: select_clients(made, client) for client in everyone}
            own = self.engine.ask(Request("score_shared", number, everyone, each=each))
        else:
            own = self.engine.ask(Request("score", number, everyone))
        correct = Tree(own=own.correct)
        model = method.shared(server)
        if model is not None:
            correct["global"] = self.engine.ask(Request("score_shared", number, everyone, model)).correct
        elif self.experiment.score == "global":
            raise InputError(f"score is global, but method '{self.setup.name}' has no global model.")
        if isinstance(method, PeerMethod):
            correct.trained = self.engine.ask(Request("score_trained", number, everyone)).correct
        return correct

    def scores(self, correct: Tree, number: int) -> dict[str, Any]:
        """Accuracies of every client's own model, and of others that were scored, on that client's nodes."""
        own = accuracy(correct.own, self.totals, self.nodes)
        scores: dict[str, Any] = {kind: own.mean(kind) for kind in KINDS}
        scores |= {f"{kind}_node_weighted": own.node_weighted(kind) for kind in KINDS[1:]}
        scores["per_client"] = {kind: own.clients(kind) for kind in KINDS[1:]}
        better = self.best.see(number, scores["validation"])
        for what, best in (("global", self.best_shared), ("trained", self.best_trained)):
            if what in correct:
                other = accuracy(correct[what], self.totals, self.nodes)
                scores |= {f"{kind}_{what}": other.mean(kind) for kind in KINDS[1:]}
                scores[f"test_{what}_node_weighted"] = other.node_weighted("test")
                better_other = best.see(number, scores[f"validation_{what}"])
                better = better_other if what == self.experiment.score else better
        self.stale = 0 if better else self.stale + 1
        return scores

    def summary(self, setup_seconds: float, total: float) -> dict[str, Any]:
        """What result.json holds."""
        evaluated = {record["round"]: record for record in self.records if "test" in record}
        nothing = {"round": 0, "per_client": {kind: [None] * len(self.shared.clients) for kind in KINDS}}
        # Without validation nodes no round is the best; then the last one that was evaluated has to do.
        last = evaluated[max(evaluated)] if evaluated else nothing
        best = evaluated.get((self.best_shared if self.experiment.score == "global" else self.best).round, last)
        common = evaluated.get(self.best_shared.round, last)
        trained = evaluated.get(self.best_trained.round, last)
        unmixed = {name: trained[name] for name in ("test_trained", "test_trained_node_weighted") if name in trained}
        chosen = {"topology": self.experiment.topology} if self.experiment.topology else {}
        models = self.setup.models
        per_client = [
            {
                "client": client,
                "model": models[client % len(models)].name,
                "nodes": graph.nodes,
                "edges": graph.edge_count,
                "test": best["per_client"]["test"][client],
                "validation": best["per_client"]["validation"][client],
            }
            for client, graph in enumerate(self.shared.clients)
        ]
        return {
            "graft": graft.__version__,
            "method": self.setup.name,
            "dataset": self.shared.graph.name,
            "partition": self.shared.partition,
            **chosen,
            "clients": len(self.shared.clients),
            "seed": self.experiment.seed,
            "rounds": self.records[-1]["round"],
            "best_round": best["round"],
            "accuracy": {
                "test": best.get("test"),
                "validation": best.get("validation"),
                "test_node_weighted": best.get("test_node_weighted"),
                "test_global": common.get("test_global"),
                **unmixed,  # of peers, before they mix
            },
            "per_client": per_client,
            "communication": {f"{way}_bytes": count for way, count in asdict(self.traffic).items()},
            "seconds": {"total": total, "per_round": self.spent / len(self.records), "setup": setup_seconds},
            "peak_memory_bytes": peak_memory(self.setup.device),
            "device": self.setup.device.type,
            "threads": torch.get_num_threads(),
        }

    def save(self, number: int, server: Server) -> None:
        assert self.directory is not None
        facts = {
            "partition": self.shared.hash,
            "traffic": asdict(self.traffic),
            "best": asdict(self.best),
            "best_shared": asdict(self.best_shared),
            "best_trained": asdict(self.best_trained),
            "stale": self.stale,
            "spent": self.spent,
        }
        self.directory.save(Checkpoint(number, server.state, self.engine.state(), facts))

    def restore(self, checkpoint: Checkpoint, server: Server) -> int:
        """Put everything back as it was after the checkpoint's round."""
        assert self.directory is not None
        facts = checkpoint.facts
        server.state = map_tree(
            lambda leaf: leaf.to(self.setup.device) if isinstance(leaf, torch.Tensor) else leaf, checkpoint.server
        )
        self.engine.restore(checkpoint.clients)
        self.traffic = Traffic(**facts["traffic"])
        self.best, self.best_shared = Best(**facts["best"]), Best(**facts["best_shared"])
        self.best_trained = Best(**facts.get("best_trained", {}))
        self.stale, self.spent = facts["stale"], facts["spent"]
        self.records = self.directory.read_rounds(until=checkpoint.round)
        self.directory.rewrite_rounds(self.records)
        if checkpoint.round >= self.experiment.rounds:
            raise InputError(f"{self.directory.path} has played all its {self.experiment.rounds} rounds already.")
        return checkpoint.round

    def last_good(self) -> str:
        if self.directory is None or not (self.directory.path / "checkpoint").exists():
            return ""
        return f" (the checkpoint of round {self.directory.load().round} in {self.directory.path} is good)"


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Compute matrix products on a GPU with this precision."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def participants(members: list[int], share: float, seed: int, round: int) -> list[int]:
    """The clients of a round: all, or a fair draw of floor(share * clients), at least one, sorted."""
    if share == 1:
        return members
    count = max(1, int(share * len(members) + 1e-9))
    chosen = np.random.default_rng(seed_for(seed, round, "participants")).choice(len(members), count, replace=False)
    return sorted(members[position] for position in chosen)


@contextmanager
def stop_politely() -> Iterator[threading.Event]:
    """Ctrl-C lets the round finish and then stops; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def first(number: int, frame: Any) -> None:  # noqa: ARG001
        asked.set()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, first)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, previous)


def peak_memory(device: torch.device) -> int:
    """The most memory this process has held: on a GPU there, else in RAM."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _all_names(models: Any) -> bool:
    return isinstance(models, str) or (isinstance(models, list | tuple) and all(isinstance(m, str) for m in models))

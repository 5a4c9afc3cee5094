"""The typed description of an experiment: everything that is needed to repeat it. Imports neither PyTorch nor NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

from graft.data import DATASETS, OWN_GRAPHS, check_partition, parse_dataset, parse_graphs
from graft.engines.amounts import parse_memory
from graft.errors import InputError
from graft.experiments.make_method import check_settings
from graft.experiments.own_data import with_own_graphs
from graft.experiments.validation import validated
from graft.federation import check_topology
from graft.federation.average_names import parse_average
from graft.federation.metric_names import parse_metrics
from graft.federation.server_optimizer_names import NONE, suiting_defaults
from graft.fields import Search, check_fields
from graft.methods import METHODS, PLUGS
from graft.models import MODELS, list_models, parse_model
from graft.options import split_options
from graft.registry import Registry, UnknownName, parse_reference

if TYPE_CHECKING:
    import torch

    from graft.data.perturbations import Perturbation
    from graft.federation.method import Method
    from graft.training.optimizers import Training

GIVEN = "given-in-python"  # stands in experiment.toml for an object that no file can name
LONG = 10_000_000  # more clients, rounds, epochs or batches than this are a mistake
WIDEST = 65_536
MOST_THREADS = 1024
MOST_WORKERS = 65_536

# The first field of each group of settings, in the order of the fields.
GROUPS = {
    "method": "Method",
    "dataset": "Data",
    "models": "Models",
    "rounds": "Training",
    "weight_by": "Federation",
    "metric": "Evaluation",
    "device": "Engine",
}

Share = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True)
class Experiment:
    """One run; every field can be set in a file, by a flag or in Python."""

    method: Annotated[str, Doc("The federated method: a name, or your own as my_method.py:MyMethod.")] = "fedgkc"
    plug: Annotated[str, Doc("What is added to the method, as fedtad.")] = ""
    settings: Annotated[dict[str, Any], Doc("The method's own fields, and those of the plug.")] = field(
        default_factory=dict
    )
    dataset: Annotated[str, Doc("A name, a .npz file, a folder with nodes.csv and edges.csv, or my_data.py:load.")] = (
        "digits"
    )
    clients: Annotated[int, Ge(1), Le(LONG), Doc("How many clients share the graph.")] = 5
    partition: Annotated[str, Doc("louvain, metis, random, label-skew, or a file of client ids.")] = "louvain"
    split: Annotated[str, Doc("Train/validation/test percent within each client, as 20/40/40, or own.")] = "20/40/40"
    graphs: Annotated[
        list[str], Doc("Graphs as clients: folders or .npz files instead of a dataset, perhaps as name=path.")
    ] = field(default_factory=list)
    inductive: Annotated[bool, Doc("Test nodes and their edges are not in the graph that is trained on.")] = False
    features: Annotated[
        Literal["auto", "raw", "row", "l2", "standard"], Doc("raw, row, l2 or standard; auto: standard for tables.")
    ] = "auto"
    feature_norm: Annotated[
        float, Ge(0), Doc("Median length of rows of features, by one factor a client; 0: as they come.")
    ] = 4.0
    scaling: Annotated[
        Literal["local", "federated"], Doc("Means and categories of each client alone, or agreed on by an exchange.")
    ] = "local"
    label_sparsity: Annotated[Share, Doc("Share of the training nodes that lose their label.")] = 0.0
    label_noise: Annotated[Share, Doc("Share of the training labels that are made wrong.")] = 0.0
    edge_sparsity: Annotated[Share, Doc("Share of each client's edges that are taken away.")] = 0.0
    edge_noise: Annotated[Share, Doc("Share of each client's edges that are replaced by others.")] = 0.0
    feature_sparsity: Annotated[Share, Doc("Share of a node's features that are set to zero.")] = 0.0
    feature_noise: Annotated[float, Ge(0), Doc("Standard deviation of noise added to the features.")] = 0.0
    perturbed_clients: Annotated[str, Doc("Whose data these change: all, or as 0,3.")] = "all"
    evaluate_on: Annotated[
        Literal["clean", "perturbed"], Doc("Score on the data as they were: clean, or perturbed.")
    ] = "clean"
    models: Annotated[
        str | list[str], Doc("Models by name, or as my_model.py:Net; client k gets entry k modulo their number.")
    ] = "gcn"
    width: Annotated[int, Ge(1), Le(WIDEST), Doc("Width of the hidden layers.")] = 64
    dropout: Annotated[float, Ge(0), Lt(1), Search(0.0, 0.8), Doc("Dropout between layers.")] = 0.5
    head: Annotated[Literal["linear", "conv"], Doc("linear or conv.")] = "linear"
    initial_weights: Annotated[Literal["common", "own"], Doc("Own models start alike: common; apart: own.")] = "common"
    rounds: Annotated[int, Ge(1), Le(LONG), Doc("Rounds of the federation.")] = 100
    epochs: Annotated[int, Ge(1), Le(LONG), Search(1, 10, log=True), Doc("Local epochs a round.")] = 3
    least_epochs: Annotated[
        int, Ge(0), Le(LONG), Doc("Each client draws its epochs in every round, from so many on; 0: all take epochs.")
    ] = 0
    batches: Annotated[int, Ge(1), Le(LONG), Doc("Steps an epoch, each on a part of a client's nodes.")] = 1
    loss: Annotated[Literal["cross_entropy", "focal"], Doc("cross_entropy or focal, for rare classes.")] = (
        "cross_entropy"
    )
    focal_gamma: Annotated[float, Ge(0), Le(100), Doc("How much the focal loss looks away from what is easy.")] = 2.0
    class_weights: Annotated[
        Literal["none", "balanced"], Doc("balanced: every class of a client weighs the same in its loss.")
    ] = "none"
    optimizer: Annotated[
        Literal["adam", "sgd", "momentum"],
        Search(choices=("adam", "sgd", "momentum")),
        Doc("adam, sgd, or momentum: SGD that keeps 0.9 of its last step."),
    ] = "momentum"
    learning_rate: Annotated[float, Gt(0), Search(1e-3, 1.0, log=True), Doc("Step size of the local optimiser.")] = 0.1
    weight_decay: Annotated[float, Ge(0), Search(1e-6, 1e-2, log=True), Doc("L2 penalty of the local optimiser.")] = (
        5e-4
    )
    clip_norm: Annotated[float, Ge(0), Doc("Greatest norm of a client's gradient in a step; 0: any.")] = 1.0
    optimizer_state: Annotated[
        Literal["persistent", "reset"],
        Search(choices=("persistent", "reset")),
        Doc("Moments kept over rounds: persistent, or reset in each."),
    ] = "persistent"
    seed: Annotated[int, Ge(0), Le(2**63 - 1), Doc("Seed of partition, split, weights and training.")] = 0
    weight_by: Annotated[
        Literal["nodes", "train", "uniform"], Doc("A client's vote: nodes, train (training nodes) or uniform.")
    ] = "nodes"
    average: Annotated[
        str, Doc("What the server takes over clients: mean, or robust ones: median, trimmed:0.2, krum:1, multi_krum:1.")
    ] = "mean"
    server_optimizer: Annotated[
        Literal["none", "sgd", "momentum", "adam", "yogi", "adagrad"],
        Doc("How the server steps to the average: none takes it; sgd, momentum, adam, yogi or adagrad."),
    ] = "none"
    server_rate: Annotated[
        float, Gt(0), Search(1e-3, 1.0, log=True), Doc("Its step size; by default what suits the optimiser.")
    ] = 1.0
    server_momentum: Annotated[float, Ge(0), Lt(1), Search(0.0, 0.95), Doc("Share of its direction it keeps.")] = 0.9
    server_beta2: Annotated[float, Ge(0), Lt(1), Doc("Share of its mean square that it keeps: adam, yogi.")] = 0.99
    server_tau: Annotated[float, Gt(0), Search(1e-5, 1e-1, log=True), Doc("Added to the mean square's root.")] = 1e-3
    participation: Annotated[float, Gt(0), Le(1), Doc("Share of the clients in a round.")] = 1.0
    topology: Annotated[
        str,
        Doc("Who hears whom without a server: ring, random:k=3, ..., or a file of links; empty: as the method says."),
    ] = ""
    metric: Annotated[
        str,
        Doc("Of accuracy, balanced_accuracy, macro_f1, f1, auroc, auprc, log_loss, ece; the first picks the round."),
    ] = "accuracy"
    score: Annotated[Literal["personal", "global"], Doc("Models that pick the best round: personal or global.")] = (
        "personal"
    )
    judge_on: Annotated[
        Literal["validation", "training"], Doc("What methods judge models by: validation, or held out training nodes.")
    ] = "validation"
    evaluate_every: Annotated[int, Ge(1), Le(LONG), Doc("Rounds between evaluations.")] = 1
    evaluate_clients: Annotated[
        Literal["all", "participants"], Doc("Whose models are scored: all clients', or a round's participants'.")
    ] = "all"
    patience: Annotated[int, Ge(0), Le(LONG), Doc("Stop after so many evaluations without progress; 0 never.")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], Doc("auto, cpu or cuda.")] = "auto"
    engine: Annotated[
        Literal["in_process", "loopback", "ray"],
        Doc("in_process; loopback: a process a client, messages as bytes; ray: workers of a Ray cluster."),
    ] = "in_process"
    workers: Annotated[int, Ge(1), Le(MOST_WORKERS), Doc("Workers that the engine ray shares clients out over.")] = 2
    cpus_per_worker: Annotated[int, Ge(1), Le(MOST_THREADS), Doc("Cores, and threads, of a worker.")] = 1
    gpus_per_worker: Annotated[
        float, Ge(0), Le(1), Doc("GPU of a worker: 0, 1, or a share of one that several have together.")
    ] = 0.0
    address: Annotated[str, Doc("Ray cluster to join, as auto or ray://head:10001; empty starts one here.")] = ""
    max_failures: Annotated[
        int, Ge(0), Le(LONG), Doc("Times that workers may die without a checkpoint in between before a run stops.")
    ] = 3
    precision: Annotated[
        Literal["float32", "tf32"], Doc("Of matrix products on a GPU: float32, or tf32 with 10 bits of a fraction.")
    ] = "float32"
    threads: Annotated[
        int, Ge(0), Le(MOST_THREADS), Doc("On a CPU; 0 is one for every core that other programs leave alone.")
    ] = 0
    memory: Annotated[
        str, Doc("Memory that may be used, as 4GB; empty: three quarters of what is free on the device.")
    ] = ""
    checkpoint_every: Annotated[
        int, Ge(0), Le(LONG), Doc("Rounds between checkpoints; 0 writes none but the last.")
    ] = 10

    def __post_init__(self) -> None:
        check_fields(self)
        if self.perturbed_clients != "all":
            self.perturbation.client_ids(self.clients)
        if self.least_epochs > self.epochs:
            raise InputError(f"least_epochs is {self.least_epochs}, but a client takes at most {self.epochs} epochs.")
        parse_memory(self.memory)
        parse_metrics(self.metric)
        parse_average(self.average)

    @property
    def perturbation(self) -> Perturbation:
        from graft.data.perturbations import Perturbation

        return Perturbation(**{entry.name: getattr(self, entry.name) for entry in fields(Perturbation)})

    @property
    def label(self) -> str:
        """Returns the method and its plug, for people and paths."""
        method = METHODS.label(self.method)
        return f"{method}+{PLUGS.label(self.plug)}" if self.plug else method

    @property
    def model_names(self) -> list[str]:
        """Returns the models by name; client k gets entry k modulo their number."""
        return list_models(self.models) if isinstance(self.models, str) else self.models

    @property
    def data_label(self) -> str:
        """Returns the name of the data, for people and paths."""
        return "-".join(parse_graphs(self.graphs)) if self.graphs else Path(self.dataset).stem

    @property
    def training(self) -> Training:
        from graft.training.optimizers import Training

        own = {entry.name for entry in fields(self)}  # the rest of a training is for methods to set
        return Training(**{entry.name: getattr(self, entry.name) for entry in fields(Training) if entry.name in own})

    def torch_device(self) -> torch.device:
        import torch

        if self.engine == "ray":  # the server stays on the CPU; workers say where they are
            return torch.device("cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device is cuda, but PyTorch sees no GPU here; use cpu or auto.")
        usable = torch.cuda.is_available() and self.engine == "in_process"
        device = ("cuda" if usable else "cpu") if self.device == "auto" else self.device
        if self.precision == "tf32" and device == "cpu":
            raise InputError("precision is tf32, which only a GPU has; use float32.")
        return torch.device(device)


def fields_of_group(group: str) -> tuple[str, ...]:
    """Returns the names of the fields of a group."""
    names, starts = [entry.name for entry in fields(Experiment)], [*GROUPS, None]
    start = next(name for name in GROUPS if GROUPS[name] == group)
    end = starts[starts.index(start) + 1]
    return tuple(names[names.index(start) : None if end is None else names.index(end)])


DATA_FIELDS = (*fields_of_group("Data"), "seed")  # what the data of clients depend on
# What data may come with already, as shards do, with the defaults.
PREPARED = {
    **{name: getattr(Experiment, name) for name in fields_of_group("Data") if name not in ("dataset", "graphs")},
    "feature_norm": 0.0,
}


def data_settings(experiment: Experiment) -> str:
    """Returns all settings that decide about the data of clients, as a text: runs that share them share their data."""
    return repr([getattr(experiment, name) for name in DATA_FIELDS])


def make_experiment(values: Mapping[str, Any]) -> Experiment:
    """Checks values against the fields of an experiment and refuses what does not fit.

    What nobody says is as the method sets it, or suits the server's optimiser, or else the experiment's default. Files
    of your own are kept by their absolute paths.
    """
    try:
        method: type[Method] | None = METHODS[str(values.get("method", Experiment.method))]
    except UnknownName:  # of an object that is given in Python, or a mistake that `make_method` refuses
        method = None
    chosen = {**(method.experiment_defaults if method else {}), **values}
    return resolved(draft_experiment({**suiting_defaults(str(chosen.get("server_optimizer", NONE))), **chosen}))


def draft_experiment(values: Mapping[str, Any]) -> Experiment:
    """Returns the experiment of those values without what its method sets: good for checks, before PyTorch is
    imported."""
    return validated(Experiment, with_own_graphs(values, PREPARED), "an experiment")


def resolved(experiment: Experiment) -> Experiment:
    """Returns the experiment with data and every reference to a file of your own by absolute paths."""
    models, names = experiment.models, experiment.model_names
    if any(map(parse_reference, names)):
        models = [absolute(MODELS, name) for name in names]
    dataset = experiment.dataset
    own, colon, rest = dataset.partition(".py:")
    if dataset and dataset.partition(":")[0].lower() not in DATASETS:
        if Path(dataset).exists():
            dataset = str(Path(dataset).resolve())
        elif colon:
            dataset = f"{Path(own).expanduser().resolve()}.py:{rest}"
    return replace(
        experiment,
        method=absolute(METHODS, experiment.method),
        plug=absolute(PLUGS, experiment.plug),
        models=models,
        dataset=dataset,
        graphs=[f"{name}={path.resolve()}" for name, path in parse_graphs(experiment.graphs).items()],
    )


def own_files(experiment: Experiment) -> list[Path]:
    """Returns the files that the method, its plug, the models and the dataset of an experiment come from, if not from
    Graft."""
    parts = experiment.dataset.split(":")  # perhaps as my_data.py:load:size=3
    datasets = [":".join(parts[:count]) for count in range(2, len(parts) + 1)]
    names = [experiment.method, experiment.plug, *experiment.model_names, *datasets]
    references = filter(None, map(parse_reference, names))
    return [reference.file for reference in references if reference.is_file]


def absolute(table: Registry[Any], name: str) -> str:
    return table.resolved(name) if parse_reference(name) else name


def check_names(experiment: Experiment) -> None:
    """Refuses names that do not exist, and settings that a method does not have, before PyTorch is imported."""
    METHODS.check(experiment.method)
    if experiment.plug:
        PLUGS.check(experiment.plug)
    check_settings(experiment.method, experiment.settings, experiment.plug)
    if experiment.graphs:
        parse_graphs(experiment.graphs)
    elif experiment.dataset != GIVEN:
        parse_dataset(experiment.dataset)
    if experiment.partition != OWN_GRAPHS:
        check_partition(split_options(experiment.partition)[0])
    for name in experiment.model_names:
        if name != GIVEN:
            parse_model(name)
    if experiment.topology:
        check_topology(*split_options(experiment.topology))
    if experiment.split not in (Experiment.split, "own"):
        from graft.data.splits import parse

        parse(experiment.split)

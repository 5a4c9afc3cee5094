"""`graft shard`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from graft.cli.console import say
from graft.cli.options import with_data_options
from graft.cli.progress import phase_progress
from graft.experiments.experiment import PREPARED, check_names, draft_experiment, make_experiment


@with_data_options
def shard(
    *,
    out: Annotated[str, typer.Option(help="A folder, or a URL as s3://bucket/name, that all workers reach.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace earlier shards in that place.")] = False,
    **flags: Any,
) -> None:
    """Prepare the graphs of all clients and write them as shards, of which every worker reads its own clients only;
    their place is then a dataset, as in `graft run --dataset OUT`."""
    values = {name: value for name, value in flags.items() if value is not None}
    check_names(draft_experiment(values))
    with phase_progress("shard", "reading data") as tell:
        from graft.data.shards import check_place, write_shards
        from graft.data.stores import open_store
        from graft.engines.amounts import format_bytes
        from graft.experiments.build import build_federation
        from graft.experiments.combinations import check_data_settings

        experiment = make_experiment(values)
        check_place(open_store(out), overwrite)
        check_data_settings(experiment)
        federation = build_federation(experiment)
        settings = {name: getattr(experiment, name) for name in PREPARED}
        told = every_tenth(tell, len(federation.clients))
        graphs = write_shards(federation, out, settings=settings, overwrite=overwrite, told=told)
    files, nodes, edges = graphs.manifest.files, int(graphs.nodes().sum()), int(graphs.edges().sum())
    size = format_bytes(sum(file.size for file in files))
    say(f"{graphs.name}: {len(graphs):,} clients ({federation.partition}) with {nodes:,} nodes and {edges:,} edges.")
    say(f"Written to {graphs.store.url}: {len(files):,} file{'s' * (len(files) > 1)}, {size}, hash {graphs.hash[:16]}.")
    say(f"To train on it: graft run --dataset {out}")


def every_tenth(tell: Callable[[str], None], clients: int) -> Callable[[int], None]:
    """Returns what to tell how many clients are written, which says so about ten times."""
    said = 0

    def told(written: int) -> None:
        nonlocal said
        if written == clients or written - said >= clients / 10:
            said = written
            tell(f"{written:,} of {clients:,} clients written")

    return told

"""A method of your own, in a file of its own: Yin, Chen, Kannan and Bartlett: Byzantine-robust distributed learning:
towards optimal statistical rates. ICML 2018.

    graft run --method examples/own_method.py:TrimmedMean --set trim=0.3
    graft check-method examples/own_method.py:TrimmedMean
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar

from annotated_types import Ge, Lt

import graft
from graft import MODEL, Method, Tree, map_tree, step


@dataclass(frozen=True)
class TrimmedMean(Method):
    """Clients train copies of one model; of every weight the server takes the mean without the extremes."""

    one_model: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    reveals: ClassVar = {"train/model": MODEL}  # what leaves a client

    trim: Annotated[float, Ge(0), Lt(0.5)] = 0.2  # share of the clients that is left out at either end

    def start_server(self, server):
        server.state.model = server.initial()

    def round(self, server, clients):
        replies = clients.ask(self.train, server.state.model)
        left_out = int(self.trim * len(clients))
        kept = slice(left_out, len(clients) - left_out)
        server.state.model = map_tree(lambda leaf: leaf.sort(0).values[kept].mean(0), replies.model)

    @step
    def train(self, fleet, model):
        fleet.state.model = fleet.fit(model, lambda weights, batch: batch.label_loss(weights))
        return Tree(model=fleet.state.model)

    def shared(self, server):
        return server.state.model


def interrupt(record):
    if record["round"] == 6:
        signal.raise_signal(signal.SIGINT)  # Ctrl-C: the round that is under way is finished and kept


def main() -> None:
    method = f"{Path(__file__).resolve()}:TrimmedMean"  # as on the command line, so that `resume` finds it again
    setting = dict(clients=5, partition="random", split="5/20/75", rounds=12, seed=0)
    whole = graft.run(method, "digits", settings={"trim": 0.3}, **setting)
    print(whole)
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        stopped = graft.run(method, "digits", settings={"trim": 0.3}, out=run, callbacks=[interrupt], **setting)
        resumed = graft.resume(run)
    same = resumed.accuracy == whole.accuracy and len(resumed.rounds) == len(whole.rounds)
    print(f"stopped after round {stopped.rounds[-1]['round']} and resumed: {'the same' if same else 'another'} result")


if __name__ == "__main__":
    main()

"""Clients that train together in one fleet, and what they keep between steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graft.federation.fleet import Fleet
from graft.tensors.randomness import SeedBuffer
from graft.tensors.sparse import contiguous
from graft.tensors.trees import Owners, Tree, Weights, flatten, map_tree, set_path, unflatten

MakeZeros = Callable[[Sequence[int], torch.dtype], Tensor]


@dataclass(eq=False)
class ClientGroup:
    """A fleet as an engine keeps it: the frozen view, and the state that calls of steps change."""

    fleet: Fleet
    state: Tree = field(default_factory=Tree)
    _selected: tuple[list[int], Fleet] | None = None  # clients that were asked last are often asked again in a round

    @property
    def clients(self) -> list[int]:
        return self.fleet.clients

    def view(self, round: int = 0, step: str = "start", turn: int = 0, seeds: SeedBuffer | None = None) -> Fleet:
        """Returns the view that a step is called with."""
        return self.fleet.for_call(round, step, turn, state=self.state, seeds=seeds)

    def select(self, chosen: list[int]) -> Fleet:
        """Returns some of the clients, by position, as a fleet without state."""
        if len(chosen) == len(self.clients):
            return self.fleet
        if self._selected is None or self._selected[0] != chosen:
            self._selected = None  # or two of them would be held
            self._selected = chosen, self.fleet.select(chosen)
        return self._selected[1]

    def select_state(self, chosen: list[int]) -> Tree:
        """Returns the state of some clients: a copy, but for contiguous clients a view, which costs nothing.

        Nothing is left of an architecture that none of them has.
        """
        owners = self.fleet.owners
        rows = {path: owners.rows(path, chosen) for path, _ in flatten(self.state)}
        return unflatten(
            {
                path: leaf[row_index(rows[path], leaf.device)].to(self.fleet.device)
                for path, leaf in flatten(self.state)
                if rows[path]
            }
        )

    def write_back(self, chosen: list[int], before: Tree, after: Tree, zeros: MakeZeros) -> None:
        """Writes what a step made of the state of some clients, `before`, into the state of all of them.

        The first training of any client creates its optimiser's state; those of clients that have not trained yet have
        seen nothing: all `zeros`.
        """
        leaves = dict(flatten(self.state))
        uses = Counter(storage_of(leaf) for leaf in leaves.values())
        unchanged = dict(flatten(before))
        changed = {}
        for path, leaf in flatten(after):
            if storage_of(leaf) in uses and leaf is unchanged.get(path):  # or changed in place
                continue
            if path not in leaves:
                if not path.startswith("optimizer/"):
                    raise TypeError(f"state '{path}' appeared in a step; set every field in start_client")
                leaves[path] = zeros((len(self.fleet.owners(path)), *leaf.shape[1:]), leaf.dtype)
                set_path(self.state, path, leaves[path])
            elif uses[storage_of(leaves[path])] > 1:  # a step gave two fields one tensor
                leaves[path] = leaves[path].clone()
                set_path(self.state, path, leaves[path])
            # A view that moved to another field must be safe before anything is written.
            changed[path] = leaf.clone() if storage_of(leaf) in uses else leaf
        for path, leaf in changed.items():
            target = leaves[path]
            target[row_index(self.fleet.owners.rows(path, chosen), target.device)] = leaf.to(target.device)

    def states(self, state: Tree | None = None) -> dict[int, Tree]:
        """Returns the state of every client by itself, or that of a stacked copy."""
        stacked = self.state if state is None else state
        leaves = [(path, leaf.unbind(), self.fleet.owners(path)) for path, leaf in flatten(stacked)]
        return {
            client: unflatten(
                {path: rows[position - owners.start] for path, rows, owners in leaves if position in owners}
            )
            for position, client in enumerate(self.clients)
        }


def stack_states(states: list[Tree], owners: Owners) -> Tree:
    """Returns the states of clients as that of a fleet; one that never trained has no optimiser yet: zeros."""
    flat = [dict(flatten(state)) for state in states]
    examples = {path: leaf for state in flat for path, leaf in state.items()}

    def rows(path: str) -> list[Tensor]:
        return [flat[position].get(path, torch.zeros_like(examples[path])) for position in owners(path)]

    return unflatten({path: torch.stack(rows(path)) for path in examples})


def select_fields(state: Tree, fields: Collection[str] | None) -> Tree:
    """Returns the fields of a state that are named; where none are, all but the optimisers."""
    chosen = state.keys() - {"optimizer"} if fields is None else fields
    return Tree({name: branch for name, branch in state.items() if name in chosen})


def detach_from_state(reply: Weights, state: Tree) -> Tree:
    """Returns a reply that does not change when the clients' state is written into."""
    state_storages = {storage_of(leaf) for _, leaf in flatten(state)}
    return map_tree(lambda leaf: leaf.clone() if storage_of(leaf) in state_storages else leaf, reply)


def row_index(chosen: list[int], device: torch.device) -> slice | Tensor:
    """Returns where these clients are along the client axis."""
    if contiguous(chosen):
        return slice(chosen[0], chosen[-1] + 1)
    return torch.tensor(chosen, device=device)


def storage_of(leaf: Tensor) -> int:
    """Returns the address of the memory that a tensor is a view of."""
    return leaf.untyped_storage().data_ptr()


def shallow_copy(tree: Tree) -> Tree:
    """Returns another tree of the very same tensors."""
    return map_tree(lambda leaf: leaf, tree)

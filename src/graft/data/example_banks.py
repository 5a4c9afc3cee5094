"""Three banks' exports of accounts and payments, made up: about 5,000 accounts, and what makes real exports tedious.

What is wrong with them on purpose:

* alpha: semicolons, a decimal comma, Latin-1 letters, dates as 31.12.2023, headers with blanks and capitals;
* beta: UTF-8 with a byte order mark, ids with leading zeros, cells that say NA, payments to accounts of other banks;
* gamma: tables with other names and bars between cells, a branch that no other bank has, labels for a third of its
  accounts only, accounts that paid themselves;
* all: one account in thirty is a fraud, amounts over five orders of magnitude, empty cells, a column of free text and
  one that is the same for everybody.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Random = np.random.Generator
FIRST_DAY = date(2015, 1, 1)
FRAUD = 1 / 30  # share of the accounts
RING = 6  # accounts that work together
NAMES = ("Müller", "Şahin", "Dubois", "O'Neil", "García", "Novák", "Rossi", "Jensen")


@dataclass(frozen=True)
class Bank:
    """How one bank writes its export."""

    name: str
    accounts: int
    branches: tuple[str, ...]
    separator: str
    encoding: str
    headers: dict[str, str]  # of the columns, where the bank calls them otherwise
    files: tuple[str, str] = ("accounts.csv", "payments.csv")
    decimal: str = "."
    date_form: str = "%Y-%m-%d"
    missing: str = ""
    labelled: float = 1.0  # share of the accounts that somebody looked at
    foreign: float = 0.0  # share of the payments that go to accounts elsewhere
    own: float = 0.0  # share that accounts pay to themselves


BANKS = (
    Bank(
        "alpha",
        2000,
        ("north", "south", "city"),
        ";",
        "latin-1",
        {"account_id": "Account ID", "balance": "Balance ", "opened": "OPENED", "sender": "From", "receiver": "To"},
        decimal=",",
        date_form="%d.%m.%Y",
    ),
    Bank("beta", 1800, ("city", "coast"), ",", "utf-8-sig", {}, missing="NA", foreign=0.03),
    Bank(
        "gamma",
        1200,
        ("north", "city", "islands"),
        "|",
        "utf-8",
        {"account_id": "account_id", "fraud": "Fraud"},
        files=("customers.csv", "transfers.csv"),
        labelled=1 / 3,
        own=0.01,
    ),
)


def write_banks(folder: Path, size: float = 1.0, seed: int = 0) -> list[Path]:
    """Writes the exports of all banks, each into a folder of its name with a folder of new accounts beside it; `size`
    scales the numbers of accounts."""
    written = []
    for index, bank in enumerate(BANKS):
        for suffix, share, stream in (("", 1.0, 0), ("-new", 0.1, 1)):
            random = np.random.default_rng([seed, index, stream])
            path = folder / f"{bank.name}{suffix}"
            path.mkdir(parents=True, exist_ok=True)
            accounts = max(60, round(size * share * bank.accounts))
            table = make_accounts(bank, accounts, random)
            fraud = table.pop("ring")
            columns = list(table) if not suffix else [name for name in table if name != "fraud"]
            write_table(path / bank.files[0], bank, {name: table[name] for name in columns})
            write_table(path / bank.files[1], bank, make_payments(bank, table["account_id"], fraud, random))
            written.append(path)
    return written


def make_accounts(bank: Bank, accounts: int, random: Random) -> dict[str, Any]:
    """Returns the columns of a table of accounts, and the ring that each belongs to: 0 for the honest ones."""
    rings = max(3, round(accounts * FRAUD / RING))
    ring = np.zeros(accounts, np.int64)
    ring[random.permutation(accounts)[: rings * RING]] = np.repeat(np.arange(1, rings + 1), RING)
    fraud = ring > 0
    # Frauds are young accounts with much turnover for their balance, but so are some honest ones.
    age = np.where(fraud, random.gamma(2.0, 300, accounts), random.gamma(2.5, 600, accounts)).clip(5, 3200)
    balance = np.exp(random.normal(7.5, 1.6, accounts) - 0.5 * fraud)
    turnover = np.exp(random.normal(0.6, 0.9, accounts) + 0.7 * fraud) * balance**0.5 * 10
    numbers = random.permutation(10 * accounts)[:accounts]
    looked_at = random.random(accounts) < bank.labelled
    channel = np.where(random.random(accounts) < 0.35 + 0.3 * fraud, "app", random.choice(["branch", "web"], accounts))
    return {
        "account_id": [f"{number:08d}" for number in numbers],
        "holder": [f"{random.choice(NAMES)} {number}" for number in numbers],
        "branch": random.choice(bank.branches, accounts).tolist(),
        "channel": blank(channel.tolist(), 0.03, random),
        "opened": [FIRST_DAY + timedelta(days=int(3285 - days)) for days in age],
        "balance": blank(np.round(balance, 2).tolist(), 0.04, random),
        "turnover": blank(np.round(turnover, 2).tolist(), 0.06, random),
        "currency": ["EUR"] * accounts,
        "fraud": [("yes" if bad else "no") if seen else None for bad, seen in zip(fraud, looked_at, strict=True)],
        "ring": ring,
    }


def make_payments(bank: Bank, ids: Sequence[str], ring: NDArray[np.int64], random: Random) -> dict[str, Any]:
    """Returns the columns of a table of payments: rings pay among themselves, and everybody pays a few others."""
    accounts = len(ids)
    honest = 4 * accounts
    popular = random.pareto(1.5, accounts) + 0.2
    source = random.integers(accounts, size=honest)
    target = random.choice(accounts, size=honest, p=popular / popular.sum())
    members = [np.flatnonzero(ring == number) for number in range(1, int(ring.max()) + 1)]
    inside = [random.choice(group, size=(2 * len(group), 2)) for group in members if len(group) > 1]
    within = np.concatenate([*inside, np.empty((0, 2), np.int64)])
    pairs = np.concatenate([np.stack([source, target], axis=1), within])
    pairs = random.permutation(pairs[pairs[:, 0] != pairs[:, 1]])
    own = random.integers(accounts, size=round(bank.own * len(pairs)))
    pairs = np.concatenate([pairs, np.stack([own, own], axis=1)])
    receivers = [ids[end] for end in pairs[:, 1]]
    for row in random.permutation(len(pairs))[: round(bank.foreign * len(pairs))]:
        receivers[row] = f"X{random.integers(10**6):06d}"
    return {
        "sender": [ids[end] for end in pairs[:, 0]],
        "receiver": receivers,
        "amount": np.round(np.exp(random.normal(4 + 1.2 * (ring[pairs] > 0).all(axis=1), 1.2)) + 0.01, 2).tolist(),
        "paid": [FIRST_DAY + timedelta(days=int(day)) for day in random.integers(3000, 3285, len(pairs))],
    }


def blank(cells: list[Any], share: float, random: Random) -> list[Any]:
    """Returns the cells with a share of them empty."""
    return [None if empty else cell for cell, empty in zip(cells, random.random(len(cells)) < share, strict=True)]


def write_table(path: Path, bank: Bank, columns: dict[str, Sequence[Any]]) -> None:
    """Writes a table in the way of a bank."""
    write: dict[type, Callable[[Any], str]] = {
        float: lambda number: f"{number:.2f}".replace(".", bank.decimal),
        date: lambda day: day.strftime(bank.date_form),
        type(None): lambda _: bank.missing,
    }
    with path.open("w", encoding=bank.encoding, errors="replace", newline="") as file:
        writer = csv.writer(file, delimiter=bank.separator)
        writer.writerow([bank.headers.get(name, name) for name in columns])
        for row in zip(*columns.values(), strict=True):
            writer.writerow([write.get(type(cell), str)(cell) for cell in row])

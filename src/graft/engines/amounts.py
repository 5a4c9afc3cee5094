"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from graft.errors import InputError

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
MOST_BYTES = 2**60


def parse_memory(text: str) -> int | None:
    """Returns the bytes of an amount such as 4GB or 512 MiB; None for the empty text."""
    if not text.strip():
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    if match is None or match[2].upper() not in UNITS or float(match[1]) == 0:
        raise InputError(f"memory is '{text}'; it should be a number with a unit, as 4GB, 512MB or 1.5GiB.")
    size = float(match[1]) * UNITS[match[2].upper()]
    if size > MOST_BYTES:
        raise InputError(f"memory is '{text}'; it must be at most {MOST_BYTES >> 40}TiB.")
    return int(size)


def format_bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size, 1e5) / 1e6:.1f} MB"

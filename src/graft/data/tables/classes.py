"""Names of classes: the same class may be written 1, 01 and 1.0, or Yes and yes."""

from __future__ import annotations

from collections.abc import Iterable

UNLABELLED = ("-1", "-1.0", "", "na", "n/a", "nan", "null", "none")  # in lower case


def class_spelling(labels: Iterable[str]) -> dict[str, str]:
    """Returns how each label is written everywhere: whole numbers without zeros before or after."""
    return {label: whole_number(label) or label for label in labels}


def whole_number(label: str) -> str | None:
    """Returns a whole number as it is written most shortly; None for other texts."""
    try:
        number = float(label)
        return str(int(number)) if number == int(number) and abs(number) < 2**53 else None
    except (ValueError, OverflowError):
        return None


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Returns different names of classes, numbers by value where all are numbers."""
    different = sorted(set(names))
    if all(whole_number(name) == name for name in different):
        different.sort(key=int)
    return tuple(different)

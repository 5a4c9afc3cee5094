"""The listing of fields is read from source, and says the same as the classes themselves."""

import inspect
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from textwrap import dedent

import pytest

from graft.errors import InputError
from graft.field_docs import FieldDoc, describe_fields
from graft.fields import Search, in_words, rules, search_spaces
from graft.methods import METHODS, PLUGS
from graft.options import parse_value

KINDS = [table[name] for table in (METHODS, PLUGS) for name in sorted(table)]
OWN = """\
    from __future__ import annotations

    import typing
    from dataclasses import dataclass, field
    from typing import Annotated, ClassVar, Literal

    import annotated_types
    import graft
    from annotated_types import Ge, Interval, Lt

    from elsewhere import MOST, STEPS, Share
    from graft.methods.fedprox import FedProx

    Mode = Literal["fast", "slow"]


    @dataclass(frozen=True)
    class FedSoft(FedProx):
        pooled: ClassVar[bool] = False  # not a field

        mu: float = 0.5
        # How often,
        # in a round.
        steps: Annotated[int, annotated_types.Ge(1), graft.Search(1, MOST)] = STEPS
        share: Share = 0.5
        mode: Mode = "fast"  # of training
        center: Annotated[bool, graft.Search(choices=(True, False))] = True  # whether features are centred # or not
        rate: Annotated[float, Interval(gt=0, le=1)] | None = None  # of dropout
        names: list[str] = field(default_factory=list)
        text: typing.Literal["", "a"] = ""
"""
ELSEWHERE = """\
    from typing import Annotated

    from annotated_types import Ge, Lt

    STEPS = 3
    MOST = 8
    Share = Annotated[float, Ge(0), Lt(1)]
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(dedent(text))
    return path


def test_class_of_another_file_is_listed_by_hand(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "elsewhere.py", ELSEWHERE)
    assert describe_fields(write(tmp_path, "my_method.py", OWN), "FedSoft") == [
        FieldDoc("mu", "float", "at least 0", "0.5", "strength of the pull; 0 is FedAvg", Search(1e-4, 1.0, log=True)),
        FieldDoc("steps", "int", "at least 1", "3", "How often, in a round.", Search(1, 8)),
        FieldDoc("share", "float", "at least 0 and below 1", "0.5", ""),
        FieldDoc("mode", "fast | slow", "", "fast", "of training"),
        FieldDoc("center", "bool", "", "true", "whether features are centred # or not", Search(choices=(True, False))),
        FieldDoc("rate", "float | None", "above 0 and at most 1", "none", "of dropout"),
        FieldDoc("names", "list[str]", "", "field(default_factory=list)", ""),
        FieldDoc("text", '"" | a', "", '""', ""),
    ]
    assert "elsewhere" not in sys.modules


@pytest.mark.parametrize("kind", KINDS)
def test_listing_agrees_with_the_class(kind):
    docs = describe_fields(Path(inspect.getsourcefile(kind)), kind.__name__)
    assert [doc.name for doc in docs] == [field.name for field in fields(kind)]
    for doc, field in zip(docs, fields(kind), strict=True):
        assert doc.meaning, f"{doc.name} of {kind.__name__} has no comment that says what it is"
        assert field.default is not MISSING
        assert parse_value(doc.default) == field.default
        rule = rules(kind).get(doc.name)
        assert doc.bounds == (in_words(rule.bounds) if rule else "")
        assert doc.search == search_spaces(kind).get(doc.name)
        if rule and rule.choices:
            assert doc.type == " | ".join(map(str, rule.choices))


def test_class_is_found_by_the_name_of_its_module():
    by_name = describe_fields("graft.methods.fedtad", "FedTAD")
    assert by_name == describe_fields(Path(inspect.getsourcefile(METHODS["fedtad"])), "FedTAD")
    assert {doc.name for doc in by_name} > {"iterations", "pseudo_nodes"}


def test_listing_imports_no_pytorch():
    code = (
        "import sys; from graft.field_docs import describe_fields as d; d('graft.methods.fedgkc', 'FedGKC'); "
        "print('torch' in sys.modules, 'graft.methods' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "False False\n"


def test_class_that_is_not_there_is_an_input_error(tmp_path):
    path = write(tmp_path, "my_method.py", "class Other:\n    pass\n")
    with pytest.raises(InputError, match=r"There is no class 'FedSoft' in .*my_method\.py"):
        describe_fields(path, "FedSoft")
    with pytest.raises(InputError, match=r"There is no class 'FedSoft' in .*missing\.py"):
        describe_fields(tmp_path / "missing.py", "FedSoft")
    circle = write(tmp_path, "circle.py", "class FedSoft(FedSoft):\n    pass\n")
    with pytest.raises(InputError, match="go round in a circle"):
        describe_fields(circle, "FedSoft")

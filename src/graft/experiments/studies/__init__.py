"""The table of studies that `graft reproduce` knows: a file a paper.

To add one: a Study in the file of its paper, the numbers as they are printed in `printed/`, and for a new paper a line
here.
"""

from __future__ import annotations

from graft.experiments.studies import dfed_sst, fedgkc, fedgkc_departures, fedomd, fedtad, general, twitch
from graft.experiments.studies.study import Portrait, Study

STUDIES: dict[str, Study] = {
    **fedgkc.STUDIES,
    **fedgkc_departures.STUDIES,
    **dfed_sst.STUDIES,
    **fedomd.STUDIES,
    **fedtad.STUDIES,
    **general.STUDIES,
    **twitch.STUDIES,
}
PORTRAITS: dict[str, Portrait] = {**dfed_sst.PORTRAITS, **fedomd.PORTRAITS, **fedtad.PORTRAITS}

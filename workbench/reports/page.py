"""One HTML file that shows one or several runs: `report(records, "report.html")`.

It has what was run, in words; curves; where gradients came from; and sample responses with their
rewards and whether they were trained on, which can be filtered in the page.

The file loads nothing: figures are SVG in it, and its policy lets no script run but its own, by
hash. Responses are text that a model wrote, and names are whatever a record says, so all of it is
escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.analysis.runs import arms
from workbench.records import Record
from workbench.reports import figures
from workbench.reports.tables import (
    Groups,
    average_round,
    comparison,
    configuration,
    each_record,
    responses,
    results,
)
from workbench.utils.validation import whole_number

if TYPE_CHECKING:
    import pandas as pd

TEMPLATES = Path(__file__).parent / "templates"


# A report asks for the same tables many times, and a run that goes on while it is written would
# give each section another state.
class Snapshot(Record):
    """A record whose tables are read once, whatever its run does meanwhile."""

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """As of `Record`, read once."""
        return super().rounds

    @cached_property
    def evals(self) -> pd.DataFrame:
        """As of `Record`, read once."""
        return super().evals


def report(records: Any, path: Any, *, title: str | None = None, rows: int = 300) -> Path:
    """Write the report of one or several runs.

    Parameters
    ----------
    records : Record, list of Record, or dict from label to either
        A list is grouped into methods and their seeds by `analysis.runs.arms`.
    path : path
        The file to write; directories are made.
    title : str, optional
        None for the labels.
    rows : int
        Most sample responses, over all runs.

    Returns
    -------
    Path
        Of the file.
    """
    groups = snapshots(records)
    whole_number("rows", rows, 0)
    return write(path, content(groups, title or ", ".join(groups), rows))


def content(groups: Groups, title: str, rows: int) -> dict[str, Any]:
    """What the page says of runs, by the names that the template has for it."""
    # Runs without a finished round are named and listed, but have nothing to draw.
    trained = {}
    for label, group in groups.items():
        begun = [record for record in group if len(record.rounds)]
        if begun:
            trained[label] = begun
    table, notes = comparison(groups)
    return {
        "title": title,
        "lead": _lead(groups),
        "warnings": _warnings(groups),
        "results": results(groups),
        "comparison": table,
        "notes": notes,
        "curves": figures.curves(trained),
        "mechanisms": figures.mechanisms(trained),
        "average_round": average_round(trained),
        "responses": responses(trained, rows),
        "runs": [configuration(label, group) for label, group in groups.items()],
    }


def write(path: Any, content: dict[str, Any]) -> Path:
    """Write a page, making directories where they are missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Paths may hold half surrogate pairs as well.
    path.write_text(_render(content), encoding="utf-8", errors="replace")
    return path


def snapshots(records: Any) -> dict[str, Sequence[Record]]:
    """Label to records, whatever form they came in."""
    return {
        # Names of files may hold half surrogate pairs, which neither UTF-8 nor pandas has.
        label.encode("utf-8", "backslashreplace").decode("utf-8"): [
            Snapshot(record.path, record.strict) for record in group
        ]
        for label, group in arms(records).items()
    }


def _lead(groups: Groups) -> str:
    """The line below the title: how many runs, of which lab, from when."""
    manifests = [record.manifest for _, record in each_record(groups)]
    # In the order of the runs, each lab once.
    labs = ", ".join(dict.fromkeys(str(manifest["lab"]["lab"]) for manifest in manifests))
    days = sorted({str(m["started"])[:10] for m in manifests if "started" in m})
    started = f", started {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    runs = "1 run" if len(manifests) == 1 else f"{len(manifests)} runs"
    return f"{runs} in the lab {labs}{started}."


def _warnings(groups: Groups) -> list[str]:
    """What the runs warned of, and rounds that stopped."""
    lines = []
    for label, record in each_record(groups):
        run = f"{label}, seed {record.manifest['seed']}"
        for number, warning in record.warnings.itertuples(index=False):
            lines.append(f"{run}, round {number}: {warning}")
        # The rollouts of a round that was stopped, which the run keeps for whoever looks for the
        # cause.
        for path in sorted(record.path.glob("failed-*.parquet")):
            lines.append(f"{run}, a round stopped; its rollouts are in {path.name}")
    return lines


def _render(content: dict[str, Any]) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        finalize=figures.visible,
    )
    # The page's own files are the only text that is not escaped.
    script = Markup((TEMPLATES / "report.js").read_text())
    style = Markup((TEMPLATES / "report.css").read_text())
    # The policy of the page lets only the script with this hash run, so text of a response never
    # can.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        content,
        script=script,
        style=style,
        script_hash=f"sha256-{digest}",
        version=__version__,
    )

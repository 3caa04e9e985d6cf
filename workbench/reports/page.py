"""One HTML file that shows runs, or a trial: `report(records, "page.html")`.

A page is a notebook that papermill runs and nbconvert writes without its code: `record.ipynb` for
runs and `trial.ipynb` for a trial. They stand in `notebooks/`, and the installed package has them
too. What their cells show is made by the functions at the end of this module.

The file loads nothing, and no script runs in it. All text of a record is escaped.
"""

from __future__ import annotations

import json
import math
import re
import string
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes

from workbench import __version__, plots
from workbench.analysis.cost import CostModel
from workbench.analysis.curves import Unit
from workbench.analysis.runs import arms
from workbench.plots.style import new_axes, style, svg
from workbench.plots.trials import headline
from workbench.records import Record
from workbench.reports import tables
from workbench.utils.numbers import mean_and_half
from workbench.utils.shipped import PACKAGE
from workbench.utils.validation import instance_of, output, whole_number

TEMPLATES = Path(__file__).parent / "templates"
SIZE = (3.3, 5.6)  # inches, height and width of a curve: the page has two beside one another
BESIDE = 5  # labels from which on the legend stands beside the axes, and not above them


def report(records: Any, path: Any, *, title: str | None = None, rows: int = 300) -> Path:
    """Write the page of one or several runs.

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

    Raises
    ------
    ImportError
        Without the packages of the extra `notebooks`.
    """
    groups = arms(records)
    whole_number("rows", rows, 0)
    return _write("record", path, title or ", ".join(groups), groups, rows=rows)


def trial(
    records: Mapping[str, Mapping[int, Record]],
    table: pd.DataFrame,
    path: Any,
    *,
    tuning: pd.DataFrame | None = None,
    baseline: str,
    target: float,
    measure: str | Unit = "rollouts",
    title: str | None = None,
) -> Path:
    """Write the page of a trial, as `Trial.report` does.

    Parameters
    ----------
    records : dict from label to a dict from seed to Record
        Of the comparison, with the baseline.
    table : DataFrame
        As `Trial.table`.
    path : path
        The file to write; directories are made.
    tuning : DataFrame, optional
        As `Trial.tuning`.
    baseline, target, measure
        As in `plots.trial`; a measure that has no name is a `CostModel`.
    title : str, optional
        What was found, by default.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    ImportError
        Without the packages of the extra `notebooks`.
    """
    instance_of("measure", measure, (str, CostModel), '"rollouts", or a cost.CostModel')
    unit = measure if isinstance(measure, str) else json.dumps(vars(measure))
    groups = {label: list(by_seed.values()) for label, by_seed in records.items() if by_seed}
    title = title or headline(table, baseline, measure)
    # The notebook is another process, and reads what it is given from files.
    with tempfile.TemporaryDirectory() as folder:
        asked = {"table": f"{folder}/table.csv", "tuning": ""}
        table.to_csv(asked["table"], index=False)
        if tuning is not None and len(tuning):
            asked["tuning"] = f"{folder}/tuning.csv"
            tuning.to_csv(asked["tuning"], index=False)
        asked |= {"baseline": baseline, "measure": unit}
        return _write("trial", path, title, groups, **asked, target=float(target))


def notebook(name: str) -> Path:
    """The notebook of a page, in a checkout or inside the installed package."""
    checkout = PACKAGE.parent / "notebooks" / f"{name}.ipynb"
    return checkout if checkout.exists() else PACKAGE / "_data" / "notebooks" / f"{name}.ipynb"


def _write(
    name: str, path: Any, title: str, groups: Mapping[str, Sequence[Record]], **parameters: Any
) -> Path:
    """Run a notebook on records, and write it as a page with a title."""
    output("path", path)
    try:
        import papermill
        from nbconvert import HTMLExporter
    except ImportError as error:
        raise ImportError(
            f"a page needs the package {error.name}: pip install 'workbench-rlvr[notebooks]'"
        ) from None
    paths = {label: [str(record.path) for record in group] for label, group in groups.items()}
    parameters["runs"] = json.dumps(paths)
    options = {"kernel_name": "python3", "progress_bar": False, "shutdown_kernel": "immediate"}
    # What the kernel says of its own transport is no concern of whoever asks for a page.
    options["extra_arguments"] = ["--log-level=ERROR"]
    try:
        done = papermill.execute_notebook(str(notebook(name)), None, parameters, **options)
    except papermill.PapermillExecutionError as error:
        # What is wrong with the records; anything else is a defect, and its traceback is wanted.
        if error.ename in ("ValueError", "RecordError"):
            raise ValueError(error.evalue) from error
        raise
    # The first cell says what the notebook is for; the page has its title in that place.
    done.cells.pop(0)
    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_output_prompt=True)
    body, _ = exporter.from_notebook_node(done)
    sections = re.findall(r'<h2 id="([^"]*)">([^<]*)', body)
    template = string.Template((TEMPLATES / "page.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=escape(title),
        style=(TEMPLATES / "page.css").read_text(encoding="utf-8"),
        links=" ".join(f'<a href="#{place}">{text}</a>' for place, text in sections),
        body=body,
        version=__version__,
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


# What the cells of the notebooks show


def show(template: str, *texts: Any) -> None:
    """Show HTML as the output of a cell, with texts in it that are escaped."""
    from IPython.display import HTML, display

    display(HTML(Markup(template).format(*texts)))


def table(frame: pd.DataFrame, caption: str, kind: str = "numbers") -> None:
    """Show a table of numbers and texts; its kind is "words" where the texts are long."""
    head = [Markup("<th scope=col>{}</th>").format(name) for name in ["", *frame.columns]]
    rows = []
    for name, *values in frame.itertuples(name=None):
        row = Markup("<tr><th scope=row>{}</th>").format(name)
        for value in values:
            text = mean_and_half(value, math.nan) if isinstance(value, float) else value
            row += Markup("<td><div>{}</div></td>").format(text)
        rows.append(row + Markup("</tr>"))
    show(
        '<div class="wide" tabindex="0"><table class="{}"><caption>{}</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
        kind,
        caption,
        Markup().join(head),
        Markup("\n").join(rows),
    )


def responses(groups: Mapping[str, Sequence[Record]], rows: int) -> pd.DataFrame:
    """Show at most so many responses, or why there are none; returns them."""
    found = tables.responses(groups, rows)
    if len(found):
        table(found, "“Chosen” was selected, and had no gradient.", kind="words")
    else:
        reasons = [record.why_empty for _, record in tables.each_record(groups)]
        reason = next(filter(None, reasons), "no round yet, or too few rows were asked for")
        show("<p>There are none: {0}.</p>", reason)
    return found


def axes() -> Axes:
    """Axes of which the page has two beside one another."""
    with style():
        return new_axes(*SIZE)


def picture(drawn: Any, caption: str) -> None:
    """Show a figure, or the figure of some Axes, once and with a caption."""
    figure = drawn.figure
    # Matplotlib keeps open figures in memory, and a notebook would show them once more.
    plt.close(figure)
    drawing = svg(figure).partition("<svg")[2]
    # Ids of groups would be the same in every drawing of the page.
    drawing = re.sub(r'(?<=<g) id="[^"]*"', "", drawing)
    drawing = re.sub("<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    show(
        '<figure><svg role="img" aria-label="{0}"{1}<figcaption>{0}</figcaption></figure>',
        caption,
        Markup(drawing),
    )


def curves(
    groups: Mapping[str, Sequence[Record]],
    captions: Mapping[str, str],
    x: str = "round",
    smooth: int = 1,
) -> None:
    """Show a learning curve of every y that has a caption, of the labels whose runs have it."""
    for y, caption in captions.items():
        # All runs of a label or none: a mean must not be of other seeds in every figure.
        having = {
            label: group
            for label, group in groups.items()
            if all(_has_curve(record, y) for record in group)
        }
        if having:
            legend = None if len(having) == 1 else "above" if len(having) < BESIDE else "outside"
            curve = plots.learning_curve(having, x=x, y=y, smooth=smooth, legend=legend, ax=axes())
            picture(curve, caption)


def _has_curve(record: Record, y: str) -> bool:
    """Whether a run has two numbers of y."""
    table = record.accuracy() if y in ("accuracy", "greedy") else record.rounds
    return y in table and table[y].notna().sum() > 1

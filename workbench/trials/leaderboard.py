"""The leaderboard's runs: every method in one lab, each up to one budget of rollouts.

The grid is data/grids/leaderboard.yaml. A method of a paper joins it by one line there. A method of
your own joins by the command line, since a grid never runs code:

    python -m workbench leaderboard --add mine=my_methods:mine

The records say everything that the table needs, so the table is made from what is complete at any
time, see `workbench.analysis.leaderboard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.records import Record, load
from workbench.trials.cases import Case, is_complete
from workbench.trials.grids import read, read_content
from workbench.utils.validation import one_of, whole_number

GRID = "grids/leaderboard.yaml"
# What the grid's lab is where the command does not say otherwise; a folder is called after the
# difference.
LAB = {"base": "early", "size": "small", "regime": "spread"}


@dataclass(frozen=True)
class Plan:
    """The runs of a leaderboard, and where they go.

    Attributes
    ----------
    grid : dict
        As `sweep` takes it.
    folder : Path
        Of the records, in LABEL/seed-N.
    out : Path
        Of the sweep: its logs and its table of runs.
    own : dict from label to arm
        Methods of the user's own, see `arms.as_method`.
    """

    grid: dict[str, Any]
    folder: Path
    out: Path
    own: Mapping[str, Any]

    def cases(self) -> list[Case]:
        """The runs, checked."""
        return read(self.grid, self.out, self.own)


def plan(
    grid: Any = None,
    *,
    out: Any = None,
    lab: Mapping[str, str] | None = None,
    seeds: int | Sequence[int] | None = None,
    only: Iterable[str] = (),
    own: Mapping[str, Any] | None = None,
) -> Plan:
    """The runs of a leaderboard.

    Parameters
    ----------
    grid : path, optional
        None for the one that comes with the package.
    out : path, optional
        Directory of everything. None puts the records where the grid says, with the lab in the name
        if it is not the grid's own, and the logs into runs/sweeps.
    lab : dict, optional
        Other values of the lab's base, size and regime.
    seeds : int or list of int, optional
        None for those of the grid.
    only : labels
        Of the methods to run; all where it is empty.
    own : dict from label to arm, optional
        Further methods, see `runner.sweep`.

    Raises
    ------
    ValueError
        For a label that does not exist, or exists already.
    """
    from workbench.labs import shipped

    if grid is not None:
        # All of it is checked, so that what follows may rely on its form.
        read(grid, Path.cwd(), records=Path.cwd())
    base, content = read_content(shipped(GRID) if grid is None else grid)
    if "cases" not in content:
        raise ValueError(f"grid {str(grid)!r}: the methods to compare are needed under `cases`")
    own = dict(own or {})
    content = dict(content)
    cases = list(content["cases"])
    labels = [case.get("label") for case in cases]
    for label in own:
        if label in labels:
            raise ValueError(f"{label}: the grid has a method of this label; choose another one")
    cases += [{"label": label} for label in own]
    only = list(only)
    for label in only:
        one_of("only", label, [case["label"] for case in cases])
    content["cases"] = [case for case in cases if not only or case["label"] in only]
    if seeds is not None:
        if isinstance(seeds, int):
            whole_number("seeds", seeds, 1)
        content["seeds"] = seeds

    changed = {name: value for name, value in (lab or {}).items() if value != LAB[name]}
    parameters = dict(content.get("parameters", {}))
    parameters["lab"] = {**parameters.get("lab", {}), **changed}
    content["parameters"] = parameters

    # A grid may be a stranger's, so it decides no more than the name below a known place.
    folder_name = Path(content.pop("folder", "leaderboard")).name
    if folder_name in ("", ".."):
        raise ValueError(f"grid {str(grid)!r}: its folder must end in the name of a directory")
    name = "-".join([folder_name, *changed.values()])
    if out is not None:
        return Plan(content, Path(out).absolute(), Path(out).absolute(), own)
    # An installed package has its grid among its own files, where no records belong.
    runs = base.parent / "runs" if base.name == "grids" else Path("runs")
    if "_data" in runs.parts:
        runs = Path("runs")
    folder = (runs / name).absolute()
    content["folder"] = str(folder)
    return Plan(content, folder, Path("runs", "sweeps", name).absolute(), own)


def recorded(cases: Iterable[Case]) -> tuple[dict[str, list[Record]], list[str]]:
    """What can be compared already.

    Parameters
    ----------
    cases : list of Case
        As `Plan.cases` gives them.

    Returns
    -------
    groups : dict from label to the records of its complete runs
    missing : list of str
        Names of the runs that are not complete, as LABEL/seed-N.
    """
    groups: dict[str, list[Record]] = {}
    missing = []
    for case in cases:
        # A run that is still going has an unfinished course, which would read as a slow method.
        if is_complete(case):
            groups.setdefault(case.values["label"], []).append(load(case.record))
        else:
            missing.append(case.name)
    return groups, missing


def expected_hours(cases: Iterable[Case]) -> float:
    """Hours on one core of the runs that are not complete, by the `cost` of the grid.

    A method without a cost, such as one of your own, counts as the first one of the grid.
    """
    cases = list(cases)
    costs = [case.values.get("cost") for case in cases]
    usual = next((cost for cost in costs if cost), 0.0)
    seconds = sum(cost or usual for case, cost in zip(cases, costs) if not is_complete(case))
    return seconds / 3600

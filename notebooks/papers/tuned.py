"""Recorded trials of `regimes.py`, as the notebooks show them: rates, gains, costs and verdicts.

A trial is recorded as a part of a shelf, such as `data/runs/regimes`. Beside its folder lie the
tables of all trials of the shelf: `arms.csv`, with what was found of every arm, and `tuning.csv`,
with a row for every tuning run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from papers.claims import at_one_rate, judged, of
from papers.plots import panels
from papers.published_claims import CLAIMS
from papers.regimes import REGIMES, recorded_table
from papers.tables import accuracy_gain, markdown_table
from papers.verdicts import Claim, Finding, here, judge, kind
from papers.verdicts import read as read_verdicts
from papers.verdicts import table as verdict_texts
from workbench.analysis import cost
from workbench.analysis.comparisons import at_budget
from workbench.analysis.curves import UNITS, Curve, Unit, common_budget, read
from workbench.analysis.runs import load_all
from workbench.labs import shipped
from workbench.plots import tuning_curves
from workbench.plots.style import heading, ratio_ticks, style
from workbench.records import Record
from workbench.records.shelf import record_paths

__all__ = [
    "EVERYTHING_TRAINED",
    "NO_TUNED_RUN",
    "RecordedTrial",
    "Shelf",
    "claims_of_paper",
    "gains",
    "headlines",
    "load",
    "markdown",
    "on_the_way",
    "one_rate",
    "recorded",
    "tuning_figure",
    "verdict_table",
]

# As the papers' trainers count.
EVERYTHING_TRAINED = cost.MACHINES["flops-all"]


NO_TUNED_RUN = Finding(reason="no tuned run")


@dataclass(frozen=True)
class Shelf:
    """A recorded trial.

    Attributes
    ----------
    folder : path
        Such as data/runs/regimes/knapsack.
    names : dict from label to text
        What the arms are called in figures and tables, in the order in which they are shown. Arms
        that it leaves out are not shown.
    """

    folder: Path
    names: Mapping[str, str]

    @cached_property
    def records(self) -> dict[str, list[Record]]:
        """The runs of every arm, by its label."""
        return load_all(self.folder)

    @cached_property
    def groups(self) -> dict[str, list[Record]]:
        """The runs of the arms that are shown, by their names."""
        return {name: self.records[label] for label, name in self.names.items()}

    @cached_property
    def curves(self) -> dict[str, dict[int, Curve]]:
        """The same as curves."""
        return read(self.groups)

    def table(self, name: str) -> pd.DataFrame:
        """The rows of this trial in the table "arms" or "tuning"."""
        return recorded_table(self.folder, name)

    @cached_property
    def arms(self) -> pd.DataFrame:
        """What was found of every arm but the baseline, as `Trial.table`."""
        return self.table("arms")

    @cached_property
    def tuning(self) -> pd.DataFrame:
        """The tuning runs of the arms that are shown, as `Trial.tuning`, with their names."""
        table = self.table("tuning")
        table = table[table["arm"].isin(list(self.names))]
        return table.assign(arm=table["arm"].map(dict(self.names)))

    @property
    def target(self) -> float:
        """The held-out accuracy that runs have to reach."""
        return float(self.arms["target"].dropna().iloc[0])

    def rate_of(self, name: str) -> float:
        """The learning rate at which the runs of an arm were made."""
        return float(self.groups[name][0].manifest["arguments"]["learning_rate"])

    def rates(self) -> pd.DataFrame:
        """How every arm was tuned.

        Returns
        -------
        DataFrame, a row an arm
            learning rate, at which its runs were made; tried, the lowest and the highest rate of
            its tuning; tuning runs, and how many of them collapsed; and seeds, rounds and rollouts
            of the runs that are compared.
        """
        rows = {}
        for name, group in self.groups.items():
            tuned = self.tuning[self.tuning["arm"] == name]
            ends = tuned["learning_rate"].min(), tuned["learning_rate"].max()
            rounds = group[0].rounds
            rows[name] = {
                "learning rate": f"{self.rate_of(name):.2g}",
                "tried": f"{ends[0]:.2g} to {ends[1]:.2g}",
                "tuning runs": len(tuned),
                "collapsed": int(tuned["collapsed"].sum()),
                "seeds": len(group),
                "rounds": len(rounds),
                "rollouts": int(rounds["rollouts"].sum()),
            }
        return pd.DataFrame.from_dict(rows, orient="index")


def recorded(runs: Any, folders: Iterable[str]) -> dict[str, list[Record]]:
    """The records of several folders by "folder/label", as claims name them.

    Parameters
    ----------
    runs : path
        Such as data/runs.
    folders : names of folders in it
        Such as "pods" and "regimes/pods". Those that are missing are passed over.
    """
    found = {}
    for folder in folders:
        # A packed folder has no directory of its own.
        if not record_paths(Path(runs, folder)):
            continue
        for label, group in load_all(Path(runs, folder)).items():
            found[f"{folder}/{label}"] = group
    return found


class RecordedTrial(NamedTuple):
    """The recorded runs that a paper's notebook reads, see `load`."""

    records: dict[str, list[Record]]
    shelf: Shelf
    one_rate: dict[str, list[Record]]


def load(
    runs: Any,
    regime: str,
    names: Mapping[str, str],
    before: Mapping[str, str],
    folders: Iterable[str],
) -> RecordedTrial:
    """A regime's trial, and the runs at one rate that a notebook shows beside it.

    Parameters
    ----------
    runs : path
        Such as data/runs.
    regime : str
        A key of `REGIMES`.
    names : dict from label to text
        As in `Shelf`.
    before : dict from name to "folder/label"
        The runs at one rate for all arms.
    folders : names of folders of runs

    Returns
    -------
    records : dict from "folder/label" to records
        Those of the folders and of the trial.
    shelf : Shelf
    one_rate : dict from the names of `before` to records
    """
    trial = f"regimes/{regime}"
    records = recorded(runs, (trial, *folders))
    one_rate = {name: records[place] for name, place in before.items()}
    return RecordedTrial(records, Shelf(Path(runs, trial), names), one_rate)


def tuning_figure(shelf: Shelf, arms: Mapping[str, Sequence[str]], *, title: str) -> Figure:
    """What each arm cost to the target at each learning rate, a line an arm.

    Parameters
    ----------
    shelf : Shelf
    arms : dict from the title of a panel to names of arms
    title : str
    """
    measure = str(shelf.arms["measure"].iloc[0])
    with style():
        axes = panels(len(arms), height=4.2)
        for ax, (text, names) in zip(axes, arms.items()):
            runs = shelf.tuning[shelf.tuning["arm"].isin(names)]
            # The table rounds its rates, and an arm is marked only at a rate that the table has.
            chosen = {name: _nearest(runs["learning_rate"], shelf.rate_of(name)) for name in names}
            tuning_curves(runs, chosen, labels=names, ax=ax)
            ax.set_title(text)
            # Lines of `tuning_curves` have hidden labels, since it draws a part of a larger figure.
            for line in ax.lines:
                name = str(line.get_label()).removeprefix("_")
                if name in names:
                    line.set_label(name)
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        low = min(ax.get_ylim()[0] for ax in axes)
        high = max(ax.get_ylim()[1] for ax in axes)
        for ax in axes:
            ax.set(ylabel="", ylim=(low, high))
            ratio_ticks(ax.yaxis, low, high, most=6)
        axes[0].set_ylabel(f"{UNITS[measure]} to an accuracy of {shelf.target:.2f}")
        heading(axes[0], title)
    return axes[0].figure


def gains(
    curves: Mapping[str, Mapping[int, Curve]],
    pairs: Mapping[str, tuple[str, str]],
    units: Mapping[str, str | Unit],
) -> dict[str, pd.DataFrame]:
    """Held-out accuracy above a baseline at equal cost, in points.

    Parameters
    ----------
    curves : dict from name to a dict from seed to Curve
        As `curves.read` gives it.
    pairs : dict from the name of a row to (arm, baseline)
        Each pair is compared at the largest budget that all of its runs have reached.
    units : dict from text to a unit of spending

    Returns
    -------
    dict from text to a DataFrame, a row a pair
        value, low, high and n (seeds), as `plots.gains` draws them.
    """
    tables = {}
    for text, unit in units.items():
        rows = {}
        for name, (arm, baseline) in pairs.items():
            rows[name] = accuracy_gain(curves[arm], curves[baseline], unit).columns()
        tables[text] = pd.DataFrame.from_dict(rows, orient="index")
    return tables


def on_the_way(
    curves: Mapping[str, Mapping[int, Curve]],
    arm: str,
    baseline: str,
    units: Mapping[str, str | Unit],
    parts: int = 4,
) -> pd.DataFrame:
    """How far an arm is above a baseline at parts of what both have spent, as they near a plateau.

    Parameters
    ----------
    curves : dict from name to a dict from seed to Curve
    arm, baseline : str
    units : dict from text to a unit of spending
    parts : int
        The budget that all runs have reached is cut into so many equal parts.

    Returns
    -------
    DataFrame, a row a unit and part
        The accuracy of the arm and of the baseline, in percent, and difference, low and high, in
        points.
    """
    pair = {name: curves[name] for name in (arm, baseline)}
    rows = {}
    for text, unit in units.items():
        reached = common_budget(pair, unit)
        for part in range(1, parts + 1):
            budget = reached * part / parts
            table = 100 * at_budget(pair, unit, budget, baseline=baseline)
            row = table["mean"].to_dict()
            row |= table.loc[arm, ["difference", "low", "high"]].to_dict()
            rows[text, f"{part}/{parts}"] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def verdict_table(found: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """Claims for reading: what is published, what came out at one rate, and what came out tuned.

    Parameters
    ----------
    found : DataFrame
        Of `verdicts.judge`, between tuned arms.
    before : DataFrame
        Of `claims.at_one_rate` or `one_rate`, of the same claims.

    Returns
    -------
    DataFrame, a row a claim
        claim, published, scaled, at one rate and its verdict, tuned, seeds and verdict.
    """
    texts = verdict_texts(found)
    return pd.DataFrame(
        {
            "claim": texts["claim"],
            "published": texts["published"],
            "scaled": texts["scaled"],
            "at one rate": before["here_one_rate"].to_numpy(),
            "verdict at one rate": before["verdict_one_rate"].to_numpy(),
            "tuned": texts["here"],
            "seeds": texts["seeds"],
            "verdict": texts["verdict"],
        }
    )


def claims_of_paper(
    paper: str,
    records: Mapping[str, Sequence[Record]],
    further: Sequence[Claim],
    findings: Sequence[Finding],
    before: Sequence[Finding],
    older: Mapping[str, Sequence[Record]] | None = None,
) -> pd.DataFrame:
    """Every claim of a paper: what came out at one rate, and what came out between tuned arms.

    The claims of `published_claims.py` come first. Holm's correction is over these alone, so that
    their verdicts are the same here as in a table of all papers. The further claims are corrected
    among themselves.

    Parameters
    ----------
    paper : str
        Its short name, such as "PODS".
    records : dict from "folder/label" to records
    further : list of Claim
        What the paper's figures and sections say beyond that.
    findings, before : lists of Finding
        What the further claims came to between tuned arms, and at one rate.
    older : dict from "folder/label" to records, optional
        Runs at one rate under the labels of the tuned arms. The claims of `published_claims.py`
        that data/verdicts-one-rate.csv does not have are measured on them.

    Returns
    -------
    DataFrame
        As `verdict_table`.
    """
    listed = of(paper)
    known = at_one_rate(listed, shipped("verdicts-one-rate.csv"))
    if older is not None:
        is_new = known["here_one_rate"] == ""
        known[is_new] = one_rate(judged(listed, older))[is_new]
    found = [judged(listed, records), judge(further, findings)]
    rates = [known, one_rate(judge(further, before))]
    return verdict_table(pd.concat(found, ignore_index=True), pd.concat(rates, ignore_index=True))


def headlines(found: pd.DataFrame) -> pd.DataFrame:
    """The claims that docs/claims.md shows, each with its regime.

    Parameters
    ----------
    found : DataFrame
        Of `claims.judged` or `verdicts.read`, of all claims.

    Returns
    -------
    DataFrame, a row a claim
        paper, claim, published, scaled, regime, here and verdict.

    Raises
    ------
    ValueError
        For a table of other claims than those that there are now.
    """
    rows = []
    for claim, texts in zip(CLAIMS, verdict_texts(found).to_dict("records"), strict=True):
        if not claim.headline:
            continue
        arms = claim.measured_by.arm
        # A claim may average over several arms, each of a regime of its own.
        places = (arms,) if isinstance(arms, str) else arms
        regimes = [arm.rpartition("/")[0].removeprefix("regimes/") for arm in places]
        where = REGIMES[regimes[0]].where
        if len(regimes) > 1:
            # Their descriptions begin with what they differ in.
            where = f"{where.partition(', ')[2]}; mean over the regimes {', '.join(regimes)}"
        rows.append({**texts, "regime": where})
    shown = ["paper", "claim", "published", "scaled", "regime", "here", "verdict"]
    return pd.DataFrame(rows, columns=shown)


def markdown(data: Path) -> str:
    """The table of `headlines` in Markdown, as docs/claims.md shows it.

    Parameters
    ----------
    data : path
        The folder with verdicts.csv.
    """
    table = headlines(read_verdicts(data / "verdicts.csv"))
    return markdown_table(list(table), table.to_numpy().tolist())


def one_rate(table: pd.DataFrame) -> pd.DataFrame:
    """Claims that were judged on runs at one rate, as `claims.at_one_rate` gives them.

    Parameters
    ----------
    table : DataFrame
        Of `verdicts.judge`. A claim that was not measured has empty cells.
    """
    rows = [(here(row), kind(row["verdict"]) if row["n"] else "") for _, row in table.iterrows()]
    return pd.DataFrame(rows, columns=["here_one_rate", "verdict_one_rate"])


def _nearest(rates: pd.Series, rate: float) -> float:
    """The rate of a table that is closest to another one by its factor."""
    return float(rates[np.abs(np.log(rates / rate)).idxmin()])

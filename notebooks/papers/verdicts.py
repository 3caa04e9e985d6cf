"""Does a published claim hold here? Decided by intervals, never by a point.

A claim puts a quantity on one side of a bound: that a method saves something, a difference above 0;
or that it matches another, a difference no more than a margin below 0. Most claims also have a
published size. An interval [low, high] for the quantity, turned so that the claim says *above*,
gives

    agrees                   the interval lies wholly above the bound
    smaller than published   the same, and wholly below the published size
    published size excluded  the interval holds the bound, but lies wholly below the published size
    disagrees                the interval lies wholly below the bound
    cannot tell              the interval holds the bound, and the published size or more
    by definition            the interval lies above the bound, and could not lie elsewhere: the
                             claim follows from what the method is, and is no evidence for it

Published gains in accuracy are scaled first: a method that adds 2 points where its baseline gains
20 is taken to add 4 where the baseline gains 40. No theory says that gains are in proportion. What
the baseline gains here is itself a mean over seeds; the test against a scaled size is of the
difference, seed by seed, between what the method adds and the published share of what the baseline
gains, so the error of the scale is part of it. Where a claim has several published sizes (models,
data sets), the smallest of them must be excluded. A claim that one method matches another has a
margin in place of a size.

Asking many questions at once makes some intervals miss by chance. The verdict of `judge` is
therefore what is left after Holm's correction over all tests of all claims of a paper; what each
interval says alone stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from papers.intervals import Unpaired
from papers.measures import Measure, Released
from workbench.analysis.intervals import Measurement, holm
from workbench.utils.validation import one_of

__all__ = [
    "AGREES",
    "BY_DEFINITION",
    "CANNOT_TELL",
    "DISAGREES",
    "EXCLUDED",
    "SMALLER",
    "VERDICTS",
    "Claim",
    "Finding",
    "Size",
    "here",
    "judge",
    "kind",
    "marked",
    "published_size",
    "read",
    "scaled",
    "table",
    "verdict",
    "write",
]

AGREES = "agrees"
SMALLER = "smaller than published"
EXCLUDED = "published size excluded"
DISAGREES = "disagrees"
CANNOT_TELL = "cannot tell"
BY_DEFINITION = "by definition"
VERDICTS = (AGREES, SMALLER, EXCLUDED, DISAGREES, CANNOT_TELL, BY_DEFINITION)
DIRECTIONS = ("above", "below", "matches")
# The chance of any wrong rejection among the tests of one paper. It stays the same when intervals
# are asked for at another level.
FAMILY_LEVEL = 0.05


def verdict(low: float, high: float, *, bound: float = 0.0, published: float | None = None) -> str:
    """One of `VERDICTS` but "by definition" on the claim that a quantity lies above a bound.

    Parameters
    ----------
    low, high : float
        Interval of the quantity. With a missing end (one seed has no interval) nothing can be told.
    bound : float
        0, or minus the margin of a claim that something matches. A bound that the interval touches
        is not cleared.
    published : float, optional
        The smallest published size, above the bound.

    Returns
    -------
    str

    Examples
    --------
    >>> verdict(0.4, 1.6), verdict(0.4, 1.6, published=2.0), verdict(-0.5, 0.3, published=1.9)
    ('agrees', 'smaller than published', 'published size excluded')
    >>> verdict(-2.0, -0.1), verdict(-0.5, 2.5, published=1.9), verdict(-0.5, 0.3, bound=-1.0)
    ('disagrees', 'cannot tell', 'agrees')
    """
    if low > high:
        raise ValueError(f"low={low}, high={high}: low must not lie above high")
    if published is not None and not published > bound:
        raise ValueError(f"published={published}, bound={bound}: the size must lie above the bound")
    # A NaN passes both checks above, since every comparison with it is False.
    if np.isnan(low) or np.isnan(high):
        return CANNOT_TELL
    return _rule(
        above=low > bound,
        below=high < bound,
        below_published=published is not None and high < published,
    )


@dataclass(frozen=True)
class Claim:
    """What a paper says, and how it is measured here.

    Attributes
    ----------
    paper, claim, place : str
        Short name of the paper; the claim in words, with its unit; where the paper makes it.
    published : str
        The published sizes, as printed.
    sizes : tuple of float
        The same as numbers, with their sign; empty where the paper gives none.
    direction : {"above", "below", "matches"}
        On which side of `bound` the quantity is said to lie. "matches": it is at most `margin`
        below the bound.
    bound, margin : float
    published_gain : tuple of float
        What the paper's baseline gained over its start, in the unit of the sizes, one for each
        size; the sizes are scaled by it. Empty where sizes are not scaled.
    measured_by : Measure, optional
        How it is measured on recorded runs: a call of a function of `measures`.
    released : Released, optional
        The same comparison in the runs that the authors of PODS released.
    one_rate : str
        The claim of the table of runs at one learning rate for all arms that says the same; empty
        where there is none.
    headline : bool
        Whether docs/claims.md shows it.
    by_definition : bool
        Whether the direction follows from what the method is, such as that it samples less.
    """

    paper: str
    claim: str
    place: str = ""
    published: str = ""
    sizes: tuple[float, ...] = ()
    direction: str = "above"
    bound: float = 0.0
    margin: float = 0.0
    published_gain: tuple[float, ...] = ()
    measured_by: Measure | None = None
    released: Released | None = None
    one_rate: str = ""
    headline: bool = False
    by_definition: bool = False

    def __post_init__(self) -> None:
        one_of("direction", self.direction, DIRECTIONS)
        if self.direction == "matches" and not self.margin > 0:
            raise ValueError(f"claim {self.claim!r}: a claim that matches needs a margin above 0")
        if self.published_gain and len(self.published_gain) != len(self.sizes):
            raise ValueError(
                f"claim {self.claim!r}: {len(self.sizes)} sizes and {len(self.published_gain)} "
                "gains of the baseline; one for each size is needed"
            )

    @property
    def sign(self) -> int:
        """-1 for a claim that something is below its bound: it is turned around."""
        return -1 if self.direction == "below" else 1

    @property
    def edge(self) -> float:
        """What has to be cleared, turned so that the claim says above."""
        margin = self.margin if self.direction == "matches" else 0.0
        return self.sign * self.bound - margin

    def published_edge(self, gain: Any = None) -> Any:
        """The smallest published size, turned so that the claim says above and scaled.

        None where there is none on the claimed side.

        Parameters
        ----------
        gain : float or (n,) float64, optional
            What the baseline gained here over its start, in the unit of the sizes: on average, or
            for every seed.

        Returns
        -------
        float or (n,) float64, or None
        """
        # A claim that something matches is judged by its margin alone.
        if self.direction == "matches" or not self.sizes:
            return None
        sizes = self.sign * np.array(self.sizes)
        if self.published_gain:
            if gain is None:
                raise ValueError(f"claim {self.claim!r}: the gain of the baseline is needed")
            # What a method adds is taken to grow in proportion to what its baseline gains, as the
            # docstring of the module says.
            sizes = sizes / np.array(self.published_gain)
        else:
            gain = 1.0
        # Whoever excludes the smallest size excludes all of them. A size that does not lie beyond
        # the edge could not be told from the edge itself, so it counts as none.
        smallest = np.min(sizes) * gain
        return smallest if np.mean(smallest) > self.edge else None


@dataclass(frozen=True)
class Finding:
    """What was measured for a claim, or why it could not be.

    Attributes
    ----------
    measured : Measurement or Unpaired, optional
    gain : Measurement or float, optional
        What the baseline gained over its start, in the unit of the claim's sizes. A measurement has
        the seeds of `measured`, in the same order; a number is taken to be exact.
    reason : str
        Why there is no measurement.
    """

    measured: Measurement | Unpaired | None = None
    gain: Measurement | float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Size:
    """A published size as it has to be excluded here, turned so that the claim says above.

    Attributes
    ----------
    value : float
        Scaled by what the baseline gains here, where it is scaled.
    low, high : float
        The interval that the scale has over seeds; NaN where nothing is scaled by seeds.
    excluded : bool
        Whether the interval of what was measured lies below it.
    p : float
        Of the test that what was measured is as large.
    """

    value: float
    low: float
    high: float
    excluded: bool
    p: float


def published_size(claim: Claim, finding: Finding) -> Size | None:
    """What a measurement has to exclude; None where a claim has no size on its own side.

    Parameters
    ----------
    claim : Claim
    finding : Finding
        With a measurement.
    """
    measured, gain = finding.measured, finding.gain
    assert measured is not None
    if not isinstance(gain, Measurement):
        expected = claim.published_edge(gain)
        if expected is None:
            return None
        high = _turned(claim, measured)[1]
        p = measured.p_value(claim.sign * expected)
        return Size(float(expected), np.nan, np.nan, high < expected, p)
    expected = claim.published_edge(gain.values)
    if expected is None:
        return None
    sizes = Measurement(expected, level=measured.level)
    # What was measured minus the size, seed by seed, so that the error of the scale counts.
    beyond = Measurement(claim.sign * measured.values - expected, level=measured.level)
    return Size(sizes.value, sizes.low, sizes.high, beyond.high < 0, beyond.p_value(0.0))


def judge(claims: Sequence[Claim], findings: Sequence[Finding]) -> pd.DataFrame:
    """The verdict on every claim, alone and within its family.

    Parameters
    ----------
    claims : (K,) Claim
    findings : (K,) Finding

    Returns
    -------
    DataFrame, a row a claim
        paper, claim, place, published (as printed), expected, expected_low and expected_high (the
        published size that has to be excluded, scaled by the baseline's gain, with the interval
        that this gain has over seeds), here, low, high, n, alone (the verdict of
        the interval by itself), p (of the test that the quantity is at its bound), p_holm, and
        verdict: each of the two tests behind it counts only after Holm's correction over all tests
        of all claims of its paper. A verdict is one of `VERDICTS`; "cannot tell" may be followed
        by a colon and a reason.
    """
    if len(claims) != len(findings):
        raise ValueError(f"{len(claims)} claims and {len(findings)} findings: one each is needed")
    rows = [_row(claim, finding) for claim, finding in zip(claims, findings)]
    judged = pd.DataFrame(rows)
    # Two tests a claim make the family: is it at its bound, and is it as large as published?
    tests = judged[["p", "p_published"]].to_numpy(dtype=float)
    # (K, 2): both tests of all claims of a paper are corrected together. A test that was not made
    # is NaN and does not make the family larger.
    corrected = np.full(tests.shape, np.nan)
    for of_paper in judged.groupby("paper").indices.values():
        corrected[of_paper] = holm(tests[of_paper].ravel()).reshape(-1, 2)
    judged["p_holm"] = corrected[:, 0]
    judged["verdict"] = [
        _after_holm(claim, finding, row["alone"], at_bound, as_published)
        for claim, finding, (_, row), (at_bound, as_published) in zip(
            claims, findings, judged.iterrows(), corrected
        )
    ]
    return judged.drop(columns="p_published")


def write(frame: pd.DataFrame, path: Any) -> None:
    """Write a table of `judge` as CSV, numbers to six significant digits."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Fixed digits and line ends, so that the file changes only where a number does.
    frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def read(path: Any) -> pd.DataFrame:
    """The table of `judge` that `write` has written.

    Parameters
    ----------
    path : path
        Such as "data/verdicts.csv".
    """
    texts = ["paper", "claim", "place", "published", "alone", "verdict"]
    # Cells that are texts stay as they were written: "+2" is not the number 2, and an empty cell
    # is an empty text.
    frame = pd.read_csv(path, dtype=dict.fromkeys(texts, str))
    frame[texts] = frame[texts].fillna("")
    return frame


def table(frame: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """A table of `judge` for reading: paper, claim, published, scaled, here, seeds and verdict.

    *scaled* has the published size that is to be excluded where it depends on what the baseline
    gains here, with the interval that this gain has.

    Parameters
    ----------
    frame : DataFrame
        Of `judge` or `read`.
    digits : int
        Decimals of `here`.
    """
    sizes = [here(row, digits) for _, row in frame.iterrows()]
    texts = frame[["paper", "claim", "published"]].assign(scaled=scaled(frame), here=sizes)
    # A claim without a measurement has 0 seeds; its cell is left empty.
    texts["seeds"] = [str(int(n)) if n else "" for n in frame["n"]]
    return texts.assign(verdict=frame["verdict"].to_numpy())


def scaled(frame: pd.DataFrame, digits: int = 1) -> list[str]:
    """The published sizes that were scaled by seeds, with their intervals; empty for all others."""
    names = ["expected", "expected_low", "expected_high"]
    texts = []
    for value, low, high in frame[names].itertuples(index=False):
        known = np.isfinite(low)
        texts.append(f"{value:+.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]" if known else "")
    return texts


def here(row: pd.Series, digits: int = 1) -> str:
    """The size in a row of `judge` with its interval; empty where nothing was measured."""
    if not np.isfinite(row["here"]):
        return ""
    return f"{row['here']:+.{digits}f} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"


def kind(text: str) -> str:
    """The verdict without its reason, one of `VERDICTS`."""
    return text.partition(":")[0]


def _rule(above: bool, below: bool, below_published: bool) -> str:
    """The verdict by what is excluded: on which side of the bound, and of the published size."""
    # The bound decides first. The published size only divides those that clear the bound into
    # full and smaller ones, and those that are undecided into "published size excluded"
    # and "cannot tell".
    if above:
        return SMALLER if below_published else AGREES
    if below:
        return DISAGREES
    return EXCLUDED if below_published else CANNOT_TELL


def _row(claim: Claim, finding: Finding) -> dict[str, Any]:
    # The row of a claim that could not be measured. What was measured replaces its cells below.
    row: dict[str, Any] = {
        "paper": claim.paper,
        "claim": claim.claim,
        "place": claim.place,
        "published": claim.published,
        **dict.fromkeys(("expected", "expected_low", "expected_high"), np.nan),
        "here": np.nan,
        "low": np.nan,
        "high": np.nan,
        "n": 0,
        "alone": f"{CANNOT_TELL}: {finding.reason}",
        "p": np.nan,
        "p_published": np.nan,
    }
    measured = finding.measured
    if measured is None:
        return row
    # The verdict is found on the turned scale, where every claim says "above". The table shows
    # the quantity as it was measured, so edges are turned back for it.
    low, high = _turned(claim, measured)
    row |= {"here": measured.value, "low": measured.low, "high": measured.high, "n": measured.n}
    row["p"] = measured.p_value(claim.sign * claim.edge)
    row["alone"] = verdict(low, high, bound=claim.edge)
    size = published_size(claim, finding)
    if size is not None:
        row["expected"] = claim.sign * size.value
        ends = sorted((claim.sign * size.low, claim.sign * size.high))
        row["expected_low"], row["expected_high"] = ends
        row["p_published"] = size.p
        row["alone"] = _rule(low > claim.edge, high < claim.edge, size.excluded)
    row["alone"] = marked(claim, row["alone"])
    # The ends are NaN, so the verdict is "cannot tell" already; this adds the reason.
    if measured.n < 2:
        row["alone"] = f"{CANNOT_TELL}: a single seed has no interval"
    return row


def _turned(claim: Claim, measured: Measurement | Unpaired) -> tuple[float, float]:
    """The ends of the interval, turned so that the claim says above."""
    ends = (measured.low, measured.high)
    # Changing the sign also swaps the two ends.
    return ends if claim.sign > 0 else (-ends[1], -ends[0])


def _after_holm(
    claim: Claim, finding: Finding, alone: str, at_bound: float, as_published: float
) -> str:
    """The verdict with the corrected p-values of its two tests."""
    measured = finding.measured
    if measured is None or measured.n < 2:
        return alone
    value = claim.sign * measured.value
    size = published_size(claim, finding)
    # A p-value is two-sided: it says that the value is off the bound, and the value itself says
    # on which side.
    off_bound = at_bound < FAMILY_LEVEL
    found = _rule(
        above=off_bound and value > claim.edge,
        below=off_bound and value < claim.edge,
        below_published=(size is not None and as_published < FAMILY_LEVEL and value < size.value),
    )
    return marked(claim, found)


def marked(claim: Claim, found: str) -> str:
    """A verdict that could not be another one is no evidence, and says so."""
    if not claim.by_definition or found not in (AGREES, SMALLER):
        return found
    return BY_DEFINITION if found == AGREES else f"{BY_DEFINITION}: {found}"

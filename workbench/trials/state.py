"""The state of a trial: what its runs say so far, and which runs it needs next.

It follows from the settings of the trial, which never change while it runs, and from its runs that
are over. Nothing of it is stored, so that a trial goes on after any death from what is on the disk.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

from workbench import config
from workbench.analysis.curves import UNITS, Curve, Unit, name_of
from workbench.analysis.forecast import FARTHEST
from workbench.analysis.targets import rising
from workbench.labs import Lab
from workbench.records import Record, load
from workbench.trials import answer, tuning
from workbench.trials.answer import Answer
from workbench.trials.arms import Arm
from workbench.trials.cases import KEPT_COLUMNS
from workbench.trials.further import likely_pairs
from workbench.trials.tuning import FIRST_SEED, LEAST_GAIN, Point, Tuning
from workbench.utils.bounds import Count, ShareAboveZero, at_least, check_arguments, choice
from workbench.utils.validation import brief, instance_of, number, one_of, whole_number

EVALUATIONS = 4  # of a tuning run, beside the one before round 1
FINAL_EVALUATIONS = 5  # of a run of the comparison
# To each held-out problem, since evaluations take much of a short run's time: at most in tuning,
# and in the comparison where nobody has said what the lab is. The recorded runs of the leaderboard,
# read with 8 samples in place of 24, have ratios that spread 3 % wider.
TUNING_SAMPLES = 8
DEFAULT_SAMPLES = 8
# Of the logarithm of a pair's ratio, as recorded trials have it, and for how many pairs it counts.
USUAL_DEVIATION = 0.13
USUAL_PAIRS = 5
SOLVED = 0.95  # an accuracy from which on a lab has nothing left to learn


@dataclass(frozen=True)
class Settings:
    """What a trial compares, and how.

    The further attributes are arguments of `Trial`.

    Attributes
    ----------
    arms : dict from label to Arm
        The baseline first.
    looks : rising whole numbers
        After how many pairs of fresh seeds the trial looks at the answer.
    coarse : list of Point
        The grid with which the tuning of every arm begins.
    levels : dict from label to float, or None
        The level at which a ledger lets every arm be tried; empty before it was asked.
    """

    arms: Mapping[str, Arm]
    lab: Lab
    measure: str | Unit
    target: ShareAboveZero | None
    rounds: Annotated[int, at_least(EVALUATIONS)]
    looks: tuple[int, ...]
    coarse: list[Point]
    n_tuning_seeds: int
    # All fresh seeds stay below those of tuning.
    first_seed: Annotated[int, partial(whole_number, low=0, high=FIRST_SEED // 2)]
    problems_per_round: Count
    evaluate_every: Count | None
    columns: Annotated[str, choice(*KEPT_COLUMNS)]
    level: Annotated[float, partial(number, above=0, below=1)]
    forecast: Count | None = None
    levels: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.lab.held_out is None:
            raise ValueError("lab: held-out problems are needed, on which the arms are compared")
        if isinstance(self.measure, str):
            # Seconds of two runs depend on what else ran beside them.
            one_of("measure", self.measure, [unit for unit in UNITS if unit != "seconds"])
        whole_number("tuning_seeds", self.n_tuning_seeds, 1, 1000)
        if self.forecast is not None:
            whole_number("forecast", self.forecast, self.rounds, int(FARTHEST * self.rounds))

    @property
    def baseline(self) -> str:
        """The label of the baseline."""
        return next(iter(self.arms))

    @cached_property
    def same(self) -> list[str]:
        """The labels of arms that are the baseline under another name."""
        prints = {label: arm.fingerprint for label, arm in self.arms.items()}
        baseline = prints.pop(self.baseline)
        return [label for label, of_arm in prints.items() if of_arm == baseline]

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds of the tuning."""
        return [FIRST_SEED + self.first_seed + i for i in range(self.n_tuning_seeds)]

    @property
    def fresh_seeds(self) -> range:
        """The seeds of the comparison, as far as it may go."""
        return range(self.first_seed, self.first_seed + self.looks[-1])

    @property
    def tuning_lab(self) -> Lab:
        """The lab of the tuning runs, which samples less to evaluate."""
        quick = dataclasses.replace(self.lab, samples=min(self.lab.samples, TUNING_SAMPLES))
        # `replace` takes the config away, which alone says which model it is.
        if self.lab.config is not None:
            quick = quick.described({**self.lab.config, "samples": quick.samples})
        return quick

    def values(self, label: str, point: Point, seed: int) -> dict[str, Any]:
        """The parameters of a run, see `cases.PARAMETERS`."""
        # What the baseline samples in its rounds, every run samples at least.
        sampled = self.arms[self.baseline].method.allocator.sampled()
        tunes = seed >= FIRST_SEED
        evaluations = EVALUATIONS if tunes else FINAL_EVALUATIONS
        usual = max(1, self.rounds // evaluations)
        return {
            "label": label,
            "seed": seed,
            "rounds": self.rounds,
            "rollouts": sampled and self.rounds * self.problems_per_round * sampled.n,
            "learning_rate": point.learning_rate,
            "mini_batches": point.mini_batches,
            "problems_per_round": self.problems_per_round,
            "evaluate_every": usual if tunes else self.evaluate_every or usual,
            "columns": "none" if tunes else self.columns,
        }

    def describe(self) -> dict[str, Any]:
        """The settings as plain data, as `trial.json` has them."""
        names = ("target", "rounds", "level", "first_seed", "problems_per_round", "evaluate_every")
        measure = self.measure
        return {
            "baseline": self.baseline,
            "lab": self.lab.description(),
            # Two cost models of one name are two measures.
            "measure": repr(measure) if dataclasses.is_dataclass(measure) else name_of(measure),
            "looks": list(self.looks),
            "grid": [point.name for point in self.coarse],
            "tuning_seeds": self.n_tuning_seeds,
            **{name: vars(self)[name] for name in names},
            # A trial of a ledger cannot go on without it, where it would be decided more easily.
            **({} if self.levels is None else {"ledger": True}),
        }


def choose_lab(lab: Any) -> Lab:
    """The lab that somebody means: a `Lab`, the name of one, or None for the tiny lab."""
    if lab is None or isinstance(lab, str):
        name = lab or "tiny"
        lab = config.lab(name, {"samples": DEFAULT_SAMPLES} if name == "tiny" else None)
    instance_of("lab", lab, Lab, "labs.tiny()")
    return lab


def plan_looks(seeds: Any) -> tuple[int, ...]:
    """After how many pairs of seeds the trial looks, from the fewest and the most, or one number.

    Examples
    --------
    >>> plan_looks((3, 5)), plan_looks(8)
    ((3, 4, 5), (8,))
    """
    ends = tuple(seeds) if isinstance(seeds, (tuple, list)) else (seeds, seeds)
    for end in ends:
        # One pair has no interval. Fresh seeds, from `first_seed` on, stay below those of tuning.
        whole_number("seeds", end, 2, FIRST_SEED // 2)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise ValueError(f"seeds={brief(seeds)}: the fewest and the most pairs are needed")
    least, most = ends
    return tuple(range(least, most + 1))


class TrialRun(NamedTuple):
    """One run of a trial. Its seed says whether it belongs to the tuning or to the comparison."""

    label: str
    point: Point
    seed: int


@dataclass(frozen=True)
class TrialState:
    """What the runs of a trial say. Each attribute is computed once, when it is first asked for.

    Attributes
    ----------
    settings : Settings
    found : dict from TrialRun to Curve
        The runs that are over; None for one whose loss was not finite.
    failed : dict from label to text
        Arms that cannot run, and why.
    left_out : int
        How many arms earlier calls compared here that are not among those of the settings.
    """

    settings: Settings
    found: Mapping[TrialRun, Curve | None]
    failed: Mapping[str, str] = field(default_factory=dict)
    left_out: int = field(default=0, kw_only=True)

    @cached_property
    def runnable(self) -> list[str]:
        """The labels of the arms that can run and differ from the baseline, which comes first."""
        left_out = (*self.settings.same, *self.failed)
        return [label for label in self.settings.arms if label not in left_out]

    @property
    def compared(self) -> list[str]:
        """The labels of the arms that are run. A search, which drops some, says fewer."""
        return self.runnable

    # Tuning

    @cached_property
    def tuning_runs(self) -> dict[str, dict[tuning.Run, Curve | None]]:
        """The tuning runs of each arm that are over."""
        runs: dict[str, dict[tuning.Run, Curve | None]]
        runs = {label: {} for label in self.settings.arms}
        for (label, point, seed), curve in self.found.items():
            if seed >= FIRST_SEED:
                runs[label][point, seed] = curve
        return runs

    @cached_property
    def first_target(self) -> float | None:
        """The target by which all arms choose the rates that get further runs.

        The baseline's own target is known only once its tuning is complete. Until then, and
        afterwards for this purpose, what its runs on the coarse grid reached stands in its place,
        so that the baseline and an arm that is the same choose the same rates.
        """
        settings = self.settings
        if settings.target is not None:
            return settings.target
        first = settings.tuning_seeds[0]
        runs = self.tuning_runs[settings.baseline]
        if any((point, first) not in runs for point in settings.coarse):
            return None
        coarse = {(point, first): runs[point, first] for point in settings.coarse}
        return tuning.default_target(coarse, [first], settings.measure)

    def costs(self, label: str) -> dict[tuning.Run, float]:
        """What the tuning runs of an arm cost to the first target, as logarithms."""
        target = self.first_target
        assert target is not None
        measure = self.settings.measure
        return {
            run: tuning.log_cost(curve, target, measure)
            for run, curve in self.tuning_runs[label].items()
        }

    @cached_property
    def missing_tuning(self) -> dict[str, list[TrialRun]]:
        """The tuning runs that each arm needs next; none where its tuning is complete."""
        settings = self.settings
        coarse, seeds = settings.coarse, settings.tuning_seeds
        missing = {}
        for label in settings.arms:
            # What comes after the coarse grid depends on the target.
            if self.first_target is None:
                known = self.tuning_runs[label]
                left = [(point, seeds[0]) for point in coarse if (point, seeds[0]) not in known]
            else:
                left = tuning.next_runs(self.costs(label), coarse, seeds)
            missing[label] = [TrialRun(label, *run) for run in left]
        return missing

    @cached_property
    def target(self) -> float | None:
        """The accuracy that costs are counted to; None before it is known."""
        settings = self.settings
        if settings.target is not None or self.missing_tuning[settings.baseline]:
            return settings.target
        runs = self.tuning_runs[settings.baseline]
        return tuning.default_target(runs, settings.tuning_seeds, settings.measure)

    @cached_property
    def tunings(self) -> dict[str, Tuning]:
        """The tuning of each arm, as far as it is complete."""
        target = self.target
        if target is None:
            return {}
        seeds, measure = self.settings.tuning_seeds, self.settings.measure
        return {
            label: tuning.choose_rate(label, self.tuning_runs[label], seeds, target, measure)
            for label in self.compared
            if not self.missing_tuning[label]
        }

    @cached_property
    def tuning_table(self) -> pd.DataFrame:
        """A row a tuning run: arm, learning rate, seed, cost to the target, accuracies."""
        parts = [found.runs.assign(arm=label) for label, found in self.tunings.items()]
        if not parts:
            return pd.DataFrame()
        frame = pd.concat(parts, ignore_index=True)
        return frame[["arm", *frame.columns.drop("arm")]]

    # The comparison

    @cached_property
    def records(self) -> dict[str, dict[int, Record]]:
        """The records of the comparison, by label and seed, as far as they are complete."""
        records: dict[str, dict[int, Record]] = {label: {} for label in self.tunings}
        for run in self._fresh_runs():
            curve = self.found.get(run)
            if curve is not None:
                records[run.label][run.seed] = load(curve.path)
        return records

    @cached_property
    def answers(self) -> dict[str, Answer]:
        """What is known of each arm that was tuned."""
        settings = self.settings
        arms = dict(self.records)
        baseline = arms.pop(settings.baseline, {})
        if self.target is None or not baseline:
            return {}
        # A ledger has divided its budget already, so each of its arms is looked at alone.
        families = [(arms, settings.level, self.left_out)]
        if settings.levels is not None:
            families = [({label: arms[label]}, settings.levels[label], 0) for label in arms]
        errors = {
            label: tuned.error_against(self.tunings[settings.baseline])
            for label, tuned in self.tunings.items()
        }
        found: dict[str, Answer] = {}
        for family, level, left_out in families:
            found |= answer.answers(
                family,
                baseline,
                target=self.target,
                measure=settings.measure,
                baseline=settings.baseline,
                looks=settings.looks,
                level=level,
                ahead=settings.forecast,
                errors=errors,
                left_out=left_out,
            )
        return found

    @cached_property
    def excluded(self) -> dict[str, tuple[str, str]]:
        """The arms that are not compared: verdict and sentence, by label."""
        baseline = self.settings.baseline
        found = {}
        for label in self.settings.same:
            found[label] = "same", f"{label} is {baseline} under another name."
        for label, tuned in self.tunings.items():
            if not tuned.works:
                found[label] = "collapsed", f"{tuned}, so that it was not compared."
        for label, error in self.failed.items():
            found[label] = "failed", f"{label} failed: {error}."
        return found

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row an arm, see `Trial.table`."""
        rows = answer.table(self.answers)
        of_rows = [self.tunings[label] for label in rows["arm"]]
        rows["rate_low"] = [tuned.low for tuned in of_rows]
        rows["rate_high"] = [tuned.high for tuned in of_rows]
        rows["mini_batches"] = [tuned.best.mini_batches for tuned in of_rows]
        of_baseline = [self.tunings[self.settings.baseline] for _ in of_rows]
        rows["baseline_mini_batches"] = [tuned.best.mini_batches for tuned in of_baseline]
        rows["at_edge"] = [tuned.at_edge for tuned in of_rows]
        rows["collapsed"] = [tuned.collapsed for tuned in of_rows]
        rows = rows[~rows["arm"].isin(self.excluded)]
        if not self.excluded:
            return rows
        others = [
            {"arm": label, "verdict": verdict, "seeds": 0, "sentence": sentence}
            for label, (verdict, sentence) in self.excluded.items()
        ]
        return pd.DataFrame([*rows.to_dict("records"), *others], columns=rows.columns)

    # What comes next

    @cached_property
    def undecided(self) -> list[str]:
        """The arms for which further seeds are needed."""
        return [
            label
            for label, tuned in self.tunings.items()
            if label != self.settings.baseline and tuned.works
            if not (label in self.answers and self.answers[label].known)
        ]

    @cached_property
    def next_tuning(self) -> list[TrialRun]:
        """The tuning runs that the arms need next; none once all of them are tuned."""
        return [run for label in self.compared for run in self.missing_tuning[label]]

    @cached_property
    def to_look_for(self) -> list[TrialRun]:
        """The runs that are not found yet and count as soon as they are made, by whomever."""
        return self.next_tuning + [run for run in self._fresh_runs() if run not in self.found]

    def next_runs(self, at_once: int) -> list[TrialRun]:
        """The runs to make now; none where the answer is known for every arm.

        Parameters
        ----------
        at_once : int
            How many runs are made side by side.
        """
        if self.next_tuning or not self.undecided:
            return self.next_tuning
        settings = self.settings
        labels = [settings.baseline, *self.undecided]
        have = min(len(self.records[label]) for label in labels)
        # As many pairs as there are workers for, and up to the first look in any case.
        wanted = max(settings.looks[0], have + max(1, at_once // len(labels)))
        return [
            TrialRun(label, self.tunings[label].best, seed)
            for seed in settings.fresh_seeds[:wanted]
            for label in labels
            if seed not in self.records[label]
        ]

    def likely_pairs(self, label: str) -> np.ndarray:
        """How many pairs an arm will take, as `further.likely_pairs` has it."""
        settings = self.settings
        mine, other = (self.tunings[each] for each in (label, settings.baseline))
        found = self.answers.get(label)
        seen = np.log(found.ratios.values) if found and found.seeds > 1 else np.array([])
        # Runs of a pair share their draws, so a ratio varies about as much as a single run does.
        spreads = [tuned.spread for tuned in (mine, other) if tuned.spread > 0]
        usual_variance = np.mean(np.square(spreads)) if spreads else USUAL_DEVIATION**2
        squares = np.square(seen - seen.mean()).sum() if len(seen) else 0.0
        # The usual variance counts like `USUAL_PAIRS` pairs besides those that were seen.
        variance = (USUAL_PAIRS * usual_variance + squares) / (USUAL_PAIRS + len(seen))
        # The ratio that the tuning found counts like one pair for two of its seeds.
        ratio_of_tuning = float(np.clip(mine.best_cost - other.best_cost, -2, 2))
        tuning_pairs = len(settings.tuning_seeds) / 2
        pairs = tuning_pairs + len(seen)
        mean = (tuning_pairs * ratio_of_tuning + seen.sum()) / pairs
        alone = settings.level / (self.left_out + len(self.undecided))
        level = (settings.levels or {}).get(label, alone)
        return likely_pairs(
            mean,
            math.sqrt(variance / pairs),
            math.sqrt(variance),
            settings.looks,
            level,
            seen=seen.tolist(),
            error=mine.error_against(other),
        )

    def progress(self) -> tuple[str, int, list[int]]:
        """Where the trial stands, and how many runs are left.

        Returns
        -------
        text : str
        most : int
            How many runs it takes at most.
        likely : (3,) int
            In four trials of five at least the first number, at most the last, and half the time
            more than the second.
        """
        settings = self.settings
        if self.next_tuning:
            total = len(self.compared) * tuning.effort(settings.coarse, settings.tuning_seeds)
            recorded = sum(len(self.tuning_runs[label]) for label in self.compared)
            left = total - recorded
            return f"tuning: {recorded} of {total} runs are recorded", left, [left] * 3
        least, most = settings.looks[0], settings.looks[-1]
        pairs = [len(self.records[label]) for label in (settings.baseline, *self.undecided)]
        likely = np.array([self.likely_pairs(label) for label in self.undecided])
        # The baseline makes as many as the arm that takes longest.
        needed = np.vstack([likely.max(axis=0), likely]) - np.array(pairs)[:, None]
        text = (
            f"comparison to an accuracy of {self.target:.2f}: {min(pairs)} pairs are recorded, of "
            f"{least} to {most}"
        )
        left = sum(most - n for n in pairs)
        return text, left, np.ceil(needed.clip(min=0).sum(axis=0)).astype(int).tolist()

    def check_target(self) -> None:
        """ValueError as soon as it is clear that the baseline gives no target, or misses it."""
        baseline, lab = self.settings.baseline, self.settings.lab
        missing = self.missing_tuning[baseline]
        curves = [curve for curve in self.tuning_runs[baseline].values() if curve is not None]
        if not curves:
            if missing:
                return
            raise ValueError(
                f"{baseline}: the loss of every tuning run was not finite; try lower rates"
            )
        start = max(float(curve.scores[0]) for curve in curves)
        if start >= SOLVED:
            raise ValueError(
                f"lab {lab.name!r}: it is exhausted: {baseline} begins at an accuracy of "
                f"{start:.2f}, so nothing is left to learn; take harder problems"
            )
        given = self.settings.target
        best = max(float(rising(curve.scores)[-1]) for curve in curves)
        if given is not None and (start >= given or (best < given and not missing)):
            raise ValueError(
                f"target={given:g}: runs of {baseline} begin at {start:.2f} and reach {best:.2f} "
                f"in {self.settings.rounds} rounds; a target between these is needed"
            )
        if missing:
            return
        # A fresh run that begins above the target, by the luck of its evaluation, says nothing.
        luck = 3 * math.sqrt(0.25 / (len(lab.held_out or ()) * lab.samples))
        if given is None and (self.target or 0) < start + max(LEAST_GAIN, luck):
            raise ValueError(
                f"{baseline}: at no learning rate did its accuracy rise far enough above its "
                f"start of {start:.2f} (best {best:.2f}), so there is no target; try other rates, "
                "more rounds, more held-out problems or another lab"
            )

    def _fresh_runs(self) -> list[TrialRun]:
        """The runs that the comparison of the arms that are tuned may come to."""
        return [
            TrialRun(label, tuned.best, seed)
            for label, tuned in self.tunings.items()
            for seed in self.settings.fresh_seeds
        ]

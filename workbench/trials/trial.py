"""A trial: methods against a baseline, each at its best learning rate, until the answer is known.

    trial = wb.trial([mine, "pods"], against="grpo", lab=wb.labs.tiny(), out="runs/trial")
    print(trial)

Every arm is tuned with the same effort, on seeds of its own (`workbench.trials.tuning`). Then fresh
seeds are run in pairs, one run of each arm and one of the baseline. After a pair the trial looks
at the answer (`workbench.trials.answer`), and an arm whose answer is known gets no further seeds.

On disk, under the output directory: `trial.json`, what is compared and how; `tuning` and `runs`,
the records; `logs`. Everything else follows from the records. The same call therefore goes on
after any death, and a call with other settings or with an edited class is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import config
from workbench.analysis.curves import UNITS, Curve, Unit, each, name_of, read
from workbench.analysis.sequential import ALPHA
from workbench.analysis.targets import rising
from workbench.labs import Lab
from workbench.records import Record, load
from workbench.records.files import read_ordinary, replacing
from workbench.records.tables import reading
from workbench.trials import engine, tuning
from workbench.trials.answer import Answer
from workbench.trials.answer import answers as find_answers
from workbench.trials.answer import table as answer_table
from workbench.trials.arms import LOGS, Carried, carried_lab
from workbench.trials.arms import arms as made_arms
from workbench.trials.cases import KEPT_COLUMNS, Case, prepare
from workbench.trials.tuning import FIRST_SEED, LEAST_GAIN, Point, Tuning
from workbench.utils.descriptions import describe, differences
from workbench.utils.numbers import duration
from workbench.utils.validation import instance_of, number, one_of, share, shown, whole_number

PLAN = "trial.json"
LOCK = "trial.lock"
DIVERGED = "NonFinite"  # how the outcome begins of a run whose loss was not finite
EVALUATIONS = 4  # of a tuning run, beside the one before round 1
FINAL_EVALUATIONS = 5  # of a run of the comparison
TUNING_SAMPLES = 8  # at most, to each held-out problem: evaluations take half of a short run's time
SOLVED = 0.95  # an accuracy from which on a lab has nothing left to learn


def trial(arms: Any, **options: Any) -> Trial:
    """Compare methods with a baseline, each at its best; see `Trial`, whose arguments these are.

    Returns
    -------
    Trial
        With its runs made: print it, look at its `table`, or `plot` it.
    """
    return Trial(arms, **options).run()


class Trial:
    """A comparison of methods with a baseline, each at its best.

    Parameters
    ----------
    arms : arm, list of arms, or dict from label to arm
        A `Method`; the name of one; "module:function"; or a class, a function or a slot value of
        your own, also from a notebook. A value of a slot takes its place in the baseline.
    against : arm
        The baseline.
    lab : Lab or name, optional
        None for the tiny lab.
    out : path
        Directory of the trial. If it holds this trial already, the trial goes on from there.
    measure : str or Unit
        What is spent on the way to the target: "rollouts", "flops", "round", tokens, or a
        `CostModel`. Seconds are no measure, since those of two runs depend on what else ran.
    target : float, optional
        Held-out accuracy. None for what the tuned baseline reaches in three fifths of its rounds.
    rounds : int
        Of every run. An arm that samples less than the baseline goes on until it has sampled as
        much.
    seeds : int or (int, int)
        The fewest and the most pairs of fresh seeds. With a single number exactly so many pairs are
        run, and the trial looks at the answer once, after the last of them.
    rates : numbers, optional
        The coarse grid of learning rates; None for 1/4, 1/2, 1 and 2 times the lab's.
    mini_batches : int or list of int, optional
        Optimizer steps of a round. Several are tuned, each with all rates.
    tuning_seeds : int
    first_seed : int
        The fresh seeds begin with this number, and the seeds of tuning with 1,000,000 plus this
        number. A trial that is repeated with another number has seeds that the first did not have.
    problems_per_round : int
    evaluate_every : int, optional
        Rounds between evaluations in the comparison; None for a fifth of the rounds.
    columns : {"none", "outcomes", "scores", "all"}
        What is kept of the rollouts of the comparison, see `workbench.trials.cases.KEPT_COLUMNS`.
    level : float
        Probability of calling at least one arm better or worse although it is not.
    jobs, ray, gpus
        As for `engine.at_work`.
    report : function
        Called with lines of text on the progress.

    Raises
    ------
    ValueError
        For what is wrong with the arguments, before anything runs.
    """

    def __init__(
        self,
        arms: Any,
        *,
        against: Any = "grpo",
        lab: Lab | str | None = None,
        out: Any,
        measure: Any = "rollouts",
        target: float | None = None,
        rounds: int = 60,
        seeds: int | tuple[int, int] = (5, 20),
        rates: Iterable[float] | None = None,
        mini_batches: int | Iterable[int] | None = None,
        tuning_seeds: int = 4,
        first_seed: int = 0,
        problems_per_round: int = 32,
        evaluate_every: int | None = None,
        columns: str = "none",
        level: float = ALPHA,
        jobs: int | None = None,
        ray: str | None = None,
        gpus: float = 0.0,
        report: Callable[[str], Any] = print,
    ) -> None:
        engine.check_arguments(jobs, ray, gpus)
        whole_number("rounds", rounds, EVALUATIONS)
        whole_number("tuning_seeds", tuning_seeds, 1, 1000)
        whole_number("problems_per_round", problems_per_round, 1)
        whole_number("first_seed", first_seed, 0, FIRST_SEED // 2)
        one_of("columns", columns, KEPT_COLUMNS)
        if target is not None:
            share("target", target, zero=False)
        if evaluate_every is not None:
            whole_number("evaluate_every", evaluate_every, 1)
        number("level", level, above=0, below=1)
        self.arms = {arm.label: arm for arm in made_arms(arms, against)}
        self.baseline = next(iter(self.arms))
        self.lab = _checked_lab(lab)
        self.measure = _checked_measure(measure)
        self.looks = _looks(seeds)
        self.level = level
        self.rounds = rounds
        self.given_target = target
        self.evaluate_every = evaluate_every
        self.columns = columns
        self.problems_per_round = problems_per_round
        steps = mini_batches if isinstance(mini_batches, Iterable) else [mini_batches]
        self.coarse = tuning.coarse_grid(self.lab.learning_rate, rates, steps)
        self.first_seed = first_seed
        self.tuning_seeds = [FIRST_SEED + first_seed + i for i in range(tuning_seeds)]
        self.out = Path(out).absolute()
        self._workers: Any = {"jobs": jobs, "ray": ray, "gpus": gpus, "report": report}
        self._at_once = jobs or engine.cores()
        self._say = report
        self._carried = {label: arm.carried() for label, arm in self.arms.items()}
        # Once here, so that no run has to look through the answers again.
        self.lab.check_answers()
        self._carried_lab = carried_lab(self.lab)
        quick = dataclasses.replace(self.lab, samples=min(self.lab.samples, TUNING_SAMPLES))
        # `replace` takes the config away, which alone says which model it is.
        if self.lab.config is not None:
            quick = quick.described({**self.lab.config, "samples": quick.samples})
        self._tuning_lab = carried_lab(quick)
        baseline = self.arms[self.baseline].fingerprint
        self.same = [
            label
            for label, arm in self.arms.items()
            if label != self.baseline and arm.fingerprint == baseline
        ]
        self.failed: dict[str, str] = {}
        self._shown: tuple[Any, Any] = (None, None)  # the figure, and its place in a notebook
        # Of runs that are over, by name, so that none is read twice; None for one that diverged.
        self._courses: dict[str, Curve | None] = {}
        # Other trials beside this one, whose runs are used where they are the same.
        plans = sorted(self.out.parent.glob(f"*/{PLAN}"))
        self._beside = [plan.parent for plan in plans if plan.parent != self.out]
        self._seconds: list[float] = []  # of the runs that this call has made
        self._check_directory()
        self._check_arms()

    # What is recorded

    @property
    def target(self) -> float | None:
        """The accuracy that costs are counted to; None before it is known."""
        if self.given_target is not None:
            return self.given_target
        runs, missing = self._tuning_runs(self.baseline)
        if missing:
            return None
        return tuning.default_target(runs, self.tuning_seeds, self.measure)

    @property
    def tunings(self) -> dict[str, Tuning]:
        """The tuning of each arm, by label, as far as it is complete."""
        target = self.target
        if target is None:
            return {}
        found = {}
        for label in self._compared():
            runs, missing = self._tuning_runs(label)
            if not missing:
                found[label] = tuning.tuned(label, runs, self.tuning_seeds, target, self.measure)
        return found

    @property
    def tuning(self) -> pd.DataFrame:
        """A row a tuning run: arm, learning rate, seed, cost to the target, accuracies."""
        curves = [found.curve.assign(arm=label) for label, found in self.tunings.items()]
        if not curves:
            return pd.DataFrame()
        frame = pd.concat(curves, ignore_index=True)
        return frame[["arm", *frame.columns.drop("arm")]]

    @property
    def records(self) -> dict[str, dict[int, Record]]:
        """The records of the comparison, by label and seed, as far as they are complete."""
        found: dict[str, dict[int, Record]] = {}
        for label, tuned in self.tunings.items():
            found[label] = {}
            for seed in range(self.first_seed, self.first_seed + self.looks[-1]):
                case = self._final(label, tuned, seed)
                curve = self._courses[case.name] if self._is_over(case) else None
                if curve is not None:
                    found[label][seed] = load(curve.path)
        return found

    @property
    def answers(self) -> dict[str, Answer]:
        """What is known of each arm that was tuned, by label."""
        target = self.target
        records = self.records
        baseline = records.pop(self.baseline, {})
        if target is None or not baseline:
            return {}
        return find_answers(
            records,
            baseline,
            target=target,
            measure=self.measure,
            baseline=self.baseline,
            looks=self.looks,
            level=self.level,
            tuned=True,
        )

    @property
    def table(self) -> pd.DataFrame:
        """A row an arm: arm, verdict, ratio, low, high, seeds, learning_rate and further columns.

        The verdict is that of `answer.Answer`; or "same" for the baseline under another name,
        "collapsed" for an arm that no learning rate made better, and "failed".
        """
        rows = answer_table(self.answers)
        tunings = self.tunings
        of_rows = [tunings[label] for label in rows["arm"]]
        rows["rate_low"] = [tuned.low for tuned in of_rows]
        rows["rate_high"] = [tuned.high for tuned in of_rows]
        rows["mini_batches"] = [tuned.best.mini_batches for tuned in of_rows]
        rows["at_edge"] = [tuned.at_edge for tuned in of_rows]
        rows["collapsed"] = [tuned.collapsed for tuned in of_rows]
        put_aside = self._put_aside()
        rows = rows[~rows["arm"].isin(put_aside)]
        aside = [
            {"arm": label, "verdict": verdict, "seeds": 0, "sentence": sentence}
            for label, (verdict, sentence) in put_aside.items()
        ]
        if not aside:
            return rows
        return pd.DataFrame([*rows.to_dict("records"), *aside], columns=rows.columns)

    def _put_aside(self) -> dict[str, tuple[str, str]]:
        """The arms without runs of the comparison: verdict and sentence, by label."""
        found = {}
        for label in self.same:
            found[label] = "same", f"{label} is {self.baseline} under another name."
        for label, tuned in self.tunings.items():
            if not tuned.works:
                found[label] = "collapsed", f"{tuned}, so that it was not compared."
        for label, error in self.failed.items():
            found[label] = "failed", f"{label} failed: {error}."
        return found

    def __str__(self) -> str:
        sentences = list(self.table["sentence"])
        return "\n".join(sentences) or f"{self!r}: nothing is known yet"

    def __repr__(self) -> str:
        others = ", ".join(label for label in self.arms if label != self.baseline)
        return f"Trial({others} against {self.baseline}, out={str(self.out)!r})"

    def _repr_html_(self) -> str:
        from html import escape

        lines = "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())
        return lines + self.table.to_html(index=False, float_format="%.3g")

    def plot(self, figure: Any = None) -> Any:
        """Learning curves, cost to the target by seed, tuning, and the price of sampling.

        Parameters
        ----------
        figure : Figure, optional
            To draw on; a new one by default.

        Raises
        ------
        ValueError
            Before the first run of the comparison is complete.
        """
        from workbench.plots import trial as draw

        return draw(**self._found(), figure=figure)

    def report(self, path: Any) -> Path:
        """Write what was found and why as one HTML file, and return where it is.

        Parameters
        ----------
        path : path

        Raises
        ------
        ValueError
            Before the first run of the comparison is complete.
        """
        from workbench.reports import trial as write

        return write(path=path, **self._found())

    def _found(self) -> dict[str, Any]:
        """What figure and report are made of."""
        records = self.records
        if not records.get(self.baseline):
            raise ValueError(f"out={str(self.out)!r}: no run of the comparison is complete yet")
        return {
            "records": records,
            "table": self.table,
            "tuning": self.tuning,
            "baseline": self.baseline,
            "target": self.target,
            "measure": self.measure,
        }

    # Making the runs

    def run(self) -> Trial:
        """Make the runs that are missing, until the answer is known for every arm."""
        self.failed.clear()
        with engine.only_one(self.out / LOCK, self._say):
            # Again, since another call may have written its plan in the meantime.
            self._check_directory()
            self._write_plan()
            for label in self.same:
                self._say(f"{label} is {self.baseline} under another name, so no run is made")
            if len(self._compared()) < 2:
                return self
            with engine.at_work(**self._workers, ended=self._ended) as work_off:
                self._tune(work_off)
                self._compare(work_off)
        made = [curve for curve in self._courses.values() if curve is not None]
        used = sum(not curve.path.is_relative_to(self.out) for curve in made)
        if used:
            self._say(f"{used} runs of trials beside this one were used again")
        return self

    def _tune(self, work_off: Callable[[Sequence[Case]], None]) -> None:
        """Make the tuning runs of all arms, stage by stage."""
        while True:
            self._check_target()
            recorded = 0
            cases = []
            for label in self._compared():
                runs, missing = self._tuning_runs(label)
                recorded += len(runs)
                cases += [self._tuning(label, point, seed) for point, seed in missing]
            if not cases:
                break
            total = len(self._compared()) * tuning.effort(self.coarse, self.tuning_seeds)
            self._say(
                f"tuning: {recorded} of {total} runs are recorded; {self._time(total - recorded)}"
            )
            work_off(cases)
        for found in self.tunings.values():
            self._say(str(found))

    def _compare(self, work_off: Callable[[Sequence[Case]], None]) -> None:
        """Make pairs of fresh seeds until the answer is known for every arm."""
        least, most = self.looks[0], self.looks[-1]
        while waiting := self._undecided():
            records = self.records
            labels = [self.baseline, *waiting]
            have = min(len(records[label]) for label in labels)
            # As many pairs as there are workers for, and up to the first look in any case.
            at_once = max(1, self._at_once // len(labels))
            wanted = min(max(least, have + at_once), most)
            cases = [
                self._final(label, self.tunings[label], seed)
                for seed in range(self.first_seed, self.first_seed + wanted)
                for label in labels
                if seed not in records[label]
            ]
            left = sum(most - len(records[label]) for label in labels)
            self._say(
                f"comparison to an accuracy of {self.target:.2f}: {have} pairs are recorded, of "
                f"{least} to {most}; {self._time(left)}"
            )
            work_off(cases)
            self._say(str(self))
            self._redraw()

    def _redraw(self) -> None:
        """Show the figure in a notebook, in the place of the one of the look before."""
        # Matplotlib takes a while to load, and outside a notebook nothing is drawn.
        if "IPython" in sys.modules:
            from workbench.plots.curves import redraw

            self._shown = redraw(self.plot, *self._shown)

    def _undecided(self) -> list[str]:
        """The arms for which further seeds are needed."""
        answers = self.answers
        return [
            label
            for label, tuned in self.tunings.items()
            if label in self._compared() and label != self.baseline and tuned.works
            if not (label in answers and answers[label].known)
        ]

    def _ended(self, case: Case) -> None:
        """Take note of a run that has ended; an arm that cannot run is put aside."""
        outcome = case.outcome
        if outcome["status"] == "done":
            self._seconds.append(outcome["seconds"])
            # It may have failed in an earlier call.
            self._courses.pop(case.name, None)
            return
        label = case.values["label"]
        # That a tuning run diverged at its rate is an answer too.
        if label in self.failed or (_diverged(case) and case.values["seed"] >= FIRST_SEED):
            return
        self.failed[label] = outcome["error"]
        said = (
            f"{label}: {case.name} failed: {outcome['error']}; its log is "
            f"{os.path.relpath(case.logs)}/log.txt. The same call goes on once that is mended; "
            "an arm whose code was edited needs another label"
        )
        if label == self.baseline or len(self._compared()) < 2:
            raise ValueError(said)
        self._say(f"{said}; the other arms go on")

    def _time(self, runs: int) -> str:
        """How many runs are left, and how long they take at the pace of those of this call."""
        if not self._seconds:
            return f"at most {runs} to make; how long that takes is said once runs have ended"
        seconds = statistics.mean(self._seconds) * math.ceil(runs / self._at_once)
        return f"at most {runs} to make, about {duration(seconds)} as runs take here now"

    def _check_target(self) -> None:
        """ValueError as soon as it is clear that the baseline gives no target, or misses it."""
        runs, missing = self._tuning_runs(self.baseline)
        curves = [curve for curve in runs.values() if curve is not None]
        if not curves:
            if missing:
                return
            raise ValueError(
                f"{self.baseline}: the loss of every tuning run was not finite; try lower rates"
            )
        start = max(float(curve.scores[0]) for curve in curves)
        if start >= SOLVED:
            raise ValueError(
                f"lab {self.lab.name!r}: it is exhausted: {self.baseline} begins at an accuracy of "
                f"{start:.2f}, so nothing is left to learn; take harder problems"
            )
        given = self.given_target
        if given is not None and start >= given:
            raise ValueError(
                f"target={given:g}: runs begin at {start:.2f}; the target must lie above that"
            )
        if missing:
            return
        best = max(float(rising(curve.scores)[-1]) for curve in curves)
        if given is not None and best < given:
            raise ValueError(
                f"target={given:g}: {self.baseline} reaches {best:.2f} in {self.rounds} rounds at "
                "its best learning rate; choose a lower target, or more rounds"
            )
        # A fresh run that begins above the target, by the luck of its evaluation, says nothing.
        luck = 3 * math.sqrt(0.25 / (len(self.lab.held_out or ()) * self.lab.samples))
        if given is None and self.target < start + max(LEAST_GAIN, luck):
            raise ValueError(
                f"{self.baseline}: at no learning rate did its accuracy rise far enough above its "
                f"start of {start:.2f} (best {best:.2f}), so there is no target; try other rates, "
                "more rounds, more held-out problems or another lab"
            )

    # Which runs there are

    def _compared(self) -> list[str]:
        """The labels of the arms that are run, the baseline first."""
        return [label for label in self.arms if label not in (*self.same, *self.failed)]

    def _tuning_runs(
        self, label: str
    ) -> tuple[dict[tuple[Point, int], Curve | None], list[tuple[Point, int]]]:
        """The tuning runs of an arm that are over, and those that it needs next."""
        target = self._first_target()
        runs: dict[tuple[Point, int], Curve | None] = {}
        while True:
            if target is None:
                # What comes after the coarse grid depends on the target.
                missing = [run for run in self._coarse_runs() if run not in runs]
            else:
                costs = {run: self._cost(curve, target) for run, curve in runs.items()}
                missing = tuning.next_runs(costs, self.coarse, self.tuning_seeds)
            over = self._over(label, missing)
            if not over:
                return runs, missing
            runs |= over

    def _coarse_runs(self) -> list[tuple[Point, int]]:
        """The runs with which the tuning of every arm begins."""
        return [(point, self.tuning_seeds[0]) for point in self.coarse]

    def _over(
        self, label: str, runs: Iterable[tuple[Point, int]]
    ) -> dict[tuple[Point, int], Curve | None]:
        """Those of some tuning runs of an arm that are over."""
        cases = {run: self._tuning(label, *run) for run in runs}
        return {run: self._courses[case.name] for run, case in cases.items() if self._is_over(case)}

    def _first_target(self) -> float | None:
        """The target by which all arms choose the rates that get further runs.

        The baseline's own target is known only once its tuning is complete. Until then, and
        afterwards for this purpose, what its runs on the coarse grid reached stands in its place,
        so that the baseline and an arm that is the same choose the same rates.
        """
        if self.given_target is not None:
            return self.given_target
        over = self._over(self.baseline, self._coarse_runs())
        if len(over) < len(self.coarse):
            return None
        return tuning.default_target(over, self.tuning_seeds[:1], self.measure)

    def _cost(self, curve: Curve | None, target: float) -> float:
        """What tuning makes small: the logarithm of the cost to a target."""
        return math.inf if curve is None else tuning.log_cost(curve, target, self.measure)

    def _is_over(self, case: Case) -> bool:
        """Whether a run is made, or diverged; ValueError for another run in its place."""
        if case.name in self._courses:
            return True
        for folder in (self.out, *self._beside):
            logs = folder / LOGS / case.name
            made = dataclasses.replace(case, record=folder / case.name, logs=logs)
            if not (made.finished or _diverged(made)):
                continue
            # The fingerprint is that of method, lab, seed and all settings.
            if made.outcome["fingerprint"] == case.fingerprint():
                curve = None
                if not _diverged(made):
                    [curve] = each(read([load(made.record)]))
                self._courses[case.name] = curve
                return True
            if folder == self.out:
                raise ValueError(
                    f"out={str(self.out)!r}: {case.name} was made there by another definition of "
                    f"{case.values['label']!r} or with other settings; name another directory, or "
                    "give the arm another label"
                )
        return False

    def _tuning(self, label: str, point: Point, seed: int) -> Case:
        """A run of the tuning."""
        name = f"tuning/{label}/{point.name}/seed-{seed}"
        every = max(1, self.rounds // EVALUATIONS)
        return self._case(name, label, point, seed, every, self._tuning_lab, "none")

    def _final(self, label: str, tuned: Tuning, seed: int) -> Case:
        """A run of the comparison."""
        name = f"runs/{label}/seed-{seed}"
        every = self.evaluate_every or max(1, self.rounds // FINAL_EVALUATIONS)
        return self._case(name, label, tuned.best, seed, every, self._carried_lab, self.columns)

    def _case(
        self,
        name: str,
        label: str,
        point: Point,
        seed: int,
        evaluate_every: int,
        lab: Carried,
        columns: str,
    ) -> Case:
        # What the baseline samples in its rounds, every run samples at least.
        sampled = self.arms[self.baseline].method.allocator.sampled()
        values = {
            "label": label,
            "seed": seed,
            "rounds": self.rounds,
            "rollouts": sampled and self.rounds * self.problems_per_round * sampled.n,
            "learning_rate": point.learning_rate,
            "mini_batches": point.mini_batches,
            "problems_per_round": self.problems_per_round,
            "evaluate_every": evaluate_every,
            "columns": columns,
        }
        logs = self.out / LOGS / name
        return Case(name, values, self.out / name, logs, own=self._carried[label], lab=lab)

    # The plan on disk

    def _plan(self) -> dict[str, Any]:
        return {
            "settings": {
                "baseline": self.baseline,
                "lab": self.lab.description(),
                "lab_digest": self._carried_lab.fingerprint,
                "measure": _text_of(self.measure),
                "target": self.given_target,
                "rounds": self.rounds,
                "looks": list(self.looks),
                "level": self.level,
                "grid": [point.name for point in self.coarse],
                "tuning_seeds": len(self.tuning_seeds),
                "first_seed": self.first_seed,
                "problems_per_round": self.problems_per_round,
                "evaluate_every": self.evaluate_every,
            },
            "arms": {
                label: {
                    "method": describe(arm.method),
                    "fingerprint": self._carried[label].fingerprint,
                }
                for label, arm in self.arms.items()
            },
        }

    def _check_directory(self) -> None:
        """ValueError unless the directory holds this trial, or nothing yet."""
        engine.check_directory(self.out, PLAN, LOCK, "trial")
        # By way of a text, as what is recorded.
        ours = json.loads(json.dumps(self._plan()))
        theirs = self._recorded_plan() or ours
        theirs["settings"].setdefault("first_seed", 0)  # plans of earlier versions have none
        different = differences(ours["settings"], theirs["settings"])
        if different:
            raise ValueError(
                f"out={str(self.out)!r} holds a trial of other settings (asked for, recorded): "
                f"{'; '.join(different[:3])}; name another directory"
            )
        for label, arm in ours["arms"].items():
            known = theirs["arms"].get(label, arm)
            if known != arm:
                changed = differences(arm["method"], known["method"])
                what = "; ".join(changed[:3]) or "its code was edited since"
                raise ValueError(
                    f"out={str(self.out)!r}: {label!r} was another arm there (now, recorded): "
                    f"{what}; give it another label, or name another directory"
                )

    def _write_plan(self) -> None:
        """Write what is compared and how; arms of earlier calls stay in it."""
        plan = self._plan()
        plan["arms"] = self._recorded_plan().get("arms", {}) | plan["arms"]
        with replacing(self.out / PLAN) as temporary:
            temporary.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")

    def _recorded_plan(self) -> dict[str, Any]:
        """What an earlier call has written; empty before the first one."""
        path = self.out / PLAN
        if not path.exists():
            return {}
        with reading(path):
            plan = json.loads(read_ordinary(path))
            return {name: dict(plan[name]) for name in ("settings", "arms")}

    def _check_arms(self) -> None:
        """ValueError for an arm that cannot run, by what can be seen without running it."""
        for label in self._compared():
            try:
                prepare(self._tuning(label, self.coarse[0], self.tuning_seeds[0]))
            except ValueError as error:
                raise ValueError(f"arm {label!r}: {error}") from None


# The arguments are written once, in `Trial`, and help shows them here as well.
trial.__signature__ = inspect.signature(Trial)  # type: ignore[attr-defined]


def _checked_lab(lab: Any) -> Lab:
    if lab is None or isinstance(lab, str):
        lab = config.lab(lab or "tiny")
    instance_of("lab", lab, Lab, "labs.tiny()")
    if lab.held_out is None:
        raise ValueError("lab: held-out problems are needed, on which the arms are compared")
    return lab


def _checked_measure(measure: Any) -> Any:
    if measure == "seconds":
        raise ValueError(
            "measure='seconds': seconds of two runs depend on what else ran beside them; take a "
            "cost.CostModel, or 'rollouts' or 'flops'"
        )
    if isinstance(measure, str):
        one_of("measure", measure, [unit for unit in UNITS if unit != "seconds"])
    elif not callable(getattr(measure, "per_round", None)):
        raise ValueError(f"measure={shown(measure)}: 'rollouts' or a cost.CostModel is needed")
    return measure


def _text_of(measure: str | Unit) -> str:
    """What tells a measure from every other one, also from a cost model of the same name."""
    return repr(measure) if dataclasses.is_dataclass(measure) else name_of(measure)


def _looks(seeds: Any) -> tuple[int, ...]:
    """After how many pairs of seeds the trial is looked at."""
    ends = tuple(seeds) if isinstance(seeds, (tuple, list)) else (seeds, seeds)
    for end in ends:
        # One pair has no interval. Fresh seeds, from `first_seed` on, stay below those of tuning.
        whole_number("seeds", end, 2, FIRST_SEED // 2)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise ValueError(f"seeds={shown(seeds)}: the fewest and the most pairs are needed")
    least, most = ends
    return tuple(range(least, most + 1))


def _diverged(case: Case) -> bool:
    return case.outcome.get("error", "").startswith(DIVERGED)

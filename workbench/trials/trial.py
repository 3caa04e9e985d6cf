"""A trial: methods against a baseline, each at its best learning rate, until the answer is known.

    trial = wb.trial([mine, "pods"], against="grpo", lab=wb.labs.tiny(), out="runs/trial")
    print(trial)

Every arm is tuned with the same effort, on seeds of its own (`workbench.trials.tuning`). Then fresh
seeds are run in pairs, one run of each arm and one of the baseline. After a pair the trial looks
at the answer (`workbench.trials.answer`), and an arm whose answer is known gets no further seeds.

On disk, under the output directory: `trial.json`, what is compared and how; `tuning` and `runs`,
the records; `logs`. Everything else follows from the records (`workbench.trials.state`). The same
call therefore goes on after any death, and a call with other settings or with an edited class is
refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.curves import Curve, each, read
from workbench.analysis.sequential import ALPHA
from workbench.labs import Lab
from workbench.records import Record, RecordWarning, damage_of, load, record_paths
from workbench.records.files import read_ordinary, write
from workbench.records.manifest import check_conditions
from workbench.records.tables import reading
from workbench.trials import engine, tuning
from workbench.trials.answer import Answer
from workbench.trials.arms import make_arms
from workbench.trials.cases import Case, prepare
from workbench.trials.fingerprints import digest_of, pickle_lab
from workbench.trials.ledger import Ledger
from workbench.trials.state import (
    EVALUATIONS,
    FINAL_EVALUATIONS,
    Settings,
    TrialRun,
    TrialState,
    choose_lab,
    plan_looks,
)
from workbench.trials.tuning import FIRST_SEED, Point
from workbench.utils.descriptions import describe, differences
from workbench.utils.labels import LOGS, to_folder
from workbench.utils.numbers import duration
from workbench.utils.validation import output

PLAN = "trial.json"
LOCK = "trial.lock"
DIVERGED = "NonFinite"  # how the error of a run begins whose loss was not finite


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
        None, or "tiny", for the tiny lab with 8 samples of each held-out problem: with 24, as
        `labs.tiny` has them, a run takes a fifth longer and ratios spread 3 % less.
    out : path
        Directory of the trial. If it holds this trial already, the trial goes on from there.
    measure : str or Unit
        What is spent on the way to the target: "rollouts", "flops", "round", "tokens_sampled",
        "tokens_trained", or a `CostModel`. Seconds are no measure, since those of two runs depend
        on what else ran.
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
        Seeds of the tuning. The first runs at every rate, each further one at the better half of
        those that are left.
    first_seed : int, optional
        The fresh seeds begin with this number, and the seeds of tuning with 1,000,000 plus this
        number. A trial that is repeated with another number has seeds that the first did not have.
        None for 0, or for seeds that no trial of the ledger had.
    problems_per_round : int
        Problems that a round begins with.
    evaluate_every : int, optional
        Rounds between evaluations in the comparison; None for a fifth of the rounds.
    columns : {"sample", "none", "outcomes", "scores", "all"}
        What is kept of the rollouts of the comparison, see `workbench.trials.cases.KEPT_COLUMNS`.
        A sample has at most `SAMPLE_MB` (a quarter of a megabyte) a run.
    level : float, optional
        Probability of calling at least one arm better or worse although it is not; None for 5 %.
        With a ledger it is the level of the whole ledger.
    mixed : bool
        Whether runs count, or go on, that were made with other versions of packages, other code of
        this package, or on another device.
    ledger : path, optional
        A directory. Each arm is charged to the error budget of all trials that name it, and has
        fresh seeds that none of them had, see `workbench.trials.ledger`.
    forecast : int, optional
        Rounds, from `rounds` to four times as many. Sentence, table and figure say where every arm
        will be when it has spent what the baseline spends in them; None for twice `rounds`.
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
        first_seed: int | None = None,
        problems_per_round: int = 32,
        evaluate_every: int | None = None,
        columns: str = "sample",
        level: float | None = None,
        mixed: bool = False,
        ledger: Any = None,
        forecast: int | None = None,
        jobs: int | None = None,
        ray: str | None = None,
        gpus: float = 0.0,
        report: Callable[[str], Any] = print,
    ) -> None:
        engine.check_arguments(jobs, ray, gpus)
        self.out = output("out", out)
        lab = choose_lab(lab)
        steps = mini_batches if isinstance(mini_batches, Iterable) else [mini_batches]
        self._ledger = None if ledger is None else Ledger(ledger, level)
        if self._ledger and self._ledger.path.is_relative_to(self.out):
            raise ValueError(f"ledger={str(ledger)!r}: a directory outside of `out` is needed")
        self._given_seed = first_seed
        self.settings = Settings(
            arms={arm.label: arm for arm in make_arms(arms, against)},
            lab=lab,
            measure=measure,
            target=target,
            rounds=rounds,
            looks=plan_looks(seeds),
            coarse=tuning.coarse_grid(lab.learning_rate, rates, steps),
            n_tuning_seeds=tuning_seeds,
            first_seed=0 if first_seed is None else first_seed,
            problems_per_round=problems_per_round,
            evaluate_every=evaluate_every,
            columns=columns,
            level=self._ledger.level if self._ledger else ALPHA if level is None else level,
            forecast=forecast,
            levels=None if ledger is None else {},
        )
        self._mixed = mixed
        self._workers: Any = {"jobs": jobs, "ray": ray, "gpus": gpus, "report": report}
        self._at_once = jobs or engine.cores()
        self._report_line = report
        self._methods = {label: arm.pickle() for label, arm in self.settings.arms.items()}
        # Once here, so that no run has to look through the answers again.
        lab.check_answers()
        self._lab = pickle_lab(lab)
        self._tuning_lab = pickle_lab(self.settings.tuning_lab)
        self._found: dict[TrialRun, Curve | None] = {}  # so that no run is read twice
        self._failed: dict[str, str] = {}
        self._weights: dict[int, str | None] = {}  # that runs began with, by seed
        # The directories of trials beside this one, whose runs are used where they are the same.
        plans = sorted(self.out.parent.glob(f"*/{PLAN}"))
        self._beside = [plan.parent for plan in plans if plan.parent != self.out]
        self._state = self.make_state()
        if self._ledger:
            rows, free = self._ledger.begun(self.out, *self._ideas())
            self._enter(rows, free if first_seed is None else first_seed)
        self._figure: tuple[Any, Any] = (None, None)  # the latest, and its place in a notebook
        # Of each run made by this object: whether it belongs to the tuning, and its seconds, those
        # of training and all others.
        self._seconds: list[tuple[bool, float, float]] = []
        self._check_directory()
        self._check_arms()

    # What is known

    def make_state(self) -> TrialState:
        """The state by what was found so far."""
        # Who leaves an arm out has looked at it all the same, if it came to the comparison.
        earlier = self._recorded_plan().get("arms", {}).keys() - self.settings.arms.keys()
        places = [folder / "runs" for folder in (self.out, *self._beside)]
        left_out = sum(
            any((place / to_folder(label)).exists() for place in places) for label in earlier
        )
        found, failed = dict(self._found), dict(self._failed)
        return TrialState(self.settings, found, failed, left_out=left_out)

    def look(self) -> TrialState:
        """The state by what is on the disk now. Each run that is over is read once."""
        while True:
            over = {}
            for run in self._state.to_look_for:
                case = self._find(run)
                if case is not None:
                    over[run] = None if _diverged(case) else _curve_of(case)
            if not over:
                return self._state
            # What was found may show which runs count next, and these may be there as well.
            self._found |= over
            self._state = self.make_state()

    @property
    def target(self) -> float | None:
        """The accuracy that costs are counted to; None before it is known."""
        return self.look().target

    @property
    def tuning(self) -> pd.DataFrame:
        """A row a tuning run: arm, learning rate, seed, cost to the target, accuracies."""
        return self.look().tuning_table.copy()

    @property
    def records(self) -> dict[str, dict[int, Record]]:
        """The records of the comparison, by label and seed, as far as they are complete."""
        return self.look().records

    @property
    def answers(self) -> dict[str, Answer]:
        """What is known of each arm that was tuned, by label."""
        return self.look().answers

    @property
    def table(self) -> pd.DataFrame:
        """A row an arm: arm, verdict, ratio, low, high, seeds, learning_rate and further columns.

        The verdict is that of `answer.Answer`; or "same" for the baseline under another name,
        "collapsed" for an arm that no learning rate made better, and "failed".
        """
        return self.look().table.copy()

    def __str__(self) -> str:
        return "\n".join(self.table["sentence"]) or f"{self!r}: nothing is known yet"

    def __repr__(self) -> str:
        baseline, *others = self.settings.arms
        return f"Trial({', '.join(others)} against {baseline}, out={str(self.out)!r})"

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
        from workbench.plots.curves import withdraw

        drawn = draw(**self._results(), figure=figure)
        if figure is None:
            # The cell shows what is returned, and not the drawing of its last look once more.
            withdraw(self._figure[1])
        return drawn

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

        return write(path=path, **self._results())

    def _results(self) -> dict[str, Any]:
        """What figure and report are made of."""
        state = self.look()
        baseline = self.settings.baseline
        if not state.records.get(baseline):
            raise ValueError(f"out={str(self.out)!r}: no run of the comparison is complete yet")
        return {
            "records": state.records,
            "table": state.table,
            "tuning": state.tuning_table,
            "baseline": baseline,
            "target": state.target,
            "measure": self.settings.measure,
        }

    # Making the runs

    def run(self) -> Trial:
        """Make the runs that are missing, until the answer is known for every arm."""
        self._failed.clear()
        self._state = self.make_state()
        with engine.only_one(self.out / LOCK, self._report_line):
            self._charge()
            # Again, since another call may have written its plan in the meantime.
            self._check_directory()
            # Those that were left unfinished too.
            for path in record_paths(self.out):
                check_conditions({}, load(path).manifest, path, self._mixed)
            self._write_plan()
            baseline = self.settings.baseline
            for label in self.settings.same:
                self._report_line(f"{label} is {baseline} under another name, so no run is made")
            if len(self._state.compared) < 2:
                return self
            with engine.at_work(**self._workers, ended=self._end) as work_off:
                self._make_runs(work_off)
        self._settle()
        made = [curve for curve in self._found.values() if curve is not None]
        used = sum(not curve.path.is_relative_to(self.out) for curve in made)
        if used:
            self._report_line(f"{used} runs of trials beside this one were used again")
        return self

    def _charge(self) -> None:
        """Have the ledger give every arm its level, and the trial its fresh seeds."""
        if self._ledger is None or len(self._state.compared) < 2:
            return
        rows = self._ledger.charge(self.out, *self._ideas(), self._given_seed)
        self._enter(rows, next(iter(rows.values()))["first_seed"])
        for label, row in rows.items():
            again = f"; it was tried before as idea {row['again']}" if row["again"] else ""
            self._report_line(
                f"{label} is idea {row['number']} of the ledger, tried at a level of "
                f"{row['level']:.2g}{again}"
            )

    def _ideas(self) -> tuple[dict[str, str], str, int]:
        """What a ledger knows the trial by: its ideas, baseline and lab, and how many seeds."""
        baseline, *labels = self._state.compared
        arms = self.settings.arms
        against = digest_of([arms[baseline].fingerprint, self._lab.fingerprint])
        # Neither its fresh seeds nor those of its tuning belong to any other trial.
        reserved = max(self.settings.looks[-1], self.settings.n_tuning_seeds)
        return {label: arms[label].fingerprint for label in labels}, against, reserved

    def _enter(self, rows: dict[str, dict[str, Any]], first_seed: int) -> None:
        """Take what the ledger has given."""
        levels = {label: row["level"] for label, row in rows.items()}
        self.settings = dataclasses.replace(self.settings, first_seed=first_seed, levels=levels)
        self._state = self.make_state()

    def _settle(self) -> None:
        """Write into the ledger what is known now."""
        if self._ledger is not None:
            state = self.look()
            names = ("verdict", "ratio", "low", "high", "seeds")
            found = {
                label: {name: vars(answer)[name] for name in names}
                for label, answer in state.answers.items()
                if answer.known
            }
            found |= {label: {"verdict": word} for label, (word, _) in state.excluded.items()}
            self._ledger.settle(self.out, self.settings.first_seed, found)

    def _make_runs(self, work_off: Callable[[Sequence[Case]], None]) -> None:
        """Look, make the runs that are missing, and look again."""
        is_tuned = False
        while True:
            state = self.look()
            if not is_tuned:
                state.check_target()
            runs = state.next_runs(self._at_once)
            compares = not runs or runs[0].seed < FIRST_SEED
            if compares and not is_tuned:
                is_tuned = True
                for found in state.tunings.values():
                    self._report_line(str(found))
            if not runs:
                return
            text, most, likely = state.progress()
            self._report_line(f"{text}; at most {most} to make, {self._time(likely, compares)}")
            cases = [self.case(run) for run in runs]
            for case in cases:
                case.set_aside(self._report_line)
            work_off(cases)
            if compares:
                # The last sentences are those that the caller prints, or a notebook shows.
                if self.look().undecided:
                    self._report_line(str(self))
                self._redraw()

    def _redraw(self) -> None:
        """Show the figure in a notebook, in the place of the one of the look before."""
        # Matplotlib takes a while to load, and outside a notebook nothing is drawn.
        if "IPython" in sys.modules:
            from workbench.plots.curves import redraw

            self._figure = redraw(self.plot, *self._figure)

    def _end(self, case: Case) -> None:
        """Take note of a run that has ended; an arm that cannot run is put aside."""
        outcome = case.outcome
        values = case.values
        label = values["label"]
        if outcome["status"] == "done":
            trained = outcome["results"]["training_seconds"]
            rest = max(outcome["seconds"] - trained, 0)
            self._seconds.append((values["seed"] >= FIRST_SEED, trained, rest))
            point = Point(values["learning_rate"], values["mini_batches"])
            run = TrialRun(label, point, values["seed"])
            if run in self._found:  # it diverged in an earlier call
                del self._found[run]
                self._state = self.make_state()
            return
        # That a tuning run diverged at its rate is an answer too.
        if label in self._failed or (_diverged(case) and values["seed"] >= FIRST_SEED):
            return
        self._failed[label] = outcome["error"]
        self._state = self.make_state()
        message = (
            f"{label}: {case.name} failed: {outcome['error']}; its log is "
            f"{os.path.relpath(case.logs)}/log.txt. The same call goes on once that is mended; "
            "an arm whose code was edited needs another label"
        )
        if label == self.settings.baseline or len(self._state.compared) < 2:
            raise ValueError(message)
        self._report_line(f"{message}; the other arms go on")

    def _time(self, likely: list[int], compares: bool) -> str:
        """How long the runs that are likely take, at the pace of those of this call."""
        alike = [trained + rest for tunes, trained, rest in self._seconds if tunes != compares]
        if compares and not alike:
            # Runs of the comparison are evaluated more often, and with more samples.
            samples = self.settings.lab.samples / self.settings.tuning_lab.samples
            more = samples * (FINAL_EVALUATIONS + 1) / (EVALUATIONS + 1)
            alike = [trained + more * rest for _, trained, rest in self._seconds]
        if not alike:
            return "and how long that takes is said once runs have ended"
        pace = statistics.mean(alike)
        first, middle, last = (duration(pace * math.ceil(n / self._at_once)) for n in likely)
        text = f"likely {likely[1]}, about {middle} as runs take here now"
        if likely[0] == likely[2]:
            return text
        return f"{text} (in four trials of five {likely[0]} to {likely[2]}: {first} to {last})"

    # Its runs on disk

    def case(self, run: TrialRun) -> Case:
        """A run with its parameters and its directories."""
        tunes = run.seed >= FIRST_SEED
        folder = to_folder(run.label)
        place = f"tuning/{folder}/{run.point.name}" if tunes else f"runs/{folder}"
        name = f"{place}/seed-{run.seed}"
        return Case(
            name,
            self.settings.values(*run),
            self.out / name,
            self.out / LOGS / name,
            method=self._methods[run.label],
            lab=self._tuning_lab if tunes else self._lab,
            mixed=self._mixed,
        )

    def _find(self, run: TrialRun) -> Case | None:
        """A run that is made, or diverged, here or in a trial beside this one."""
        case = self.case(run)
        for folder in (self.out, *self._beside):
            logs = folder / LOGS / case.name
            made = dataclasses.replace(case, record=folder / case.name, logs=logs)
            if not (made.finished or _diverged(made)):
                continue
            try:
                # The fingerprint is that of method, lab, seed and all settings.
                if made.outcome["fingerprint"] != case.fingerprint():
                    raise ValueError(
                        f"it was made there by another definition of {run.label!r} or with other "
                        "settings; name another directory, or give the arm another label"
                    )
                # One that is damaged is as good as not made.
                if made.finished and (damage := damage_of(made.record)):
                    text = f"{damage}; {case.name} does not count, and is made again"
                    warnings.warn(text, RecordWarning, stacklevel=2)
                    continue
                prepare(made)  # what the record says of itself decides
                self._check_weights(made)
                return made
            except ValueError as error:
                if folder == self.out:
                    raise ValueError(f"out={str(self.out)!r}: {case.name}: {error}") from None
        return None

    def _check_weights(self, made: Case) -> None:
        """ValueError for a run that began with other weights than others of its seed.

        A fingerprint has no more of a model than its name, and the model may be another by now.
        """
        manifest = load(made.record).manifest if made.finished else {}
        weights = manifest.get("policy", {}).get("weights")
        first = self._weights.setdefault(made.values["seed"], weights)
        if not self._mixed and None not in (first, weights) and first != weights:
            raise ValueError(
                "it began with other weights than a run of another arm with its seed; was the "
                "model overwritten? Name another directory"
            )

    # The plan on disk

    def _plan(self) -> dict[str, Any]:
        settings = {**self.settings.describe(), "lab_digest": self._lab.fingerprint}
        arms = {
            label: {"method": describe(arm.method), "fingerprint": self._methods[label].fingerprint}
            for label, arm in self.settings.arms.items()
        }
        return {"settings": settings, "arms": arms}

    def _check_directory(self) -> None:
        """ValueError unless the directory holds this trial, or nothing yet."""
        engine.check_directory(self.out, PLAN, LOCK, "trial")
        # By way of a text, as what is recorded.
        ours = json.loads(json.dumps(self._plan()))
        theirs = self._recorded_plan() or ours
        theirs["settings"].setdefault("first_seed", 0)  # plans of earlier versions have none
        # Further arms may join.
        both = sorted(ours["arms"].keys() & theirs["arms"].keys())
        plans = [
            plan["settings"] | {f"arm {label!r}": plan["arms"][label] for label in both}
            for plan in (ours, theirs)
        ]
        if different := differences(*plans):
            raise ValueError(
                f"out={str(self.out)!r} holds another trial (asked for, recorded): "
                f"{'; '.join(different[:3])}; name another directory, or give an arm that was "
                "edited another label"
            )

    def _write_plan(self) -> None:
        """Write what is compared and how; arms of earlier calls stay in it."""
        plan = self._plan()
        plan["arms"] = self._recorded_plan().get("arms", {}) | plan["arms"]
        write(self.out / PLAN, json.dumps(plan, indent=1).encode())

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
        settings = self.settings
        for label in self._state.compared:
            case = self.case(TrialRun(label, settings.coarse[0], settings.tuning_seeds[0]))
            try:
                prepare(case, settings.arms[label].method, settings.tuning_lab)
            except ValueError as error:
                raise ValueError(f"arm {label!r}: {error}") from None


# The arguments are written once, in `Trial`, and help shows them here as well.
trial.__signature__ = inspect.signature(Trial).replace(  # type: ignore[attr-defined]
    return_annotation="Trial"
)
trial.__doc__ = (trial.__doc__ or "") + (Trial.__doc__ or "").partition("\n")[2]


def _curve_of(case: Case) -> Curve:
    """The learning curve of a run that is made."""
    [curve] = each(read([load(case.record)]))
    return curve


def _diverged(case: Case) -> bool:
    return case.outcome.get("error", "").startswith(DIVERGED)

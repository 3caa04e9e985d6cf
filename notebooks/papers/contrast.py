"""One contrast on a pretrained model: AR3PO against GRPO with groups of eight and of five.

What is asked, how it is decided and what the small lab predicts stands in docs/ladder.md, written
before the first of these runs. In the folder `notebooks`, with the model that `examples/smollm2.py`
writes, and on one core with `--jobs 1`:

    python -m papers.contrast --jobs 1
    python -m papers.contrast --one-rate --jobs 1
    python -m papers.contrast --answer
    python -m papers.contrast --shelve ../data/runs/contrast

The first may be stopped or killed at any time; the same command goes on. The second makes the first
task again at one rate for all arms, after the first is done. The third reads what is
there, and says of how many pairs. The fourth puts the finished runs on a shelf, from which the
notebook `14_ladder` reads them.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from papers import ladder
from papers.regimes import make_runs, shelve, shelve_runs
from workbench import load_all, methods
from workbench.analysis.comparisons import at_budget
from workbench.analysis.curves import Curve, of_common_seeds, read
from workbench.analysis.intervals import holm
from workbench.analysis.targets import crossings, ratio_to_target
from workbench.methods import Method
from workbench.plots.style import INK, PALETTE, SOFT, heading, new_axes, ratio_ticks, style
from workbench.policies import Sampling
from workbench.records import Record, RecordWarning, pack
from workbench.rollouts import Rollouts
from workbench.trials.cases import Case
from workbench.trials.state import TrialRun
from workbench.trials.trial import Trial
from workbench.trials.tuning import Point
from workbench.utils.labels import LOGS
from workbench.utils.seeding import derive

__all__ = [
    "TASKS",
    "Luck",
    "answer",
    "arms",
    "at_one_rate",
    "beside_the_predictions",
    "controls",
    "draw",
    "of_controls",
    "predicted",
    "recorded",
    "sampled_a_round",
    "trials",
]

TASKS = ("additions to 20", "the largest of four")
TARGET = 0.5
SMALL_TARGET = 0.51  # of the small lab's runs, as on the leaderboard
TEMPERATURE = 0.7
PAIRS = 30  # of each task
FEW = 6  # pairs of the controls, on the second task alone
# They were chosen to lie below the rates at which runs collapse. Where the best is the highest, the
# tuning adds 1.13e-3, at which some runs of the comparison fell back.
RATES = (2e-4, 4e-4, 8e-4)
# The first task once more, with all arms at the rate to which GRPO with five was tuned.
ONE_RATE = 4e-4
OTHER_RATES = ("grpo", "ar3po")  # the arms that were tuned to another one
AT_ONE_RATE = "additions-to-20-one-rate"
# Arm and what it is compared with; the order is that of docs/ladder.md.
CONTRASTS = (("ar3po", "grpo"), ("ar3po", "grpo-5"), ("grpo-5", "grpo"))
NAMES = {"ar3po": "AR3PO", "grpo": "GRPO with 8", "grpo-5": "GRPO with 5"}
# Where a ratio comes from, besides the name of a single task.
SMALL_LAB = "small lab"
BOTH = "both tasks"
LEAST_RATIO, LARGEST_RATIO = 0.4, 2.0  # the ends of the axis of the figure


@dataclass(frozen=True)
class Luck:
    """A reward that has nothing to do with the answer: 0 or 1, by lot."""

    weight: float = 1.0
    name: ClassVar[str] = "luck"

    def __call__(self, rollouts: Rollouts, sampling: Sampling) -> np.ndarray:
        """(R,) of 0 and 1, from the texts and their places."""
        lots = [derive("luck", place, text) for place, text in enumerate(rollouts.text)]
        return np.array(lots, dtype=np.int64) % 2


def arms() -> dict[str, Method]:
    """The arms of the contrast."""
    return {"grpo": methods.grpo(8), "grpo-5": methods.grpo(5), "ar3po": methods.ar3po()}


def controls() -> dict[str, Method]:
    """What must be seen to help at equal rounds, and what must not."""
    luck = methods.grpo(8).but(name="luck", reward=(Luck(),))
    return {"grpo": methods.grpo(8), "pods": methods.pods(32, 8), "luck": luck}


def trials(model: str | Path, out: Path, **options: Any) -> dict[str, Trial]:
    """The trials of the contrast and of its controls, before they are run.

    Parameters
    ----------
    model : path
        The directory of the pretrained model.
    out : path
    options
        Further arguments of `wb.trial`, such as jobs.
    """
    settings = {
        "rounds": 16,
        "problems_per_round": 4,
        "target": TARGET,
        "rates": RATES,
        "tuning_seeds": 4,
        "evaluate_every": 4,
        "columns": "none",
        **options,
    }
    made = {}
    for task in TASKS:
        lab = ladder.lab(task, model, temperature=TEMPERATURE)
        folder = folder_of(task)
        plans = [(folder, arms(), PAIRS)]
        if task == TASKS[-1]:
            plans.append((f"{folder}-controls", controls(), FEW))
        for name, compared, seeds in plans:
            against = compared.pop("grpo").but(name="grpo")
            made[name] = Trial(
                compared, against=against, lab=lab, out=out / name, seeds=seeds, **settings
            )
    return made


def cases_at_one_rate(trial: Trial) -> list[Case]:
    """Runs of the first task's trial with its seeds, at `ONE_RATE` instead of the tuned rates.

    Parameters
    ----------
    trial : Trial
        That of the first task. The runs get a folder beside its own.
    """
    out = trial.out.with_name(AT_ONE_RATE)
    found = []
    for seed in range(PAIRS):
        for label in OTHER_RATES:
            case = trial.case(TrialRun(label, Point(ONE_RATE), seed))
            moved = replace(case, record=out / case.name, logs=out / LOGS / case.name)
            found.append(moved)
    return found


def answer(
    curves: Mapping[str, Mapping[str, Mapping[int, Any]]], target: float = TARGET
) -> pd.DataFrame:
    """What the runs of both tasks say together.

    Pairs of runs of one task and one seed, of all tasks, are read as one trial: the mean of the
    logarithms of the ratios of rollouts to the target, with Student's interval, or signed ranks
    where runs did not arrive. The three tests are corrected by Holm's method.

    Parameters
    ----------
    curves : dict from task to a dict from label to a dict from seed to Curve
        As `analysis.curves.read` gives the inner ones.
    target : float
        The accuracy whose rollouts are compared.

    Returns
    -------
    DataFrame, a row a contrast
        arm, against, pairs, reached, others_reached, ratio, low, high, p, p_holm.
    """
    rows = []
    for arm, other in CONTRASTS:
        mine, others = [], []
        for by_label in curves.values():
            crossed = [crossings(dict(by_label[name]), target, "rollouts") for name in (arm, other)]
            first, second = of_common_seeds(*crossed)
            mine += first
            others += second
        ratio = ratio_to_target(mine, others)
        rows.append(
            {
                "arm": arm,
                "against": other,
                "pairs": len(mine),
                "reached": sum(crossing.reached for crossing in mine),
                "others_reached": sum(crossing.reached for crossing in others),
                "ratio": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "p": ratio.p_value(1.0),
            }
        )
    table = pd.DataFrame(rows)
    return table.assign(p_holm=holm(table["p"]))


def predicted(runs: Path) -> pd.DataFrame:
    """What the small lab says of the same contrasts, at its own target.

    Parameters
    ----------
    runs : path
        The runs of tuned groups of several sizes and of AR3PO, `data/runs/group-sizes`.

    Returns
    -------
    DataFrame
        As `answer`.
    """
    return answer({"chains": read(load_all(runs))}, SMALL_TARGET)


def recorded(shelf: Path) -> dict[str, dict[str, list[Record]]]:
    """The recorded runs of each task, by arm; those of the controls are left out."""
    return {task: of_folders(shelf / folder_of(task)) for task in TASKS}


def of_folders(folder: Path) -> dict[str, list[Record]]:
    """The recorded runs of a trial by arm, each of which has a folder.

    Two builds of the same code made them. `load_all` alone would take these for two settings.
    """
    by_arm: dict[str, list[Record]] = {}
    for records in load_all(folder).values():
        for record in records:
            by_arm.setdefault(record.path.parent.name, []).append(record)
    return by_arm


def curves_of(by_arm: Mapping[str, list[Record]]) -> dict[str, dict[int, Curve]]:
    """The learning curves of arms, some of whose runs are of another build."""
    with warnings.catch_warnings():
        # It says that two builds made the runs of an arm, see `of_folders`.
        warnings.simplefilter("ignore", RecordWarning)
        return read(by_arm)


def sampled_a_round(records: Mapping[str, Mapping[str, list[Record]]]) -> pd.Series:
    """Rollouts that an arm samples in a round over those of the other, for each contrast.

    This is what is known before any training. It predicts the ratio of rollouts to a target
    where every round teaches as much.

    Parameters
    ----------
    records : dict from task to a dict from arm to a list of Record
        As `recorded` gives them.

    Returns
    -------
    Series, by arm and what it is against
        The mean over tasks.
    """
    means = {
        (task, arm): np.mean([record.rounds["rollouts"].mean() for record in runs])
        for task, by_arm in records.items()
        for arm, runs in by_arm.items()
    }
    ratios = {
        (arm, other): np.mean([means[task, arm] / means[task, other] for task in records])
        for arm, other in CONTRASTS
    }
    return pd.Series(ratios, name="sampled_a_round").rename_axis(["arm", "against"])


def beside_the_predictions(runs: Path, shelf: Path) -> pd.DataFrame:
    """What was predicted of the contrasts, and what the pretrained model shows.

    Parameters
    ----------
    runs : path
        The runs of the small lab, `data/runs/group-sizes`.
    shelf : path
        Those of the pretrained model, `data/runs/contrast`.

    Returns
    -------
    DataFrame, by contrast and source
        The columns of `answer` without arm and against, and sampled_a_round, as the function of
        this name has it. The sources are the small lab, each task, and both tasks together, which
        is what decides.
    """
    records = recorded(shelf)
    curves = {task: curves_of(by_arm) for task, by_arm in records.items()}
    sources = {
        SMALL_LAB: predicted(runs),
        **{task: answer({task: by_arm}) for task, by_arm in curves.items()},
        BOTH: answer(curves),
    }
    sampled = {
        SMALL_LAB: sampled_a_round({"chains": load_all(runs)}),
        **{task: sampled_a_round({task: by_arm}) for task, by_arm in records.items()},
        BOTH: sampled_a_round(records),
    }
    parts = []
    for source, table in sources.items():
        part = table.assign(
            contrast=[f"{NAMES[row.arm]} over {NAMES[row.against]}" for row in table.itertuples()],
            source=source,
            sampled_a_round=list(sampled[source]),
        )
        parts.append(part.drop(columns=["arm", "against"]))
    # A stable sort by contrast keeps the order of the sources.
    place = {name: number for number, name in enumerate(parts[0]["contrast"])}
    joined = pd.concat(parts).sort_values(
        "contrast", kind="stable", key=lambda names: names.map(place)
    )
    return joined.set_index(["contrast", "source"])


def at_one_rate(shelf: Path) -> pd.DataFrame:
    """The contrasts of the first task with all arms at `ONE_RATE`.

    Parameters
    ----------
    shelf : path
        As in `beside_the_predictions`.

    Returns
    -------
    DataFrame
        As `answer`.
    """
    tuned = of_folders(shelf / folder_of(TASKS[0]))
    by_arm = {**tuned, **of_folders(shelf / AT_ONE_RATE)}
    return answer({TASKS[0]: curves_of(by_arm)})


def of_controls(shelf: Path) -> pd.DataFrame:
    """Held-out accuracy of the two controls and of GRPO after as many rounds, on the second task.

    Parameters
    ----------
    shelf : path
        As in `beside_the_predictions`.

    Returns
    -------
    DataFrame
        A row an arm, as `analysis.comparisons.at_budget` has it with GRPO as its baseline, and
        start, the mean accuracy before training.
    """
    task = folder_of(TASKS[-1])
    runs = of_folders(shelf / f"{task}-controls")
    # GRPO is the same there and in the contrast, so its runs were made once.
    runs["grpo"] = [run for run in of_folders(shelf / task)["grpo"] if run.seed < FEW]
    starts = {
        label: np.mean([curve.scores[0] for curve in by_seed.values()])
        for label, by_seed in read(runs).items()
    }
    return at_budget(runs, "round", baseline="grpo").assign(start=pd.Series(starts))


def draw(table: pd.DataFrame, *, title: str) -> Figure:
    """Predicted and measured ratios of rollouts to the target, with their intervals.

    Parameters
    ----------
    table : DataFrame
        Of `beside_the_predictions`.
    title : str
    """
    contrasts = list(table.index.unique("contrast"))
    sources = list(table.index.unique("source"))
    shifts = np.linspace(0.27, -0.27, len(sources))
    with style():
        ax = new_axes(height=3.8)
        heights = np.arange(len(contrasts))[::-1]
        for number, source in enumerate(sources):
            rows = table.xs(source, level="source").loc[contrasts]
            y = heights + shifts[number]
            # An open end has no place, so the interval is drawn beyond the edge of the axes.
            high = np.where(np.isfinite(rows["high"]), rows["high"], 2 * LARGEST_RATIO)
            low = np.maximum(rows["low"], LEAST_RATIO / 2)
            is_answer = source == BOTH
            colour = INK if is_answer else PALETTE[number]
            label = source if source == SMALL_LAB else f"pretrained, {source}"
            ax.hlines(y, low, high, color=colour, linewidth=2.4 if is_answer else 1.4)
            ax.plot(rows["ratio"], y, "o^sD"[number], color=colour, label=label)
            ax.plot(rows["sampled_a_round"], y, "|", color=SOFT, markersize=9)
        ax.plot([], [], "|", color=SOFT, markersize=9, label="sampled in a round")
        ax.axvline(1.0, color=INK, linewidth=0.8, zorder=0)
        ax.set(xscale="log", xlim=(LEAST_RATIO, LARGEST_RATIO))
        ax.set(yticks=heights, ylim=(-0.5, len(contrasts) - 0.5))
        ax.set_yticklabels(contrasts)
        ax.grid(axis="y", visible=False)
        ratio_ticks(ax.xaxis, LEAST_RATIO, LARGEST_RATIO, most=8)
        ax.set_xlabel("rollouts to the target, first over second")
        ax.figure.legend(loc="outside lower center", ncols=2, frameon=False)
        heading(ax, title)
    return ax.figure


def folder_of(task: str) -> str:
    """The name of a task's folder."""
    return task.replace(" ", "-")


def put_on_shelf(made: Mapping[str, Trial], shelf: Path) -> None:
    """Pack copies of the finished runs, with tables of the tuning above them."""
    for name, trial in made.items():
        shelve(trial, (), shelf / name)
    first = next(iter(made.values()))
    shelve_runs(first.out.with_name(AT_ONE_RATE) / "runs", (), shelf / AT_ONE_RATE)
    pack(shelf, evals=("level",))


def main() -> None:
    """Make the runs, or say what they show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("../build/smollm2"))
    parser.add_argument("--out", type=Path, default=Path("../runs/contrast"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--one-rate", action="store_true", help="make those at one rate")
    parser.add_argument("--answer", action="store_true", help="make no runs")
    parser.add_argument(
        "--shelve", type=Path, metavar="FOLDER", help="such as ../data/runs/contrast"
    )
    asked = parser.parse_args()
    made = trials(asked.model, asked.out, jobs=asked.jobs, report=print, mixed=True)
    if asked.one_rate:
        make_runs(cases_at_one_rate(next(iter(made.values()))), asked.jobs)
    elif not asked.answer:
        for trial in made.values():
            trial.run()
    if asked.shelve:
        put_on_shelf(made, asked.shelve)
    curves = {
        name: read({label: list(of.values()) for label, of in trial.records.items()})
        for name, trial in made.items()
        if not name.endswith("controls")
    }
    print(answer(curves).to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    main()

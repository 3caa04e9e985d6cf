"""`wb.profile`: what a model does on problems before it is trained.

A handful of responses to each problem say how often the model is right there. A `Profile` holds
these counts, whoever sampled them, and says what they mean for training: how success rates are
distributed, how many groups of n rollouts would have no gradient, which problems teach nothing.
What each method would do there is worked out in `workbench.trials.plan`.

The share right of 16 responses is a noisy estimate, and a histogram of such estimates is wider than
the rates are: it has problems at 0 and at 1 that are not there. So the distribution of the rates is
fitted by maximum likelihood, without any assumption on its form (Kiefer and Wolfowitz, 1956): it is
a mixture of fixed rates, and expectation maximisation finds their weights. Intervals come from
fitting it again to the problems with weights drawn at random.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import gammaln, xlog1py, xlogy

from workbench.evaluation import answers
from workbench.labs import Lab
from workbench.pools import Pool, Problem
from workbench.records import files
from workbench.records.tables import content_of, reading
from workbench.trials.plan import group_costs, plan
from workbench.trials.samples import final_answer, read_samples, tally
from workbench.utils.seeding import generator
from workbench.utils.validation import brief, instance_of, number, output, whole_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = np.concatenate([[0, 0.001, 0.003], np.linspace(0.01, 0.99, 99), [0.997, 0.999, 1]])
STEPS = 1000  # of expectation maximisation
REFITS = 100  # for the intervals
SIZES = (2, 4, 8, 16, 32, 64)  # rollouts of a group
GROUP = 8  # of the usual group, by which a problem counts as hopeless or done
SURE = 0.8  # probability that all rollouts of such a group are alike
BATCH = 8  # problems that are sampled at once and then stored
PROBLEMS = 200  # that are sampled where nobody says how many
SETTINGS = "profile.json"


class Profile:
    """What a model does on problems: one row a problem, and the responses where they are known.

    Make one with `wb.profile` or `Profile.read`.

    Attributes
    ----------
    table : DataFrame
        One row a problem: problem, samples, correct, rate (their ratio), low and high (the middle
        95 % of what its success rate may be, by this problem's samples and the fit to all), mixed
        (the probability that a group of 8 has a gradient), status ("hopeless" or "done" where such
        a group is all wrong or all right with a probability of 80 %; "suspicious" where no response
        is right and more than half of four or more give one answer, so that the gold answer may be
        wrong; otherwise ""), and what is known of level, prompt, answer, length (mean tokens) and
        truncated (share).
    rollouts : DataFrame or None
        One row a response: problem, correct, and what is known of length, truncated, text and
        given (its final answer).
    notes : list of str
        What to know about where the samples come from.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        rollouts: pd.DataFrame | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.rollouts = rollouts
        self.notes = list(notes)
        self._counts = table[["samples", "correct"]].to_numpy(np.int64)
        posterior = self.posteriors(self.weights[0])
        cumulative = posterior.cumsum(axis=1)
        low, high = (GRID[(cumulative < q - 1e-9).sum(axis=1)] for q in (0.025, 0.975))
        all_right, all_wrong = posterior @ GRID**GROUP, posterior @ (1 - GRID) ** GROUP
        status = np.select([all_wrong >= SURE, all_right >= SURE], ["hopeless", "done"], "")
        if rollouts is not None and "given" in rollouts:
            agreed = rollouts.groupby("problem")["given"].agg(_agreement)
            is_one = table["problem"].map(agreed).to_numpy(float) > 0.5
            enough = (table["correct"] == 0) & (table["samples"] >= 4)
            status = np.where(enough & is_one, "suspicious", status)
        self.table = table.assign(
            rate=table["correct"] / table["samples"],
            low=low,
            high=high,
            mixed=1 - all_right - all_wrong,
            status=status,
        ).reset_index(drop=True)

    @classmethod
    def read(
        cls,
        path: Any,
        *,
        samples: int | None = None,
        solved: float | None = None,
        columns: dict[str, str] | None = None,
    ) -> Profile:
        """The profile in a file or folder that you have.

        Parameters
        ----------
        path : path
            A .csv, .jsonl, .json or .parquet file with a row a response (problem, and correct or
            reward) or a row a problem (problem, samples, and correct or rate); a folder of such
            files, as TRL's logged completions and verl's rollout dumps are; or what `wb.profile`
            wrote.
        samples : int, optional
            Of each problem, where the file has their rates alone.
        solved : float, optional
            The reward from which a response counts as right; not needed where rewards are 0 and 1,
            or -1 and 1.
        columns : dict, optional
            Our name to the name in the file, where they differ: problem, samples, correct, rate,
            reward, length, truncated, text, given, prompt, answer or level. The usual other names
            are known.

        Raises
        ------
        ValueError
            For what cannot be read; the message names the file and the row.
        """
        folder = Path(path)
        if (folder / SETTINGS).exists():
            return _stored(folder)
        return cls(*read_samples(folder, samples, solved, columns or {}))

    # The distribution of success rates

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights of the rates `GRID`: those of the fit, and of its refits, (1 + REFITS, G)."""
        pairs, number_of = np.unique(self._counts, axis=0, return_inverse=True)
        here = np.bincount(number_of.ravel()).astype(float)
        # One problem more, of which any rate is as likely. With few problems, or where all are
        # solved, the fit and above all its intervals would else be far too sure.
        here = np.append(here, 1.0)
        # How often each problem is drawn, as in the Bayesian bootstrap (Rubin, 1981).
        drawn = generator(0, "profile").gamma(here, size=(REFITS, len(here)))
        counts = np.concatenate([here[None], drawn])
        counts /= counts.sum(axis=1, keepdims=True)
        likely = likelihoods(pairs[:, 0], pairs[:, 1])
        weights = np.full((len(counts), len(GRID)), 1 / len(GRID))
        for _ in range(STEPS):
            found = (counts[:, :-1] / (weights @ likely.T)) @ likely
            weights = weights * found + counts[:, -1:] / len(GRID)
        return weights

    def posteriors(self, weights: np.ndarray) -> np.ndarray:
        """How likely each rate of `GRID` is for each problem, (P, G), for weights (G,)."""
        joint = likelihoods(*self._counts.T) * weights
        return joint / joint.sum(axis=1, keepdims=True)

    def expected(self, values: np.ndarray) -> tuple[float, float, float]:
        """The mean over problems of a function of the rate, (G,), with its 95 % interval."""
        means = self.weights @ values
        # Around the fit: where it has all its weight on few rates, refits are to one side of it.
        low, high = np.quantile(means[1:], (0.025, 0.975))
        return float(means[0]), float(min(low, means[0])), float(max(high, means[0]))

    def by_n(self, sizes: Iterable[int] = SIZES, machine: Any = "l40s") -> pd.DataFrame:
        """What groups of n rollouts would be.

        Parameters
        ----------
        sizes : ints
            Rollouts of a group.
        machine : str or CostModel
            A name of `analysis.cost.MACHINES`, or a model of your own.

        Returns
        -------
        DataFrame
            One row for each n: no_gradient (share of groups without a gradient) with low and high,
            all_right and all_wrong (its two parts), pass_at_n with pass_low and pass_high, and cost
            (of a group with a gradient under GRPO, in the machine's unit: what its groups without
            one cost is in it). Beyond the number of samples a problem has, the shares rest on the
            fit alone.
        """
        sizes = list(sizes)
        for n in sizes:
            whole_number("sizes", n, 1, 4096)
        rows = []
        for n in sizes:
            right, wrong = GRID**n, (1 - GRID) ** n
            share, low, high = self.expected(np.minimum(right + wrong, 1))
            at_n, pass_low, pass_high = self.expected(1 - wrong)
            rows.append(
                {
                    "n": n,
                    "no_gradient": share,
                    "low": low,
                    "high": high,
                    "all_right": self.expected(right)[0],
                    "all_wrong": self.expected(wrong)[0],
                    "pass_at_n": at_n,
                    "pass_low": pass_low,
                    "pass_high": pass_high,
                }
            )
        table = pd.DataFrame(rows)
        return table.assign(cost=group_costs(table, self._length(), machine))

    def best_n(self, machine: Any = "l40s", most: int = 64) -> int:
        """The group size at which a group with a gradient costs GRPO least on a machine.

        It counts groups, and a larger group also has a better estimate of its gradient: take it for
        the least n that is worth sampling.
        """
        whole_number("most", most, 2, 4096)
        table = self.by_n(range(2, most + 1), machine)
        return int(table["n"][table["cost"].argmin()])

    def _length(self) -> float:
        """Mean tokens of a response, 1 where that is not known."""
        return float(self.table["length"].mean()) if "length" in self.table else 1.0

    def draw_rates(self, number: int, seed: int) -> np.ndarray:
        """A success rate for each problem (P,), drawn from what one of the refits allows."""
        posterior = self.posteriors(self.weights[1 + number % REFITS])
        draws = generator(seed, "rates").random((len(posterior), 1))
        return GRID[(posterior.cumsum(axis=1) < draws).sum(axis=1).clip(max=len(GRID) - 1)]

    def lengths(self) -> pd.DataFrame:
        """Responses by outcome, "right" and "wrong": responses, mean length in tokens with low and
        high (Student's 95 % interval, a problem counting once), and the share truncated. Empty
        where the lengths are not known.
        """
        from workbench.analysis.intervals import Measurement

        if self.rollouts is None or "length" not in self.rollouts:
            return pd.DataFrame(columns=["responses", "length", "low", "high", "truncated"])
        rows = {}
        for name, part in self.rollouts.groupby(
            np.where(self.rollouts["correct"], "right", "wrong")
        ):
            by_problem = Measurement(part.groupby("problem")["length"].mean().to_numpy(float))
            rows[name] = {
                "responses": len(part),
                "length": by_problem.value,
                "low": by_problem.low,
                "high": by_problem.high,
                "truncated": part["truncated"].mean() if "truncated" in part else np.nan,
            }
        return pd.DataFrame(rows).T

    # What follows from it

    def problems(self, low: float = 0.1, high: float = 0.9) -> Pool:
        """The problems whose expected success rate lies in [low, high], for a lab.

        Their level is their difficulty in tenths, 0 (nearly always right) to 9, for the curricula
        that go by levels. What is suspicious is left out.

        Raises
        ------
        ValueError
            Where no problem is left, or the profile has no prompts and answers.
        """
        number("low", low, low=0, high=1)
        number("high", high, low=low, high=1)
        if not {"prompt", "answer"} <= set(self.table):
            raise ValueError("problems: the profile has no prompt and no answer of its problems")
        rates = self.posteriors(self.weights[0]) @ GRID
        table = self.table.assign(expected=rates)
        table = table[table["expected"].between(low, high) & (table["status"] != "suspicious")]
        if table.empty:
            raise ValueError(f"low={low}, high={high}: no problem has such a success rate")
        levels = np.minimum(10 * (1 - table["expected"]), 9).astype(int)
        columns = table["problem"], table["prompt"], table["answer"], levels
        return Pool(Problem(str(a), str(b), str(c), int(d)) for a, b, c, d in zip(*columns))

    def plan(self, methods: Any, **options: Any) -> pd.DataFrame:
        """What each method would sample, train on and waste; see `workbench.trials.plan.plan`."""
        return plan(self, methods, **options)

    def plot(self, **frame: Any) -> Axes:
        """The share of problems by success rate: what was counted, and the fit."""
        from workbench.plots.style import framed

        labels = {"xlabel": "success rate", "ylabel": "share of problems", "legend": "above"}
        edges = np.linspace(0, 1, 12)
        with framed(**{**labels, **frame}) as ax:
            # A bin has the same width everywhere, and 0 and 1 are in the outer ones.
            shares = [np.histogram(GRID, edges, weights=each)[0] for each in self.weights]
            counted = np.histogram(self.table["rate"], edges)[0] / len(self.table)
            middle = (edges[1:] + edges[:-1]) / 2
            low, high = np.quantile(shares[1:], (0.025, 0.975), axis=0)
            ax.bar(middle, counted, 0.08, alpha=0.35, label="share right of the samples")
            fit = shares[0]
            error = [np.maximum(fit - low, 0), np.maximum(high - fit, 0)]
            ax.errorbar(middle, fit, error, fmt="o", label="fitted rates, 95 % interval")
            ax.set_xlim(0, 1)
            ax.set_ylim(0)
        return ax

    def __repr__(self) -> str:
        table = self.table
        share, low, high = self.expected(GRID**GROUP + (1 - GRID) ** GROUP)
        mean, mean_low, mean_high = self.expected(GRID)
        kinds = table["status"].value_counts()
        found = ", ".join(f"{kinds.get(k, 0)} {k}" for k in ("hopeless", "done", "suspicious"))
        lines = [
            f"{len(table)} problems, {table['samples'].median():g} samples each: success rate "
            f"{mean:.1%} [{mean_low:.1%}, {mean_high:.1%}]",
            f"groups of {GROUP} without a gradient: {share:.1%} [{low:.1%}, {high:.1%}]",
            f"problems: {found}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def likelihoods(samples: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """The probability of the counts (P,) each at every rate of `GRID`, (P, G)."""
    n, c = samples[:, None].astype(float), correct[:, None].astype(float)
    ways = gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1)
    return np.exp(ways + xlogy(c, GRID) + xlog1py(n - c, -GRID))


def profile(
    lab: Lab,
    *,
    samples: int = 16,
    problems: Any = None,
    out: Any = None,
    seed: int = 0,
) -> Profile:
    """Sample responses to the problems of a lab, verify them, and say what they mean for training.

    Parameters
    ----------
    lab : Lab
        Any: its policy samples as in an evaluation, and nothing is trained.
    samples : int
        Responses to each problem.
    problems : int or Pool, optional
        How many of the lab's training problems, or which problems. None: 200, or all where the lab
        has fewer.
    out : path, optional
        A folder. Responses are stored there after every few problems, and the same call goes on
        where an earlier one ended. None: they stay in memory.
    seed : int
        Of the draws, and of which problems are asked.

    Returns
    -------
    Profile

    Raises
    ------
    ValueError
        For wrong arguments, a verifier that gives rewards without a verdict, and a folder with
        responses of another lab or of other arguments.
    """
    instance_of("lab", lab, Lab, "labs.tiny()")
    whole_number("samples", samples, 1)
    whole_number("seed", seed, 0)
    folder = None if out is None else output("out", out)
    asked = _asked(lab, problems, seed)
    settings = {
        "lab": lab.description(),
        "samples": samples,
        "seed": seed,
        "problems": [[each.id, each.prompt, each.answer, each.level] for each in asked],
    }
    if folder is not None:
        _begin(folder, settings)
    return Profile(*_frames(asked, _sample(lab, asked, samples, seed, folder)))


def _asked(lab: Lab, problems: Any, seed: int) -> list[Problem]:
    """The problems that are asked."""
    if isinstance(problems, Pool):
        return list(problems)
    most = len(lab.problems) if isinstance(lab.problems, Pool) else None
    if problems is None:
        problems = PROBLEMS if most is None else min(most, PROBLEMS)
    if isinstance(problems, Sequence | bool):
        raise ValueError(f"problems={brief(problems)}: a number of problems or a Pool is needed")
    whole_number("problems", problems, 1, most)
    return lab.problems.draw(problems, 0, seed)[0]


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    """Write what is sampled, or check that it is what the folder has."""
    path = folder / SETTINGS
    text = json.dumps(settings, indent=1)
    if path.exists():
        found = json.loads(files.read_ordinary(path))
        other = [name for name, value in json.loads(text).items() if found.get(name) != value]
        if other:
            raise ValueError(
                f"out={str(folder)!r}: it has responses of other {', '.join(other)}; give the same "
                "arguments or another folder"
            )
        return
    files.make_directory(folder)
    files.write(path, text.encode())


def _sample(
    lab: Lab, asked: list[Problem], samples: int, seed: int, folder: Path | None
) -> list[pd.DataFrame]:
    """The responses to all problems, those stored before among them, by batches."""
    from tqdm import tqdm

    starts = range(0, len(asked), BATCH)
    policy = None
    done = []
    # A file gets a line now and then, a terminal a bar. Both have the time that remains.
    often = 0.1 if sys.stderr.isatty() else 30
    with tqdm(total=len(asked), desc="profile", unit="problem", mininterval=often) as bar:
        for start in starts:
            batch = asked[start : start + BATCH]
            path = None if folder is None else folder / f"{start // BATCH:06d}.parquet"
            if path is not None and path.exists():
                frame = _part(path)
            else:
                policy = policy or lab.make_policy()
                rollouts, right = answers(policy, batch, lab.verifier, samples, lab.sampling, seed)
                frame = rollouts.frame()[["problem", "truncated", "text", "length", "draw"]]
                frame = frame.assign(correct=right)
                if path is not None:
                    files.write(path, content_of(pa.Table.from_pandas(frame)))
            done.append(frame)
            bar.update(len(batch))
    return done


def _part(path: Path) -> pd.DataFrame:
    """The responses of one stored batch."""
    with reading(path):
        return pq.read_table(pa.BufferReader(files.read_ordinary(path))).to_pandas()


def _stored(folder: Path) -> Profile:
    """The profile in a folder of `profile`, with as many problems as are done."""
    settings = json.loads(files.read_ordinary(folder / SETTINGS))
    asked = [Problem(*each) for each in settings["problems"]]
    parts = [_part(path) for path in sorted(folder.glob("*.parquet"))]
    if not parts:
        raise ValueError(f"path={str(folder)!r}: nothing was sampled yet")
    return Profile(*_frames(asked, parts))


def _frames(
    asked: list[Problem], parts: list[pd.DataFrame]
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """The table of problems, the responses, and what to know of them."""
    rollouts = pd.concat(parts, ignore_index=True)
    rollouts["given"] = [final_answer(text) for text in rollouts["text"]]
    known = pd.DataFrame([vars(each) for each in asked]).rename(columns={"id": "problem"})
    table = tally(rollouts).merge(known, on="problem")
    missing = len(asked) - len(table)
    return table, rollouts, [f"{missing} problems are not sampled yet"] if missing else []


def _agreement(given: pd.Series) -> float:
    """The share of responses that give the most frequent answer."""
    return given.value_counts().max() / len(given) if given.notna().any() else 0.0

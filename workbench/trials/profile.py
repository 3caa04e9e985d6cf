"""`wb.profile`: what a model does on problems before it is trained.

A handful of responses to each problem say how often the model is right there. A `Profile` holds
these counts, whoever sampled them, and says what they mean for training: how success rates are
distributed (`workbench.trials.rates`), how many groups of n rollouts would have no gradient, which
problems teach nothing. What each method would do there is worked out in `workbench.trials.plan`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.evaluation import answers, at_rest
from workbench.labs import Lab
from workbench.methods import Method
from workbench.pools import Pool, Problem
from workbench.records import files
from workbench.records.manifest import made_of, tokenizer_of
from workbench.records.tables import content_of, reading
from workbench.trials.beliefs import Started
from workbench.trials.plan import group_costs, plan
from workbench.trials.rates import GRID, Rates
from workbench.trials.samples import final_answer, read_samples, tally
from workbench.utils.code import digest_of, own_code
from workbench.utils.validation import instance_of, number, output, whole_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (2, 4, 8, 16, 32, 64)  # rollouts of a group
GROUP = 8  # rollouts of the usual group, by which a problem counts as hopeless or done
SURE = 0.8  # it does where such a group is all wrong, or all right, with this probability
BATCH = 8  # problems that are sampled at once and then stored
PROBLEMS = 200  # sampled where nobody says how many
SETTINGS = "profile.json"
DIGEST = b"sha256"  # among what a part says of itself


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
    rates : Rates
        The distribution of the success rates.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        rollouts: pd.DataFrame | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.rollouts = rollouts
        self.notes = list(notes)
        self.rates = Rates(*table[["samples", "correct"]].to_numpy(np.int64).T)
        posterior = self.rates.of_problems()
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
        for size in sizes:
            whole_number("sizes", size, 1, 4096)
        n = np.array(sizes, dtype=np.int64)[:, None]
        right, wrong = GRID**n, (1 - GRID) ** n
        table = pd.DataFrame({"n": sizes})
        expected = self.rates.expected
        table[["no_gradient", "low", "high"]] = expected(np.minimum(right + wrong, 1))
        table["all_right"], table["all_wrong"] = expected(right)[:, 0], expected(wrong)[:, 0]
        table[["pass_at_n", "pass_low", "pass_high"]] = expected(1 - wrong)
        length = self.table["length"].mean() if "length" in self.table else 1.0
        return table.assign(cost=group_costs(table, length, machine))

    def best_n(self, machine: Any = "l40s", most: int = 64) -> int:
        """The group size at which a group with a gradient costs GRPO least on a machine.

        It counts groups, and a larger group also has a better estimate of its gradient: take it for
        the least n that is worth sampling.
        """
        whole_number("most", most, 2, 4096)
        table = self.by_n(range(2, most + 1), machine)
        return int(table["n"][table["cost"].argmin()])

    def lengths(self) -> pd.DataFrame:
        """Responses by outcome, "right" and "wrong": responses, mean length in tokens with low and
        high (Student's 95 % interval, a problem counting once), and the share truncated. Empty
        where the lengths are not known.
        """
        from workbench.analysis.intervals import Measurement

        rows = {}
        if self.rollouts is not None and "length" in self.rollouts:
            named = self.rollouts["correct"].map({True: "right", False: "wrong"})
            for name, part in self.rollouts.groupby(named):
                lengths = Measurement(part.groupby("problem")["length"].mean().to_numpy(float))
                cut = part["truncated"].mean() if "truncated" in part else np.nan
                rows[name] = len(part), lengths.value, lengths.low, lengths.high, cut
        columns = ["responses", "length", "low", "high", "truncated"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns)

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
        rates = self.rates.of_problems() @ GRID
        table = self.table.assign(level=np.minimum(10 * (1 - rates), 9).astype(int))
        kept = (low <= rates) & (rates <= high) & (table["status"] != "suspicious")
        if not kept.any():
            raise ValueError(f"low={low}, high={high}: no problem has such a success rate")
        kept_rows = table.loc[kept, ["problem", "prompt", "answer", "level"]].to_numpy()
        return Pool(
            Problem(str(name), str(prompt), str(answer), int(level))
            for name, prompt, answer, level in kept_rows
        )

    plan = plan  # so that help shows its arguments

    def start(self, method: Method) -> Method:
        """The method with the success rates of the profile, in place of none, before round 1.

        Its problems are those of the lab by their ids: profile the lab, or train on `problems`.

        Raises
        ------
        ValueError
            For a method that keeps no success rates.
        """
        instance_of("method", method, Method, "methods.knapsack()")
        rows = self.table[["problem", "samples", "correct"]].itertuples(index=False, name=None)
        started = Started(method.name, **method.slots(), seen=tuple(rows))
        if not started.beliefs():
            raise ValueError(f"method={method.name!r}: none of its slots keeps success rates")
        return started

    def plot(self, **frame: Any) -> Axes:
        """The share of problems by success rate: what was counted, and the fit."""
        from workbench.plots.style import framed

        labels = {"xlabel": "success rate", "ylabel": "share of problems", "legend": "above"}
        # A bin has the same width everywhere, and 0 and 1 are in the outer ones.
        edges = np.linspace(0, 1, 12)
        middle = (edges[1:] + edges[:-1]) / 2
        counted = np.histogram(self.table["rate"], edges)[0] / len(self.table)
        in_bin = np.digitize(GRID, edges[1:-1]) == np.arange(len(middle))[:, None]
        fit, low, high = self.rates.expected(in_bin.astype(float)).T
        with framed(**{**labels, **frame}) as ax:
            ax.bar(middle, counted, 0.08, alpha=0.35, label="share right of the samples")
            error = [fit - low, high - fit]
            ax.errorbar(middle, fit, error, fmt="o", label="fitted rates, 95 % interval")
            ax.set_xlim(0, 1)
            ax.set_ylim(0)
        return ax

    def __repr__(self) -> str:
        table = self.table
        share, low, high = self.rates.expected(GRID**GROUP + (1 - GRID) ** GROUP)
        mean, mean_low, mean_high = self.rates.counted()
        kinds = table["status"].value_counts()
        found = ", ".join(f"{kinds.get(k, 0)} {k}" for k in ("hopeless", "done", "suspicious"))
        samples = " to ".join(map(str, sorted({table["samples"].min(), table["samples"].max()})))
        lines = [
            f"{len(table)} problems, {samples} samples each: success rate "
            f"{mean:.1%} [{mean_low:.1%}, {mean_high:.1%}]",
            f"groups of {GROUP} without a gradient: {share:.1%} [{low:.1%}, {high:.1%}]",
            f"problems: {found}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


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
    if out is not None:
        out = output("out", out)
    asked = _asked(lab, problems, seed)
    settings = {
        "lab": lab.description(),
        "code": digest_of(own_code([lab.verifier, lab.make_policy])),
        "samples": samples,
        "seed": seed,
        "problems": [astuple(each) for each in asked],
    }
    with TemporaryDirectory() as memory:
        folder = Path(memory if out is None else out)
        _check(folder, settings)
        policy = lab.make_policy()
        # Of weights and tokenizer the lab's description does not say more than a name.
        if hasattr(policy, "state_dict"):
            settings |= {"policy": made_of(policy), "tokenizer": tokenizer_of(policy)}
        _check(folder, settings)
        if not (folder / SETTINGS).exists():
            files.make_directory(folder)
            files.write(folder / SETTINGS, json.dumps(settings, indent=1).encode())
        _sample(lab, policy, asked, samples, seed, folder)
        return _stored(folder)


def _asked(lab: Lab, problems: Any, seed: int) -> list[Problem]:
    """The problems that are asked."""
    if isinstance(problems, Pool):
        return list(problems)
    most = len(lab.problems) if isinstance(lab.problems, Pool) else None
    if problems is None:
        problems = PROBLEMS if most is None else min(most, PROBLEMS)
    whole_number("problems", problems, 1, most)
    return lab.problems.draw(problems, 0, seed)[0]


def _check(folder: Path, settings: dict[str, Any]) -> None:
    """ValueError unless the folder has nothing yet, or responses to what is asked for."""
    path = folder / SETTINGS
    if not path.exists():
        return
    with reading(path):
        found = dict(json.loads(files.read_ordinary(path)))
    asked = json.loads(json.dumps(settings))
    # Folders of earlier versions do not say everything.
    other = [name for name, value in asked.items() if found.get(name, value) != value]
    if other:
        raise ValueError(
            f"out={str(folder)!r}: it has responses of other {', '.join(other)}; give the same "
            "arguments or another folder"
        )


def _sample(
    lab: Lab, policy: Any, asked: list[Problem], samples: int, seed: int, folder: Path
) -> None:
    """Sample what the folder does not have yet, batch by batch."""
    from tqdm.auto import tqdm
    from tqdm.notebook import tqdm_notebook

    settings = files.read_ordinary(folder / SETTINGS)
    # A file gets a line now and then, a terminal or a notebook a bar. All have the time that
    # remains.
    often = 0.1 if issubclass(tqdm, tqdm_notebook) or sys.stderr.isatty() else 30
    with tqdm(total=len(asked), desc="profile", unit="problem", mininterval=often) as bar:
        for start in range(0, len(asked), BATCH):
            batch = asked[start : start + BATCH]
            path = folder / f"{start // BATCH:06d}.parquet"
            if not path.exists():
                with at_rest(policy):
                    rollouts, right = answers(
                        policy, batch, lab.verifier, samples, lab.sampling, seed
                    )
                frame = rollouts.frame()[["problem", "truncated", "text", "length", "draw"]]
                frame["correct"] = right
                table = pa.Table.from_pandas(frame, preserve_index=False)
                # In place of what only pandas needs.
                table = table.replace_schema_metadata({DIGEST: _digest(frame, settings)})
                files.write(path, content_of(table))
            bar.update(len(batch))


def _digest(frame: pd.DataFrame, settings: bytes) -> bytes:
    """A digest of responses and of what was asked for."""
    return files.digest_of(settings + frame.to_json(orient="split", index=False).encode()).encode()


def _stored(folder: Path) -> Profile:
    """The profile in a folder of `profile`, with as many problems as are done."""
    parts = []
    with reading(folder / SETTINGS):
        written = files.read_ordinary(folder / SETTINGS)
        settings = json.loads(written)
        asked = pd.DataFrame(settings["problems"], columns=["problem", "prompt", "answer", "level"])
    for path in sorted(folder.glob("*.parquet")):
        with reading(path):
            part = pq.read_table(pa.BufferReader(files.read_ordinary(path)))
            parts.append(part.to_pandas())
            # Parts of earlier versions have none.
            digest = (part.schema.metadata or {}).get(DIGEST)
            if digest not in (None, _digest(parts[-1], written)):
                raise ValueError(f"it, or {SETTINGS}, is not as it was written")
            # A copy of another part would count that one's problems twice.
            batch = asked["problem"][BATCH * int(path.stem) :][:BATCH]
            if sorted(parts[-1]["problem"]) != sorted(batch.repeat(settings["samples"])):
                raise ValueError("it has other problems, or other numbers of samples, than asked")
    if not parts:
        raise ValueError(f"path={str(folder)!r}: nothing was sampled yet")
    rollouts = pd.concat(parts, ignore_index=True)
    rollouts["given"] = rollouts["text"].map(final_answer)
    table = tally(rollouts).merge(asked, on="problem")
    missing = len(asked) - len(table)
    notes = [f"{missing} problems are not sampled yet"] if missing else []
    return Profile(table, rollouts, notes)


def _agreement(given: pd.Series) -> float:
    """The share of responses that give the most frequent answer."""
    return given.value_counts().max() / len(given) if given.notna().any() else 0.0

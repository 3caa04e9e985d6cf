"""`Profile.plan`: what each method would sample, train on and waste on a profile.

Every method's own slots play whole rounds through `rounds.play`. Instead of a model, success rates
answer: each problem has one, drawn for every repetition from what its samples and the fit to all
problems allow. A made-up response then takes its length from a stored one with the same outcome.
The model does not learn, so a plan is about the first rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from workbench.analysis.cost import MACHINES, CostModel
from workbench.checks import checked_problems
from workbench.grpo import mark
from workbench.methods import Method
from workbench.policies import Sampling
from workbench.pools import Pool, PoolExhausted, Problem
from workbench.rollouts import Context, Rollouts
from workbench.rounds import play
from workbench.rules import rewards
from workbench.trials.arms import named
from workbench.trials.check import UniformPolicy, made_up, with_course
from workbench.utils.seeding import derive, generator
from workbench.utils.validation import instance_of, one_of, whole_number

# Each column that counts rollouts, and the one that counts their tokens.
TOKENS = {
    "rollouts": "tokens_sampled",
    "selected": "tokens_selected",
    "trained": "tokens_trained",
}


def plan(
    profile: Any,
    methods: Any,
    *,
    problems_per_round: int | None = None,
    rounds: int = 4,
    machine: Any = "l40s",
    repetitions: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """What each method would sample, train on and waste in its first rounds on a profile.

    Parameters
    ----------
    profile : Profile
    methods : arm, list of arms, or dict from label to arm
        Methods, names of them, or values of a slot, as `wb.trial` takes them.
    problems_per_round : int, optional
        None: 32, or all problems where the profile has fewer.
    rounds : int
        A method that remembers problems shows it once there are more rounds than one epoch has.
    machine : str or CostModel
        A name of `analysis.cost.MACHINES`, or a model of your own, such as `cost.of_machine` fits.
    repetitions : int
        Each with other success rates, another order of problems and other draws; at least 2.
    seed : int

    Returns
    -------
    DataFrame
        One row a method. Means of a round: rollouts, tokens (sampled, without prompts; NaN where
        lengths are not known), trained (rollouts with a gradient), groups (problems with such
        rollouts), gradient_weight (sum of p (1 - p) over them, with p the success rate: the
        expected squared gradient, if all responses had gradients of one size), cost in the
        machine's unit, seconds (NaN where the machine's unit is not known in seconds) and
        cost_per_group. Of all rounds: effective_gradient_ratio with low and high, within which 95 %
        of runs are expected. cannot_say names what a plan leaves open.

    Raises
    ------
    ValueError
        For more problems in a round than the profile has, and for unknown methods.
    """
    size = len(profile.table)
    if problems_per_round is None:
        problems_per_round = min(32, size)
    whole_number("problems_per_round", problems_per_round, 1, size)
    whole_number("rounds", rounds, 1)
    whole_number("repetitions", repetitions, 2)
    model = machine_of(machine)
    knows_lengths = "length" in profile.table
    rows = []
    for arm in named(methods):
        method = arm.method
        played = []
        for repetition in range(repetitions):
            own_seed = derive(seed, "plan", repetition)
            one = _Rehearsal(profile, method, problems_per_round, own_seed, repetition)
            for number in range(1, rounds + 1):
                played.append({"repetition": repetition, **one.round(number)})
        table = pd.DataFrame(played)
        means = table.mean()
        sums = table.groupby("repetition")[["trained", "selected"]].sum()
        ratios = sums["trained"] / sums["selected"].where(sums["selected"] > 0)
        # Where the next run lies, and not where the mean of many does.
        half = stats.t.ppf(0.975, repetitions - 1) * ratios.std() * np.sqrt(1 + 1 / repetitions)
        cost = model.per_round(table).mean()
        open_questions = "what is learnt"
        if method.course is not None:
            open_questions += ", and what its course changes"
        if any(not isinstance(part, rewards.Correct | rewards.Overlong) for part in method.reward):
            open_questions += ", and what its reward reads in texts"
        rows.append(
            {
                "method": arm.label,
                "rollouts": means["rollouts"],
                "tokens": means["tokens_sampled"] if knows_lengths else np.nan,
                **means[["trained", "groups"]],
                "effective_gradient_ratio": ratios.mean(),
                "low": max(0.0, ratios.mean() - half),
                "high": min(1.0, ratios.mean() + half),
                "gradient_weight": means["gradient_weight"],
                "cost": cost,
                "seconds": cost * model.seconds,
                "cost_per_group": cost / means["groups"] if means["groups"] else np.inf,
                "cannot_say": open_questions,
            }
        )
    return pd.DataFrame(rows)


def machine_of(machine: Any) -> CostModel:
    """The cost model that somebody means."""
    if isinstance(machine, str):
        one_of("machine", machine, MACHINES)
        return MACHINES[machine]
    instance_of("machine", machine, CostModel, "cost.MACHINES['l40s']")
    return machine


def group_costs(table: pd.DataFrame, length: float, machine: Any) -> np.ndarray:
    """What a group with a gradient costs under GRPO, with the groups without one that come with it.

    table: n and no_gradient in each row; length: mean tokens of a response.
    """
    # A group of one rollout is never mixed, but for rounding.
    n, mixed = table["n"], (1 - table["no_gradient"]).clip(lower=0).round(12)
    counts = {"rollouts": n, "selected": n, "trained": n * mixed}
    tokens = {TOKENS[name]: count * length for name, count in counts.items()}
    return machine_of(machine).per_round(pd.DataFrame({**counts, **tokens, "problems": 1})) / mixed


class _Rehearsal:
    """The rounds of one method on a profile, with success rates in place of a model."""

    def __init__(self, profile: Any, method: Method, problems: int, seed: int, number: int) -> None:
        self.method = method.clone()
        self.problems = problems
        self.seed = seed
        table = profile.table
        self.rates = dict(zip(table["problem"], profile.rates.draw(number, seed)))
        levels = table.get("level", pd.Series(0, table.index)).fillna(0).astype(int)
        prompts = table.get("prompt", table["problem"])
        answers = table.get("answer", pd.Series("", table.index))
        named = zip(table["problem"], prompts, answers, levels.tolist())
        self.pool = Pool(itertools.starmap(Problem, named))
        self.lengths = _lengths(profile)
        self.limit = max(int(lengths.max()) for lengths in self.lengths.values())

    def round(self, number: int) -> dict[str, float]:
        """Play a round and return its numbers."""
        method = self.method
        context = Context(self.seed, number, policy=UniformPolicy(), max_new_tokens=self.limit)

        def choose(n: int, problems: Sequence[Problem]) -> list[Problem]:
            taken = frozenset(problem.id for problem in problems)
            try:
                chosen = method.curriculum.choose(self.pool, n, replace(context, taken=taken))
            except PoolExhausted:
                return []  # a profile is a sample, and the real pool would have more
            chosen = checked_problems("curriculum", chosen, taken, n)
            for problem in chosen:
                if problem.id not in self.rates:
                    raise ValueError(f"curriculum: the profile has no problem {problem.id!r}")
            return chosen

        problems = choose(self.problems, [])
        context = replace(context, epoch=method.curriculum.epoch)

        def sample(
            problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, stage: int
        ) -> Rollouts:
            rng = generator(self.seed, "rollouts", number, stage)
            places = np.repeat(np.arange(len(problems)), counts)
            asked = [problems[place].id for place in places]
            correct = rng.random(len(asked)) < [self.rates[problem] for problem in asked]
            lengths = []
            for problem, right, draw in zip(asked, correct.tolist(), rng.random(len(asked))):
                known = self.lengths.get((problem, right), self.lengths[right])
                lengths.append(known[int(draw * len(known))])
            table = made_up(problems, places, before, correct, lengths, stage, number, rng)
            if method.course is not None:
                table, _ = with_course(table, method.course, problems, counts, before, context)
            return rewards.total(table, method.reward, Sampling(max_new_tokens=self.limit))

        outcome = play(method, problems, context, sample, choose)
        finished = mark(
            outcome.rollouts, outcome.rows, outcome.advantages, [], number, outcome.weights
        )
        method.feedback(finished, context)
        trained = finished["trained"]
        is_new = finished.round == number
        masks = {"rollouts": is_new, "selected": finished["selected"], "trained": trained}
        row = {name: float(rows.sum()) for name, rows in masks.items()}
        row |= {TOKENS[name]: float(finished.lengths[rows].sum()) for name, rows in masks.items()}
        rates = np.array([self.rates[problem] for problem in finished.problem[trained]])
        row["gradient_weight"] = float(np.sum(rates * (1 - rates)))
        row["groups"] = len(np.unique(finished.problem[trained]))
        row["problems"] = len(np.unique(finished.problem[is_new]))
        return row


def _lengths(profile: Any) -> dict[Any, np.ndarray]:
    """Lengths of responses by (problem, outcome) and by outcome; 1 where none are known."""
    rows = profile.rollouts
    if rows is None or "length" not in rows:
        # The mean of a problem stands for its right and its wrong responses.
        rows = pd.concat(profile.table.assign(correct=right) for right in (True, False))
    length = rows.get("length", pd.Series(1.0, rows.index))
    length = length.fillna(length.mean()).fillna(1).clip(lower=1)
    rows = rows.assign(length=length.round().astype(np.int64))
    found: dict[Any, np.ndarray] = dict.fromkeys((True, False), rows["length"].to_numpy())
    for keys in ("correct", ["problem", "correct"]):
        found |= {key: part.to_numpy() for key, part in rows.groupby(keys)["length"]}
    return found

"""The papers as compositions: each method is its slots, a few lines.

Papers: PODS (arXiv 2504.13818), AR3PO, Knapsack RL, AERO, CBS and, as the baselines they share, GRPO, DAPO, GSPO and Dr. GRPO.
Settings that belong to the model and the machine (learning rate, response length) are the lab's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from workbench import allocators, selectors
from workbench import replay as reuse
from workbench.advantages import group_normalized, posterior
from workbench.allocators import Uniform
from workbench.objectives import Objective
from workbench.rewards import Correct, Overlong
from workbench.scheduler import Scheduler
from workbench.selectors import All
from workbench.utils.checks import check_slots
from workbench.utils.columns import is_number, whole_number
from workbench.utils.descriptions import compose
from workbench.utils.html import card

PAPERS = ("grpo", "dapo", "gspo", "dr_grpo", "pods", "ar3po", "knapsack", "aero", "cbs")


@dataclass(frozen=True, repr=False)
class Method:
    """What a paper decides. Any value of a slot goes with any value of the others.

    allocator: how many rollouts for which problem; reuse: which old responses join (None: none); selector: which
    rollouts are trained on; advantage: function of rewards (R,) and groups (R,); objective: the loss; reward: the
    parts that are summed to what the advantage reads. `method.but(selector=...)` changes slots.
    """

    name: str
    allocator: Any = field(default_factory=Uniform)
    reuse: Any = None
    selector: Any = field(default_factory=All)
    advantage: Callable = group_normalized
    objective: Objective = field(default_factory=Objective)
    reward: tuple = (Correct(),)

    def __post_init__(self):
        check_slots(self)

    def __repr__(self):
        slots = ", ".join(f"{name}={compose(value)}" for name, value in self.slots().items())
        return f"Method({self.name!r}, {slots})"

    def _repr_html_(self):
        return card(
            f"Method {self.name}", [(name, compose(value)) for name, value in self.slots().items()]
        )

    def slots(self):
        """Name and value of every slot, in the order of a round."""
        return {f.name: getattr(self, f.name) for f in fields(self)[1:]}

    def but(self, **changes):
        """The same method with other slots or another name."""
        return replace(self, **changes)


def grpo(n=8, clip=(0.2, 0.28), **objective):
    """Group relative policy optimisation: n rollouts a problem, all trained on, advantages (r - mean) / std.

    n=8 as in AR3PO 4, Knapsack RL 3 and CBS table 4. Clip 0.2 / 0.28 (Knapsack RL F) and no KL term (PODS, AR3PO,
    Knapsack RL); one mean over all tokens of a step. The mean over rollouts of token means (CBS appendix A) is
    `grpo(mean="rollout")`, the penalty of AERO eq. 2 `grpo(kl=...)`. PODS's baseline with gradient accumulation
    (GRPO-GA, n=16) is `grpo(n=16)`: the lab's `micro_tokens` accumulates, and the step does not depend on it.
    """
    return Method("grpo", Uniform(n), objective=Objective(clip=clip, **objective))


def dapo(n=8, groups=None, max_draws=3, clip=(0.2, 0.28), overlong=0.2):
    """DAPO: dynamic sampling, clip-higher, token mean and a soft penalty on overlong responses (CBS appendix A).

    max_draws=3: 1536 problems for 512 (AR3PO 4); at that bound the round goes on with the mixed groups it has. groups:
    wanted mixed groups, None for a round's problems. overlong: last share of the length limit that is penalised, 0 for
    no penalty.
    """
    parts = (Correct(), Overlong(buffer=overlong)) if overlong else (Correct(),)
    return Method(
        "dapo",
        allocators.DynamicSampling(n, groups, max_draws),
        objective=Objective(clip=clip),
        reward=parts,
    )


def gspo(n=8, clip=(3e-4, 4e-4)):
    """Group sequence policy optimisation: the ratio is that of whole responses (CBS appendix A, eq. 18-19).

    The sequence ratio moves far less than a token's, hence the narrow clip range of the GSPO paper.
    """
    return Method(
        "gspo", Uniform(n), objective=Objective(clip=clip, ratio="sequence", mean="rollout")
    )


def dr_grpo(n=8, clip=(0.2, 0.28), length=None):
    """GRPO without its two normalisations: no division by the deviation, a constant in place of the length."""
    return Method(
        "dr_grpo",
        Uniform(n),
        advantage=partial(group_normalized, scale=False),
        objective=Objective(clip=clip, mean="constant", length=length),
    )


def pods(n=64, m=16, rule="max_variance", statistics="selected", clip=(0.2, 0.28)):
    """PODS: n rollouts a problem, the update on m of them (section 3.2, algorithm 1).

    (64, 16) is setting (a), (32, 8) setting (b), (128, 32) setting (c) of section 4.1. rule: "max_variance" (algorithm
    2), "max_reward" or "random" (section 3.2). statistics: mean and deviation of the chosen m (section 3.2), or of the
    whole "pool". The population deviation, as in the text; the released code has the sample one plus 1e-4:
    `pods().but(advantage=partial(group_normalized, ddof=1, eps=1e-4))`.
    """
    rules = {
        "max_variance": selectors.MaxVariance,
        "max_reward": selectors.MaxReward,
        "random": selectors.Random,
    }
    if rule not in tuple(rules):
        raise ValueError(f"rule={rule!r}: allowed are {', '.join(rules)}")
    whole_number("m", m, 1)
    if m > Uniform(n).n:
        raise ValueError(f"m={m}: a whole number from 1 to n={n} is needed")
    return Method(
        "pods",
        Uniform(n),
        selector=rules[rule](m, statistics=statistics),
        objective=Objective(clip=clip),
    )


def ar3po(stages=2, k=4, mode="stop-gradient", capacity=None, clip=(0.2, 0.28)):
    """AR3PO: rollouts in stages for unsolved problems, and reuse of an old correct response (algorithm 1).

    stages=2, k=4: at most 8 rollouts (section 4). mode: "stop-gradient" is option II, the paper's choice (table 2),
    "recompute" option I, "direct" plain replay; None reuses nothing. capacity: see `CorrectResponses`.
    """
    kept = None if mode is None else reuse.CorrectResponses(mode, capacity)
    return Method("ar3po", allocators.Staged(stages, k), kept, objective=Objective(clip=clip))


def knapsack(
    n=8,
    low=2,
    up=128,
    info_gain=True,
    fallback=True,
    rates="last",
    estimator="grpo",
    clip=(0.2, 0.28),
):
    """Knapsack RL: the greatest summed value of a round's n rollouts a problem (eq. 5-6).

    low=2, up=128 (appendix G.4); fallback for never solved problems (appendix C); rates from the last 16 rollouts
    (appendix F), or another kind of `SuccessRates`. Advantages over std + 1e-6, clipped to [-5, 5], and clip 0.2 / 0.28
    (appendix F).
    """
    known = allocators.SuccessRates(rates) if isinstance(rates, str) else rates
    budget = allocators.Knapsack(n, None, low, up, info_gain, fallback, estimator, known)
    return Method(
        "knapsack",
        budget,
        advantage=partial(group_normalized, eps=1e-6, clip=5.0),
        objective=Objective(clip=clip),
    )


def aero(
    explore=8,
    total=16,
    n_max=32,
    k_max=10,
    extra=2,
    k=1,
    uniform=4,
    prior=(1.0, 1.0),
    clip=(0.2, 0.2),
    entropy=1e-3,
    kl=0.0,
):
    """AERO: explore, rescue, reject, and a posterior in place of the dead zone (algorithm 1, section 4).

    explore=8, total=16, n_max=32, k_max=10, extra=2, Beta(1, 1), entropy bonus 1e-3 and clip 0.2 on both sides (table
    9, maths; for code extra=4, k_max=3). k=1 wrong for each correct in partial groups, uniform=4 of a group that stays all alike.
    prior=None trains with plain group advantages. kl: the penalty of eq. 2, off by default as in the other methods.
    The mean over rollouts of token means (eq. 2).
    """
    if prior is not None and not (
        isinstance(prior, (tuple, list)) and len(prior) == 2 and all(map(is_number, prior))
    ):
        raise ValueError(
            f"prior={prior!r}: the two parameters of a Beta distribution are needed, or None"
        )
    advantage = (
        group_normalized if prior is None else partial(posterior, alpha=prior[0], beta=prior[1])
    )
    return Method(
        "aero",
        allocators.Rescue(explore, total, 0, n_max, k_max, extra),
        selector=selectors.Rejection(k, uniform),
        advantage=advantage,
        objective=Objective(clip=clip, mean="rollout", kl=kl, entropy=entropy),
    )


def cbs(base="grpo", scope="group", p=None, rounds=2, n=8, mini_batch=None, **scheduler):
    """CBS: of the rollouts of `base`, those that a learnt scheduler puts first (algorithm 1, table 4).

    base: "grpo" (with the mean over rollouts of token means, eq. 14), "dapo" or "gspo". DAPO keeps its dynamic
    sampling; the scheduler chooses among the groups that pass it (section 6.2). scope: "group", the best of every group
    (CBS*, definition 3.1); "round", of the round (what the authors ran, appendix D); "buffer", as many as a round has,
    of the last `rounds` rounds (CBS, definition 3.2): 2, since table 4 has M=2048 at 1024 a round; figure 10 has 1 to
    5 (with 2, and one step a round, every candidate's clip ratio is still 0: its first use is on-policy). p:
    percent kept, None for table 4's 30, and 100 with a buffer. mini_batch: rollouts a step (128 in appendix D).
    scheduler: further arguments of `Scheduler`. Table 4 ends exploration at 0.2, with GSPO at 0.005, and charges
    entropy above 0.1 nats with GRPO, above 0.5 with the others.
    """
    bases = {
        "grpo": (partial(grpo, mean="rollout"), 0.2, 0.1),
        "dapo": (dapo, 0.2, 0.5),
        "gspo": (gspo, 0.005, 0.5),
    }
    if base not in tuple(bases):
        raise ValueError(f"base={base!r}: allowed are {', '.join(bases)}")
    if "keep" in scheduler:
        raise ValueError(f"keep={scheduler['keep']!r}: the percentage kept is given as p")
    make, floor, least = bases[base]
    slot = Scheduler(p, scope, mini_batch, **{"floor": floor, "entropy_least": least, **scheduler})
    return make(n).but(
        name="cbs", reuse=reuse.Buffer(rounds) if scope == "buffer" else None, selector=slot
    )

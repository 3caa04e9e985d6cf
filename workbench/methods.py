"""The papers as compositions: each method is a choice of slot values, in a few lines.

Five papers that the notebooks reproduce: PODS (arXiv 2504.13818), AR3PO (2509.25808), Knapsack RL
(2509.25849), AERO (2602.14338), CBS (2602.08499). The baselines that they share: GRPO, DAPO, GSPO
and Dr. GRPO. Further papers, by what they decide:

    which problems         greso, mopps, mapp, dps, cures, adarft
    how many rollouts      reinforce_ada, reinforce_ada_est, speed, pilot_commit, hora, vip, lilo
    where a rollout starts prefix_sampling, prefix_rl, spec_rl, partial_rollouts
    when it stops          duet, arrol
    which old responses    rlep, experience_replay, exgrpo
    which rollouts         cppo, ragen, pruned
    how good               asymmetric, gdpo, maxrl, pass_at_k, pkpo, rl_zvp, discounted_beta
    the loss               cispo, sapo, gmpo, clip_cov, kl_cov

Every default is cited, and where a paper was read only in part the docstring says how far it can be
trusted. Settings that belong to the model and the machine, such as the learning rate and the
response length, are the lab's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from workbench.objectives import Objective
from workbench.rollouts import Context, Rollouts
from workbench.rules import advantages, allocators, courses, curricula, replay, selectors
from workbench.rules.advantages import GroupNormalized
from workbench.rules.allocators import Uniform
from workbench.rules.rewards import Correct, Overlong
from workbench.slots import NEEDS, PerProblem, Slot, needs_of
from workbench.utils.bounds import pair
from workbench.utils.descriptions import compose, describe
from workbench.utils.html import card
from workbench.utils.names import MORE_PAPERS as MORE_PAPERS
from workbench.utils.names import PAPERS as PAPERS
from workbench.utils.validation import instance_of, is_number, one_of, shown, whole_number

# Slot -> (the method that its protocol names, an example), for the slots whose values may learn.
LEARNING_SLOTS = {
    "curriculum": ("choose", "curricula.ShuffledEpochs()"),
    "allocator": ("allocate", "allocators.Uniform(8)"),
    "course": ("plan", "courses.PrefixSampling(), or None"),
    "replay": ("join", "replay.CorrectResponses(), or None"),
    "selector": ("select", "selectors.MaxVariance(4)"),
    "advantage": ("__call__", "advantages.GroupNormalized()"),
}
LARGEST_WHOLE = 2**53  # up to here every whole number is a float too


@dataclass(frozen=True, repr=False)
class Method:
    """What a paper decides. Any value of a slot goes with any value of the others.

    Attributes
    ----------
    name : str
    curriculum : slots.Curriculum
        Which problems come next.
    allocator : slots.Allocator
        How many rollouts for which problem.
    replay : slots.Replay, optional
        Which responses of earlier rounds join; None for none.
    selector : slots.Selector
        Which rollouts are trained on, and with which weight.
    advantage : slots.Advantage
        How good each of them is.
    objective : Objective
        The loss.
    reward : tuple of slots.Reward
        The parts that are summed to what the advantage reads.
    course : slots.Course, optional
        Where a rollout starts and when it stops; None for the problem, and for its own end.

    Examples
    --------
    >>> grpo().but(name="mine", selector=selectors.MaxVariance(4)).selector
    MaxVariance(m=4, baseline='selection')
    """

    name: str
    curriculum: Any = field(default_factory=curricula.ShuffledEpochs)
    allocator: Any = field(default_factory=Uniform)
    replay: Any = None
    selector: Any = field(default_factory=selectors.All)
    advantage: Any = field(default_factory=GroupNormalized)
    objective: Objective = field(default_factory=Objective)
    # The parts are frozen and learn nothing, so all methods can share the default.
    reward: tuple = (Correct(),)
    course: Any = None

    # Left out of a description at its default, see `slots.Slot.later`.
    later: ClassVar[tuple[str, ...]] = ("course",)

    def __post_init__(self) -> None:
        # It is shown in tables and on pages, and a manifest holds it.
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ValueError(f"name={shown(self.name)}: a text of one line is needed")
        slots = self.slots()
        for slot in LEARNING_SLOTS:
            _check_slot(slot, slots[slot])
        instance_of("objective", self.objective, Objective, "Objective(clip=(0.2, 0.28))")
        _check_reward(self.reward)
        for slot, value in slots.items():
            try:
                # A run would find out much later that no manifest can hold it.
                describe(value)
            except ValueError as error:
                raise ValueError(f"{slot}: {error}") from None
        _check_together(self.selector, self.advantage, self.reward)

    def __repr__(self) -> str:
        slots = ", ".join(f"{name}={text}" for name, text in self._shown())
        return f"Method({self.name!r}, {slots})"

    def _repr_html_(self) -> str:
        return card(f"Method {self.name}", self._shown())

    def _shown(self) -> list[tuple[str, str]]:
        """Name and text of every slot, without those of later versions that are empty."""
        slots = self.slots().items()
        return [
            (name, compose(value))
            for name, value in slots
            if value is not None or name not in self.later
        ]

    def slots(self) -> dict[str, Any]:
        """Name and value of every slot."""
        return {name: value for name, value in vars(self).items() if name != "name"}

    def but(self, **changes: Any) -> Method:
        """The same method with other slots or another name."""
        # `replace` calls the constructor, which checks the changed slots. The other slot values are
        # shared; what learns in a run is a clone.
        return replace(self, **changes)

    # What its slots learn, together

    def learning(self) -> dict[str, Slot]:
        """The slot values that may learn, by slot."""
        slots = self.slots()
        return {slot: slots[slot] for slot in LEARNING_SLOTS if slots[slot] is not None}

    @property
    def needs(self) -> set[str]:
        """What its slots need of a trainer, together: names from `slots.NEEDS`."""
        return {need for slot in self.learning() for need in self._needs_of(slot)}

    def _needs_of(self, slot: str) -> set[str]:
        value = self.slots()[slot]
        # Shuffled epochs are what any trainer's own data loader does.
        chooses = slot == "curriculum" and not value.in_order
        return needs_of(value) | ({"problem_choice"} if chooses else set())

    @property
    def reads_verdict(self) -> bool:
        """Whether a slot must know which rollouts are correct.

        Examples
        --------
        >>> pods(8, 4).reads_verdict, knapsack(8).reads_verdict
        (False, True)
        """
        return any(value.reads_verdict for value in self.learning().values())

    def check_verdict(self, rollouts: Rollouts) -> None:
        """Raise ValueError where a slot must know which rollouts are right and nothing says so."""
        for slot, value in self.learning().items():
            if value.reads_verdict and not rollouts.judged:
                raise ValueError(
                    f"{slot}={compose(value)} asks which rollouts are correct, and their rewards "
                    "come without a verdict; let the verifier return Scores.graded(rewards, "
                    "solved=...), with the reward from which a response counts as right"
                )

    @property
    def trained(self) -> PerProblem | None:
        """How many rollouts of a problem a round trains on; None where that is not known before.

        Examples
        --------
        >>> pods(n=32, m=8).trained, aero().trained.of
        (PerProblem(n=8, of='each'), 'about')
        """
        sampled = self.allocator.sampled()
        if sampled is None:
            return None
        trained = self.selector.trained(sampled)
        # How many old responses join a round is not known before.
        return trained if self.replay is None else PerProblem(trained.n, "about")

    def clone(self) -> Method:
        """The same method with slots that have learnt nothing."""
        # Reward and objective learn nothing and need no clone.
        clones: dict[str, Any] = {slot: value.clone() for slot, value in self.learning().items()}
        return replace(self, **clones)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Every slot learns from a finished round."""
        for value in self.learning().values():
            value.feedback(rollouts, context)

    def metrics(self) -> dict[str, float]:
        """What the slots measured in the round just finished.

        Raises
        ------
        ValueError
            For a measurement that is no number.
        """
        return {
            name: _measured(slot, name, number)
            for slot, value in self.learning().items()
            for name, number in value.metrics().items()
        }

    def state_dict(self) -> dict[str, Any]:
        """What every slot has learnt, by slot."""
        return {slot: value.state_dict() for slot, value in self.learning().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict` returned; ValueError for the state of a method with other slots."""
        learning = self.learning()
        # A slot that is empty here and was filled there, such as replay, is a difference too.
        if state.keys() != learning.keys():
            other = sorted(state.keys() ^ learning.keys())
            raise ValueError(f"state: saved by a method with other slots ({', '.join(other)})")
        for slot, value in learning.items():
            try:
                value.load_state_dict(state[slot])
                # What it would not save again it has not understood.
                different = sorted(state[slot].keys() ^ value.state_dict().keys())
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                different = [repr(error)]
            if different:
                raise ValueError(
                    f"state: {slot}={compose(value)} cannot read what was saved "
                    f"({', '.join(different)}); it comes from another method or version"
                )

    def check_provided(self, provides: Iterable[str], trainer: str) -> None:
        """Raise ValueError when a slot needs what a trainer does not provide, see `slots.NEEDS`."""
        provides = set(provides)
        for slot, value in self.learning().items():
            # One missing need is enough to refuse; the message names the first.
            missing = sorted(self._needs_of(slot) - provides)
            if missing:
                raise ValueError(
                    f"{slot}={compose(value)} needs {NEEDS[missing[0]]} ({missing[0]}), which "
                    f"{trainer} does not provide"
                )


def _measured(slot: str, name: str, number: Any) -> float:
    """A measurement as every round keeps it; ValueError for what is no number.

    A column of a record has one type. Whole numbers and fractions share one, and truth values have
    another, so that they become numbers.
    """
    is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if is_whole and abs(number) <= LARGEST_WHOLE:
        return int(number)
    try:
        return float(number)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{slot}: its metric {name!r} is {shown(number)}; a number is needed"
        ) from None


# The baselines


def grpo(n: int = 8, clip: tuple[float, float] = (0.2, 0.28), **objective: Any) -> Method:
    """Group relative policy optimisation: advantages (r - mean) / std over n rollouts a problem.

    Parameters
    ----------
    n : int
        8 as in AR3PO (section 4), Knapsack RL (section 3) and CBS (appendix D).
    clip : (low, high)
        Knapsack RL, appendix F.
    objective
        Further arguments of `Objective`. By default there is one mean over all tokens of a step and
        no KL term (PODS, AR3PO, Knapsack RL). The mean over rollouts of token means (CBS, appendix
        A) is loss_aggregation="rollout", the penalty of AERO's equation 2 is kl=...

    Notes
    -----
    PODS's baseline with gradient accumulation (GRPO-GA) is `grpo(n=16)`: a lab's `micro_tokens`
    accumulates, and the step does not depend on it.

    References
    ----------
    DeepSeekMath (arXiv 2402.03300), section 4.1.
    """
    return Method("grpo", allocator=Uniform(n), objective=Objective(clip=clip, **objective))


def dapo(
    n: int = 8,
    groups: int | None = None,
    max_draws: int = 3,
    overlong: float = 0.2,
    spread: float = 0.0,
) -> Method:
    """DAPO: dynamic sampling, clip-higher, token mean and a soft penalty on overlong responses.

    Parameters
    ----------
    n : int
        Rollouts a problem.
    groups : int, optional
        Mixed groups wanted; None for a round's number of problems.
    max_draws : int
        3 as in AR3PO (section 4: 1,536 problems for 512). At that bound the round goes on with the
        mixed groups it has.
    overlong : float
        The last share of the length limit that is penalised (section 3.4); 0 for no penalty.
    spread : float
        Where rewards come without a verdict, see `allocators.DynamicSampling`.

    References
    ----------
    DAPO (arXiv 2503.14476). The clip range of section 3.1 is that of `Objective`.
    """
    # A penalty over no tokens at all cannot be configured, so 0 leaves the part out.
    parts = (Correct(), Overlong(buffer=overlong)) if overlong else (Correct(),)
    return Method(
        "dapo",
        allocator=allocators.DynamicSampling(n, groups, max_draws, spread=spread),
        reward=parts,
    )


def gspo(n: int = 8, clip: tuple[float, float] = (3e-4, 4e-4)) -> Method:
    """Group sequence policy optimisation: the ratio is that of whole responses.

    A sequence's ratio moves far less than a token's, hence the narrow clip range.

    References
    ----------
    GSPO (arXiv 2507.18071); CBS (arXiv 2602.08499), appendix A.
    """
    objective = Objective(clip=clip, importance_sampling="sequence", loss_aggregation="rollout")
    return Method("gspo", allocator=Uniform(n), objective=objective)


def dr_grpo(n: int = 8, length: int | None = None) -> Method:
    """Dr. GRPO: no division by the deviation, and a constant in place of the response's length.

    References
    ----------
    Dr. GRPO (arXiv 2503.20783).
    """
    return Method(
        "dr_grpo",
        allocator=Uniform(n),
        advantage=GroupNormalized(scale=False),
        objective=Objective(loss_aggregation="constant", length=length),
    )


# The five papers


def pods(
    n: int = 64,
    m: int = 16,
    rule: str = "max_variance",
    baseline: str = "selection",
    clip: tuple[float, float] = (0.2, 0.2),
) -> Method:
    """PODS: n rollouts a problem, and an update on m of them.

    Parameters
    ----------
    n, m : int
        (64, 16) is setting (a), (32, 8) setting (b), (128, 32) setting (c) of section 4.1.
    rule : {"max_variance", "max_reward", "random"}
        Algorithm 2, and the comparisons of section 3.2.
    baseline : {"selection", "group"}
        Mean and deviation of the kept m (section 3.2), or of all n.
    clip : (low, high)
        The same on both sides, as in L_PODS of section 3.2; the paper does not print its value.

    Notes
    -----
    The loss is the mean over rollouts of the mean over their tokens (L_PODS, section 3.2). The
    deviation is the population one, as in the text; the released code has the sample deviation plus
    1e-4, which is `pods().but(advantage=GroupNormalized(ddof=1, eps=1e-4))`.

    References
    ----------
    PODS (arXiv 2504.13818), algorithm 1.
    """
    rules = {
        "max_variance": selectors.MaxVariance,
        "max_reward": selectors.MaxReward,
        "random": selectors.Random,
    }
    one_of("rule", rule, rules)
    whole_number("n", n, 2)
    whole_number("m", m, 1, n)
    return Method(
        "pods",
        allocator=Uniform(n),
        selector=rules[rule](m, baseline=baseline),
        objective=Objective(clip=clip, loss_aggregation="rollout"),
    )


def ar3po(
    stages: int = 2,
    k: int = 4,
    mode: str | None = "stop-gradient",
    capacity: int | None = None,
) -> Method:
    """AR3PO: rollouts in stages for unsolved problems, and reuse of an old correct response.

    Parameters
    ----------
    stages, k : int
        2 stages of 4 are at most 8 rollouts (section 4).
    mode : {"stop-gradient", "recompute", "direct", None}
        Option II, the paper's choice (table 2); option I; plain replay; no reuse.
    capacity : int, optional
        See `replay.CorrectResponses`.

    References
    ----------
    AR3PO (arXiv 2509.25808), algorithm 1.
    """
    return Method(
        "ar3po",
        allocator=allocators.Staged(stages, k),
        replay=None if mode is None else replay.CorrectResponses(mode, capacity),
    )


def knapsack(
    n: int = 8, rates: Any = "last", dynamic_sampling: bool = False, **allocator: Any
) -> Method:
    """Knapsack RL: the split of a round's rollouts with the greatest summed value.

    Parameters
    ----------
    n : int
        Rollouts a problem on average.
    rates : str or SuccessRates
        Where success rates come from: the last 16 rollouts (appendix F), or another kind.
    dynamic_sampling : bool
        Draw more problems until enough groups are mixed (appendix G.5).
    allocator
        Further arguments of `allocators.Knapsack`, such as low and up.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), equations 5 and 6; advantages over std + 1e-6 (section 2), which
    are clipped to [-5, 5], and the clip range of `Objective` (appendix F).
    """
    known = allocators.SuccessRates(rates) if isinstance(rates, str) else rates
    budget = allocators.Knapsack(n, rates=known, **allocator)
    return Method(
        "knapsack",
        allocator=allocators.DynamicSampling(within=budget) if dynamic_sampling else budget,
        advantage=GroupNormalized(eps=1e-6, clip=5.0),
    )


def aero(
    explore: int = 8,
    total: int = 16,
    threshold: int = 0,
    k: int = 1,
    uniform: int = 4,
    trim_high: bool = False,
    prior: tuple[float, float] | None = (1.0, 1.0),
    scale: str | float = "bernoulli",
    clip: tuple[float, float] = (0.2, 0.2),
    entropy: float = 1e-3,
    kl: float = 0.0,
    **allocator: Any,
) -> Method:
    """AERO: explore, rescue, reject, and a posterior in place of the dead zone.

    Parameters
    ----------
    explore, total, threshold
        See `allocators.Rescue`; the values are those of table 9 for mathematics.
    k : int
        Wrong responses kept for each correct one in partial groups (algorithm 1).
    uniform : int
        Rollouts kept of a group that stays all right or all wrong (section 4.2).
    trim_high : bool
        Reject in groups with many correct responses as well: the variant of table 8.
    prior : (alpha, beta) or None
        Of the Beta posterior (table 9); None trains with plain group advantages.
    scale : {"bernoulli", "posterior"} or float
        What advantages of uniform groups are divided by, see `advantages.posterior`.
    clip, entropy
        Table 9.
    kl : float
        The penalty of equation 2; off by default, as in the other methods.
    allocator
        Further arguments of `allocators.Rescue`; for code extra=4 and k_max=3.

    Notes
    -----
    The loss is the mean over problems of the mean over their rollouts of the mean over tokens
    (equations 2 and 8).

    References
    ----------
    AERO (arXiv 2602.14338), algorithm 1 and section 4.
    """
    if prior is not None:
        pair("prior", prior)
    return Method(
        "aero",
        # Allocator and selector have the same threshold, since the one rescues and the other prunes
        # the problems that fail it.
        allocator=allocators.Rescue(explore, total, threshold, **allocator),
        selector=selectors.Rejection(k, uniform, threshold=threshold, trim_high=trim_high),
        advantage=GroupNormalized() if prior is None else advantages.Posterior(*prior, scale),
        objective=Objective(clip=clip, loss_aggregation="group", kl=kl, entropy=entropy),
    )


def cbs(
    base: str = "grpo",
    scope: str = "round",
    p: float | None = None,
    rounds: int = 2,
    n: int = 8,
    mini_batch: int | None = None,
    planned: int = 500,
    **scheduler: Any,
) -> Method:
    """CBS: of the rollouts of another method, those that a learnt scheduler puts first.

    Parameters
    ----------
    base : {"grpo", "dapo", "gspo"}
        "grpo" has the mean over rollouts of token means (equation 14). DAPO keeps its dynamic
        sampling; the scheduler chooses among the groups that pass it (section 6.2).
    scope : {"round", "group", "buffer"}
        "round" keeps the best of the whole round, which is how the published numbers of CBS* were
        made (appendix D); "group" the best of every group (definition 3.1); "buffer" as many as a
        round has, of the last `rounds` rounds (CBS, definition 3.2).
    p : float, optional
        Percent that is kept; None for table 4's 30, and 100 with a buffer.
    rounds : int
        2, since table 4 has M=2048 at 1,024 rollouts a round; figure 10 has 1 to 5. With 2, and one
        step a round, every candidate's clip ratio is still 0, since its first use is on-policy.
    n : int
        Rollouts a problem.
    mini_batch : int, optional
        Rollouts of an optimizer step (128 in appendix D). It mixes rollouts of different problems.
        The same in full, to compare with, is `grpo().but(selector=selectors.All(mini_batch=...))`.
    planned : int
        Rounds that the run will have. Table 4's schedule is for 500 rounds with GRPO and GSPO, of
        which a tenth only explores, and for 200 with DAPO (appendix D). Here it is scaled from 500
        with all three, which is our choice: the warm-up stays a tenth, and exploration falls and
        the network learns faster or slower by the same factor.
    scheduler
        Further arguments of `Scheduler`, which replace what follows from `planned` and `base`.
        Table 4 ends exploration at 0.2, with GSPO at 0.005, and charges entropy above 0.1 nats with
        GRPO, above 0.5 with the others.

    References
    ----------
    CBS (arXiv 2602.08499), algorithm 1, table 4 and appendix D.
    """
    # base -> (method, end of exploration, entropy above which its growth is charged)
    bases = {
        "grpo": (grpo(n, loss_aggregation="rollout"), 0.2, 0.1),
        "dapo": (dapo(n), 0.2, 0.5),
        "gspo": (gspo(n), 0.005, 0.5),
    }
    one_of("base", base, bases)
    # It would reach `Scheduler` twice, as p and under its own name.
    if "keep" in scheduler:
        raise ValueError(f"keep={scheduler['keep']!r}: the percentage kept is given as p")
    method, floor, least = bases[base]
    whole_number("planned", planned, 1)
    faster = 500 / planned
    options = {
        "floor": floor,
        "entropy_least": least,
        "warmup": round(50 / faster),
        "decay": 0.008 * faster,
        "learning_rate": 1e-4 * faster,
        # What the caller gives stands last and replaces the setting of table 4.
        **scheduler,
    }
    return method.but(
        name="cbs",
        # This scope alone chooses among rollouts of earlier rounds.
        replay=replay.Buffer(rounds) if scope == "buffer" else None,
        selector=selectors.Scheduler(p, scope, mini_batch, **options),
    )


# Further papers


def reinforce_ada(mode: str = "balanced", stages: int = 4, k: int = 8, keep: int = 4) -> Method:
    """Reinforce-Ada: rollouts in stages until a problem has both outcomes, then a balanced few.

    Parameters
    ----------
    mode : {"balanced", "positive"}
        Sample until there are keep / 2 correct and as many wrong rollouts, or one correct one. Both
        then keep half and half.
    stages, k, keep : int
        4 stages of 8, and 4 rollouts kept (released code).

    Notes
    -----
    The advantage is r - p with p over all rollouts of the problem, as the released script has it;
    the factor 1 / p of the paper's third version is in neither of its algorithms.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the sequential variant.
    """
    one_of("mode", mode, ("balanced", "positive"))
    whole_number("keep", keep, 2)
    # Of an odd number the smaller half is right, as in `HalfRight`.
    right, wrong = (keep // 2, keep - keep // 2) if mode == "balanced" else (1, 0)
    return Method(
        "reinforce_ada",
        allocator=allocators.Staged(stages, k, right, wrong),
        selector=selectors.HalfRight(keep),
        advantage=GroupNormalized(scale=False),
    )


def reinforce_ada_est(n: int = 8, eps: float = 0.01, **allocator: Any) -> Method:
    """Reinforce-Ada Est: counts and advantages in proportion to 1 / sqrt(p + eps).

    n=8 is the paper's; eps and the further arguments of `allocators.InverseRoot` are not printed.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the estimation variant. Confidence is low in the constants:
    the formulas were seen, but neither its constants nor any code.
    """
    return Method(
        "reinforce_ada_est",
        allocator=allocators.InverseRoot(n, eps=eps, **allocator),
        advantage=advantages.InverseRootWeighted(eps),
    )


def greso(n: int = 8, max_draws: int = 3, refill: float = 1.25, **curriculum: Any) -> Method:
    """GRESO: skip problems whose groups were all alike, and refill to enough mixed groups.

    Parameters
    ----------
    n, max_draws
        See `allocators.DynamicSampling`.
    refill : float
        Problems drawn for each mixed group that is missing, over the share that is mixed.
    curriculum
        Further arguments of `curricula.Greso`.

    References
    ----------
    GRESO (arXiv 2506.02177) and its released code, which begins a round with 1.5 times the problems
    that it needs, and refills by 64 at least; here it begins with as many as it needs.
    """
    return Method(
        "greso",
        curriculum=curricula.Greso(**curriculum),
        allocator=allocators.DynamicSampling(n, max_draws=max_draws, refill=refill),
    )


def speed(
    first: int = 4, further: int = 12, groups: int | None = None, clip: Any = (0.2, 0.2)
) -> Method:
    """SPEED-RL: a few rollouts for every problem, many more for the mixed ones; RLOO advantages.

    Parameters
    ----------
    first, further : int
        4 + 12 in the released configuration, 4 + 20 in the script for 7B.
    groups : int, optional
        Groups that a round trains on; at most as many again wait for the next round.
        None trains on all.
    clip : (low, high)

    References
    ----------
    SPEED-RL (arXiv 2506.09016).
    """
    return Method(
        "speed",
        # Without a number of groups a round trains on all, and nothing is left to wait.
        allocator=allocators.Screening(first, further, groups),
        replay=None if groups is None else replay.Surplus(groups),
        advantage=advantages.LeaveOneOut(),
        objective=Objective(clip=clip),
    )


def pilot_commit(
    pilots: int = 16,
    commit: int = 48,
    groups: int = 16,
    solved: float | None = 1.0,
    age: int = 4,
    **allocator: Any,
) -> Method:
    """Pilot-Commit: a cheap pilot decides which problems get a large group; solved ones leave.

    Parameters
    ----------
    pilots, commit : int
        16 + 48 in the scripts for 4B, 32 + 96 in those for 1.5B.
    groups : int
        Groups that a round trains on; what is too much waits for later rounds. The paper draws
        three problems for each.
    solved : float, optional
        See `curricula.WithoutSolved`; None keeps all problems, as a trainer needs that chooses the
        problems itself.
    age : int
        Rounds that a group waits at most.
    allocator
        Further arguments of `allocators.PilotCommit`, whose notes say what is our reading.

    References
    ----------
    Pilot-Commit (arXiv 2605.26606) and its released code.
    """
    return Method(
        "pilot_commit",
        curriculum=curricula.ShuffledEpochs()
        if solved is None
        else curricula.WithoutSolved(solved=solved),
        allocator=allocators.PilotCommit(pilots, commit, groups, **allocator),
        replay=replay.Surplus(groups, capacity=groups, age=age),
    )


def mopps(n: int = 8, **curriculum: Any) -> Method:
    """MoPPS: problems whose success rate, drawn from a posterior, is nearest to one half.

    Parameters
    ----------
    n : int
    curriculum
        Arguments of `curricula.Mopps`.

    References
    ----------
    MoPPS (arXiv 2507.04632): 8 rollouts, clip 0.2 and 0.28.
    """
    return Method("mopps", curriculum=curricula.Mopps(**curriculum), allocator=Uniform(n))


def dps(n: int = 8, decay: float = 0.7) -> Method:
    """DPS: the problems that a Markov chain of three states predicts to be mixed.

    Parameters
    ----------
    n : int
    decay : float
        See `curricula.Dps`, which says what is our reading.

    References
    ----------
    DPS (arXiv 2603.10887) and its released code: decay .7 on MATH. n is our choice.
    """
    return Method("dps", curriculum=curricula.Dps(decay=decay), allocator=Uniform(n))


def cures(n: int = 8, temperature: float = 0.1, form: str = "paper") -> Method:
    """CurES: problems, and rollouts for each, by the deviation of their outcomes.

    Parameters
    ----------
    n : int
        Rollouts a problem on average.
    temperature, form
        See `curricula.Cures`. The released code weighs problems by another formula than the paper.

    References
    ----------
    CurES (arXiv 2510.01037): 8 rollouts a problem. The paper does not print the temperature.
    """
    return Method(
        "cures",
        curriculum=curricula.Cures(temperature=temperature, form=form),
        allocator=allocators.ByDeviation(n),
    )


def hora(n: int = 8, probe: int = 4) -> Method:
    """HORA: a probe of every problem, then the split that solves most problems in expectation.

    Parameters
    ----------
    n : int
        Rollouts a problem on average, the probe included.
    probe : int

    References
    ----------
    HORA (arXiv 2605.07114). Confidence is medium: no code was published, and both sizes are our
    choice.
    """
    return Method("hora", allocator=allocators.HitUtility(n, probe))


def vip(n: int = 8, estimator: str = "rloo", rates: Any = None) -> Method:
    """VIP: the counts that minimise the summed variance of the problems' gradients.

    Parameters
    ----------
    n : int
    estimator : {"rloo", "dr_grpo"}
        The advantage, and the variance that is minimised.
    rates : SuccessRates, optional
        None: the posterior mean over earlier rollouts. The paper has a Gaussian process over
        embeddings of the prompts.

    References
    ----------
    VIP (arXiv 2602.01601), the allocation of the paper; the released code allocates differently.
    """
    # The default is stated in one place, the allocator.
    options = {} if rates is None else {"rates": rates}
    is_rloo = estimator == "rloo"
    return Method(
        "vip",
        allocator=allocators.LeastVariance(n, estimator=estimator, **options),
        advantage=advantages.LeaveOneOut() if is_rloo else GroupNormalized(scale=False),
    )


def cppo(
    n: int = 16, drop: float = 0.5, scope: str = "group", dynamic_allocation: bool = True
) -> Method:
    """CPPO: train on the rollouts whose advantages are largest in absolute size.

    Parameters
    ----------
    n : int
    drop : float
        Share of the rollouts that is not trained on.
    scope : {"group", "batch"}
        Of each group, as in the text, or of the whole round, as in the released code.
    dynamic_allocation : bool
        Whether a round samples 1 / (1 - drop) times its problems, so that it trains on as many
        rollouts as without dropping.

    References
    ----------
    CPPO (arXiv 2503.22342). 16 rollouts, a share of .5 and the sample deviation plus 1e-4 are those
    of the released code.
    """
    # First, since it refuses a `drop` that leaves nothing.
    selector = selectors.LargestAdvantage(drop, scope)
    return Method(
        "cppo",
        allocator=allocators.Widened(n, 1 / (1 - drop)) if dynamic_allocation else Uniform(n),
        selector=selector,
        advantage=GroupNormalized(ddof=1, eps=1e-4),
    )


def ragen(n: int = 16, **selector: Any) -> Method:
    """RAGEN-2's filter: keep the groups whose rewards differ most.

    Parameters
    ----------
    n : int
    selector
        Arguments of `selectors.GroupFilter`.

    References
    ----------
    RAGEN-2 (arXiv 2604.06268): 16 rollouts a problem.
    """
    return Method("ragen", allocator=Uniform(n), selector=selectors.GroupFilter(**selector))


def pruned(n: int = 8, keep: float | str = 0.5) -> Method:
    """GRPO on a random part of the rollouts, weighted so that the expected gradient is the same.

    References
    ----------
    DPPO, unbiased pruning (arXiv 2603.04135). Confidence is low: only the abstract was read, and
    how it sets the probabilities is not known here.
    """
    return Method("pruned", allocator=Uniform(n), selector=selectors.Pruned(keep))


def asymmetric(n: int = 16, weighting: str = "linear") -> Method:
    """Asymmetric prompt weighting: problems of low success rate count more.

    References
    ----------
    Heckel et al. (arXiv 2602.11128): Linear-R and Sqrt-R, 16 rollouts. Confidence is medium for
    "linear" and low for "sqrt", since notes on the paper were read and not the paper. It leaves out
    groups without a right response for the first 50 or 100 steps; here they count from the start.
    """
    return Method("asymmetric", allocator=Uniform(n), advantage=advantages.Asymmetric(weighting))


def gdpo(n: int = 8, reward: tuple = (Correct(), Overlong())) -> Method:
    """GDPO: each part of the reward is normalised in its group before the parts are summed.

    Parameters
    ----------
    n : int
    reward : tuple of slots.Reward
        Its parts, whose weights are those of the normalised parts. A trainer's own reward functions
        are summed to one part, `Correct()`.

    References
    ----------
    GDPO (arXiv 2601.05242), read in the code of TRL and verl; see `advantages.parts_normalized`.
    The parts and n are our choice.
    """
    # First with another advantage, so that the parts are checked before their weights are read.
    method = Method("gdpo", allocator=Uniform(n), reward=reward)
    weights = {part.name: part.weight for part in reward}
    return method.but(advantage=advantages.PartsNormalized(weights))


def maxrl(n: int = 16, clip: tuple[float, float] = (0.2, 0.2), all_wrong: str = "zero") -> Method:
    """MaxRL: the gradient of the log-likelihood of a right response, by dividing by the mean.

    Parameters
    ----------
    n : int
    clip : (low, high)
    all_wrong : {"zero", "minus_one"}
        See `advantages.maxrl`.

    References
    ----------
    MaxRL (arXiv 2602.02710) and its released code: 16 rollouts, clip 0.2 on both sides, no KL term
    (the experiments with Qwen3).
    """
    advantage = advantages.MaxRL(all_wrong)
    return Method(
        "maxrl", allocator=Uniform(n), advantage=advantage, objective=Objective(clip=clip)
    )


def pass_at_k(n: int = 8, k: int = 4) -> Method:
    """Pass@k training: the advantage of the best of k responses, shared out exactly.

    References
    ----------
    Pass@k training (arXiv 2508.10751), in its analytical form; n and k are our choice.
    """
    return Method("pass_at_k", allocator=Uniform(n), advantage=advantages.PassAtK(k))


def pkpo(n: int = 16, k: int = 4, baseline: str = "minus_one") -> Method:
    """PKPO: an unbiased gradient of the best of k responses.

    References
    ----------
    PKPO (arXiv 2505.15201): 16 rollouts; the baseline "leave-one-out minus one" is its choice. k is
    ours.
    """
    return Method("pkpo", allocator=Uniform(n), advantage=advantages.Pkpo(k, baseline))


def rl_zvp(n: int = 8, alpha: float = 0.1) -> Method:
    """RL-ZVP: groups all alike are trained on, token by token, by their entropy.

    References
    ----------
    RL-ZVP (arXiv 2509.21880): alpha = .1, clip 0.2 and 0.28, token mean.
    """
    return Method("rl_zvp", allocator=Uniform(n), advantage=advantages.EntropyShaped(alpha))


def discounted_beta(n: int = 8, decay: float = 0.5) -> Method:
    """A baseline from a Beta posterior of each problem that forgets and counts the current group.

    References
    ----------
    Discounted Beta-Bernoulli (arXiv 2603.18444): decay .5 at 1.7B, .75 at 8B.
    """
    baseline = advantages.DiscountedBeta(decay)
    return Method("discounted_beta", allocator=Uniform(n), advantage=baseline)


def mapp(n: int = 8, decay: float = 0.5, factor: int = 8) -> Method:
    """MaPP: problems likely to be mixed, and advantages averaged over a posterior.

    References
    ----------
    MaPP (arXiv 2609.34990): decay .5, 8 candidates for each problem.
    """
    return Method(
        "mapp",
        # Curriculum and advantage have a posterior each, which see the same outcomes and decay
        # alike.
        curriculum=curricula.Mapp(rollouts=n, factor=factor, decay=decay),
        allocator=Uniform(n),
        advantage=advantages.Marginalized(decay),
    )


def prefix_sampling(n: int = 8, **course: Any) -> Method:
    """Prefix Sampling: skewed problems are tried again from a part of one of their own responses.

    Parameters
    ----------
    n : int
    course
        Arguments of `courses.PrefixSampling`, such as hard, easy, cap and adapts.

    References
    ----------
    Zhu et al. (arXiv 2605.05112) and the authors' post; no code was released.
    """
    value = courses.PrefixSampling(**course)
    return Method(
        "prefix_sampling",
        curriculum=curricula.Recycled(rule="skewed", low=value.low, high=value.high),
        allocator=Uniform(n),
        course=value,
        # Groups that are all alike are dropped; all others are kept.
        selector=selectors.GroupFilter("top_p", 1.0),
    )


def prefix_rl(n: int = 16, **course: Any) -> Method:
    """PrefixRL: unsolved problems also start from parts of an old right response of theirs.

    Parameters
    ----------
    n : int
        Rollouts of a problem. Those of an unsolved one are dealt out among its bare form and its
        prefixes, so there should be a few for each.
    course
        Arguments of `courses.OwnPrefixes`, such as path, the answers of an earlier run.

    References
    ----------
    PrefixRL (arXiv 2601.18795); no code was released.
    """
    return Method("prefix_rl", allocator=Uniform(n), course=courses.OwnPrefixes(**course))


def spec_rl(n: int = 8, bias: float = 0.5) -> Method:
    """SPEC-RL: the last response to a problem is a draft of the next, kept to its first refusal.

    References
    ----------
    SPEC-RL (arXiv 2509.23232), see `courses.Speculative`.
    """
    return Method("spec_rl", allocator=Uniform(n), course=courses.Speculative(bias))


def partial_rollouts(n: int = 8, complete: float = 0.5) -> Method:
    """Partial rollouts: once enough groups are complete the others are stopped, and go on later.

    Parameters
    ----------
    n : int
    complete : float
        Share of the round's groups that must be complete.

    References
    ----------
    APRIL (arXiv 2509.18521), see `courses.Partial`.
    """
    return Method(
        "partial_rollouts",
        curriculum=curricula.Recycled(rule="stopped"),
        allocator=Uniform(n),
        course=courses.Partial(complete),
        selector=selectors.Finished(whole_groups=True),
    )


def duet(n: int = 8, budget: float = 0.5, limit: int = 3072, low: int = 1, **course: Any) -> Method:
    """DUET: rollouts by signal and length within a budget of tokens, and a deadline for answers.

    Parameters
    ----------
    n : int
        Rollouts of a problem at the full budget, 8 in the released code.
    budget : float
        Share of the tokens that n rollouts of every problem take.
    limit : int
        The longest response of the lab, in tokens. The published numbers of tokens are for 3072,
        and for another limit those of `courses.Deadline` are scaled: every, start, grace and gap.
    low : int
        Fewest rollouts of a problem, see `allocators.BySignal`.
    course
        Further arguments of `courses.Deadline`, which replace what follows from the limit.

    References
    ----------
    DUET (arXiv 2605.08441) and its released code. The penalty of its scripts, a KL term of .001, is
    off by default, as in the other methods.
    """
    whole_number("limit", limit, 1)
    usual = courses.Deadline()
    scaled = {
        name: round(getattr(usual, name) * limit / 3072)
        for name in ("every", "start", "grace", "gap")
    }
    scaled["every"] = max(scaled["every"], 1)
    deadline = courses.Deadline(**{**scaled, **course})
    allocator = allocators.BySignal(n, budget, low)
    weights = selectors.InverseCounts(spare=deadline.spare, allocator=allocator.clone())
    return Method("duet", allocator=allocator, course=deadline, selector=weights)


def arrol(n: int = 16, **course: Any) -> Method:
    """ARRoL: once, while rollouts grow, about half of each group goes on, chosen to be half right.

    Parameters
    ----------
    n : int
        Rollouts of a problem, our choice.
    course
        Arguments of `courses.Survival`, such as at, the tokens at which rollouts are judged.

    References
    ----------
    ARRoL (arXiv 2603.24840). No code was released, and the rule by which rollouts survive is our
    reading, see `courses.Survival`.
    """
    return Method(
        "arrol",
        allocator=Uniform(n),
        course=courses.Survival(**course),
        selector=selectors.Finished(),
    )


def rlep(n: int = 8, each: int = 2, path: str | None = None) -> Method:
    """RLEP: right answers join every group of their problem.

    Parameters
    ----------
    n : int
        New rollouts of a problem; 16 in the paper.
    each : int
        Old answers that join them; 2 in the paper.
    path : str, optional
        The answers of an earlier run, as in the paper; None for those of this run.

    References
    ----------
    RLEP (arXiv 2507.07451). One mean and one sample deviation for new and old answers together.
    """
    return Method(
        "rlep",
        allocator=Uniform(n),
        replay=replay.Experience(each, path),
        advantage=GroupNormalized(ddof=1, eps=1e-6),
    )


def experience_replay(
    n: int = 8, size: int = 1024, positive: float = 0.0, share: float = 1.0
) -> Method:
    """Plain experience replay: uniform draws, with repetition, from the newest rollouts.

    Parameters
    ----------
    n : int
    size, positive
        See `replay.Fifo`.
    share : float
        Draws for each new rollout, see `selectors.UniformDraws`.

    References
    ----------
    Arnal et al. (arXiv 2604.08706), who vary size and share; ours are an example.
    """
    return Method(
        "experience_replay",
        allocator=Uniform(n),
        replay=replay.Fifo(size, positive),
        selector=selectors.UniformDraws(share),
    )


def exgrpo(n: int = 8, **buckets: Any) -> Method:
    """ExGRPO's buckets: a right answer joins problems that were partly solved at their last visit.

    Parameters
    ----------
    n : int
        New rollouts of a problem.
    buckets
        Arguments of `replay.Buckets`, whose notes say what is left out.

    References
    ----------
    ExGRPO (arXiv 2510.02245): no division by the deviation, and a constant length. It has 7 new
    rollouts beside an old one, and its loss has no clip range and an entropy bonus of .001; ours
    has the clip range of `Objective` and no bonus.
    """
    return Method(
        "exgrpo",
        allocator=Uniform(n),
        replay=replay.Buckets(**buckets),
        advantage=GroupNormalized(scale=False),
        objective=Objective(loss_aggregation="constant"),
    )


def lilo(n: int = 8, factor: int = 4) -> Method:
    """LILO: sample more problems than needed, and train on those with the largest p (1 - p).

    References
    ----------
    LILO (arXiv 2502.12272): 8 rollouts, 4 times the problems. Confidence is medium, since notes on
    the paper were read.
    """
    return Method("lilo", allocator=allocators.MostLearnable(n, factor))


def adarft(n: int = 8, **curriculum: Any) -> Method:
    """AdaRFT: problems whose difficulty is nearest to a target that follows the mean reward.

    Parameters
    ----------
    n : int
    curriculum
        Arguments of `curricula.AdaRft`.

    References
    ----------
    AdaRFT (arXiv 2504.05520), which trains by PPO with one rollout a problem.
    """
    return Method("adarft", curriculum=curricula.AdaRft(**curriculum), allocator=Uniform(n))


def cispo(n: int = 8, clip: tuple[float, float] = (1.0, 4.0)) -> Method:
    """CISPO: the bounded ratio is a weight without gradient, so that no token is lost.

    Parameters
    ----------
    n : int
    clip : (low, high)
        The paper has no lower bound in effect and does not print the upper one. (1.0, 4.0) bounds
        the weight to [0, 5], where 5 is TRL's recommendation; verl has (0.2, 0.2).

    References
    ----------
    MiniMax-M1 (arXiv 2506.13585); the bound of 5 after ScaleRL (arXiv 2510.13786).
    """
    objective = Objective(clip=clip, surrogate="cispo")
    return Method("cispo", allocator=Uniform(n), objective=objective)


def sapo(n: int = 8, temperatures: tuple[float, float] = (1.0, 1.05)) -> Method:
    """SAPO: a smooth gate on the ratio in place of the clip, narrower for negative advantages.

    References
    ----------
    SAPO (arXiv 2511.20347): temperatures 1 and 1.05, the mean over rollouts of token means.
    """
    objective = Objective(surrogate="sapo", temperatures=temperatures, loss_aggregation="rollout")
    return Method("sapo", allocator=Uniform(n), objective=objective)


def gmpo(n: int = 8, clip: tuple[float, float] = (0.4, 0.4)) -> Method:
    """GMPO: the geometric mean of a response's bounded ratios in place of their mean.

    References
    ----------
    GMPO (arXiv 2507.20673): 8 rollouts, and ratios bounded to [exp(-0.4), exp(0.4)]. verl takes
    this bound from its clip ratio of .2.
    """
    objective = Objective(clip=clip, surrogate="gmpo", loss_aggregation="rollout")
    return Method("gmpo", allocator=Uniform(n), objective=objective)


def clip_cov(
    n: int = 8, share: float = 2e-4, clip: tuple[float, float] = (1.0, 1.0), **objective: Any
) -> Method:
    """Clip-Cov: a few tokens drawn among those of high covariance carry no gradient.

    The covariance is that of a token's advantage and log-probability; it drives the fall of the
    entropy.

    Parameters
    ----------
    n : int
    share : float
        Of the tokens of a step; at least one token.
    clip : (low, high)
        Wide, as in the authors' scripts, so that the chosen tokens and not the ratios bound a step.
    objective
        Further arguments of `Objective`, such as covariance_range.

    References
    ----------
    Cui et al. (arXiv 2505.22617): a share of 2e-4, covariances from 1 to 5, and ratios between 0
    and 2 (scripts of the released code).
    """
    options = {"surrogate": "clip_cov", "covariance_share": share, "clip": clip, **objective}
    return Method("clip_cov", allocator=Uniform(n), objective=Objective(**options))


def kl_cov(n: int = 8, share: float = 2e-3, weight: float = 1.0) -> Method:
    """KL-Cov: the tokens of the highest covariances pay for moving, and no ratio is clipped.

    Parameters
    ----------
    n : int
    share : float
        Of the tokens of a step; at least one token.
    weight : float
        Of the penalty |log ratio|.

    References
    ----------
    Cui et al. (arXiv 2505.22617): share and weight of the authors' code. verl has 2e-4 and .1.
    """
    objective = Objective(surrogate="kl_cov", covariance_share=share, covariance_kl=weight)
    return Method("kl_cov", allocator=Uniform(n), objective=objective)


# Checks


def _check_slot(slot: str, value: Any) -> None:
    """ValueError unless a value can do what its slot asks for."""
    if slot in ("replay", "course") and value is None:
        return
    action, example = LEARNING_SLOTS[slot]
    # Without the base class the run would have to ask of every value what it can do. A class is no
    # instance of it, so a forgotten pair of brackets is found here too.
    if not (isinstance(value, Slot) and callable(getattr(value, action, None))):
        raise ValueError(
            f"{slot}={shown(value)}: an object is needed whose class derives from "
            f"workbench.slots.Slot and has {action}(), such as {example}"
        )
    # A misspelt need would be refused by every trainer, for the wrong reason.
    unknown = sorted(needs_of(value) - set(NEEDS))
    if unknown:
        raise ValueError(
            f"{slot}={shown(value)}: it needs {unknown[0]!r}; known needs are {', '.join(NEEDS)}"
        )


def _check_together(selector: Any, advantage: Any, parts: Any) -> None:
    """ValueError where slots do not go together.

    One kept rollout of a problem has nothing to be compared with, and an advantage must not weigh
    the parts of the reward otherwise than the method does.
    """
    keeps_one = selector.trained(PerProblem(2)) == PerProblem(1)
    among_kept = getattr(selector, "baseline", "group") == "selection"
    if keeps_one and among_kept and advantage.compares_rollouts:
        raise ValueError(
            f"selector={compose(selector)}: one kept rollout of a problem has no advantage "
            "against itself; keep more, or baseline='group'"
        )
    weights = {part.name: part.weight for part in parts}
    if advantage.part_weights is not None and dict(advantage.part_weights) != weights:
        raise ValueError(
            f"advantage={compose(advantage)}: the parts of the method's reward and their weights "
            f"are {weights}; give both the same, as methods.gdpo(reward=...) does"
        )


def _check_reward(parts: Any) -> None:
    if not isinstance(parts, tuple | list) or not parts:
        raise ValueError(
            f"reward={shown(parts)}: a tuple of at least one part is needed, such as (Correct(),)"
        )
    for part in parts:
        # A class can be called as well, but that makes a part and no rewards.
        called = callable(part) and not isinstance(part, type)
        named = isinstance(getattr(part, "name", None), str)
        if not (called and named and is_number(getattr(part, "weight", None))):
            raise ValueError(
                f"reward: {shown(part)} is no part like Correct(): an object that can be called, "
                "with a name and a numeric weight, is needed"
            )
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"reward={shown(parts)}: no two parts of the same name are allowed")

"""The papers as compositions: each method is a choice of slot values, in a few lines.

Here are five papers that the notebooks reproduce, PODS (arXiv 2504.13818), AR3PO (2509.25808),
Knapsack RL (2509.25849), AERO (2602.14338) and CBS (2602.08499), and the baselines that they share:
GRPO, DAPO, GSPO and Dr. GRPO. Each further paper is a file of `workbench.catalogue`, which is
imported when its method is asked for: `methods.greso()`.

Every default is cited, and where a paper was read only in part the docstring says how far it can be
trusted. Settings that belong to the model and the machine, such as the learning rate and the
response length, are the lab's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from workbench.objectives import Objective
from workbench.rollouts import Context, Rollouts
from workbench.rules import advantages, allocators, curricula, replay, selectors
from workbench.rules.advantages import GroupNormalized
from workbench.rules.allocators import Uniform
from workbench.rules.rewards import Correct, Overlong
from workbench.rules.scheduler import scaled_schedule
from workbench.slots import NEEDS, PerProblem, Reward, Slot, needs_of
from workbench.utils.bounds import pair
from workbench.utils.descriptions import compose, describe, parameters
from workbench.utils.html import card
from workbench.utils.names import MORE_PAPERS as MORE_PAPERS
from workbench.utils.names import PAPERS as PAPERS
from workbench.utils.names import SLOTS, method_names, methods_of_packages
from workbench.utils.validation import brief, instance_of, is_number, one_of, whole_number

# Slot -> (the method that its protocol names, an example), for the slots whose values may learn.
LEARNING_SLOTS = {
    "curriculum": ("choose", "curricula.ShuffledEpochs()"),
    "allocator": ("allocate", "allocators.Uniform(8)"),
    "course": ("plan", "courses.PrefixSampling(), or None"),
    "replay": ("join", "replay.CorrectResponses(), or None"),
    "selector": ("select", "selectors.MaxVariance(4)"),
    "advantage": ("__call__", "advantages.GroupNormalized()"),
}
Maker = TypeVar("Maker", bound=Callable)


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
            raise ValueError(f"name={brief(self.name)}: a text of one line is needed")
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
        return [
            (name, compose(value))
            for name, value in self.slots().items()
            if value is not None or name not in self.later
        ]

    def slots(self) -> dict[str, Any]:
        """Name and value of every slot."""
        return {name: value for name, value in vars(self).items() if name != "name"}

    def but(self, **changes: Any) -> Method:
        """The same method with other slots or another name: changes are fields and their values."""
        # `replace` calls the constructor, which checks the changed slots. The other slot values are
        # shared; what learns in a run is a clone.
        return replace(self, **changes)

    def adjust(self, slot: str, **arguments: Any) -> Method:
        """The same method with other arguments of the value in one slot.

        Examples
        --------
        >>> cbs(planned=60).adjust("selector", warmup=3).selector.warmup
        3
        """
        one_of("slot", slot, LEARNING_SLOTS)
        value = self.slots()[slot]
        return self.but(**{slot: type(value)(**{**parameters(value), **arguments})})

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
        other = sorted(state.keys() ^ learning.keys())
        if other:
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

    def check_provided(self, provides: Collection[str], trainer: str) -> None:
        """Raise ValueError when a slot needs what a trainer does not provide, see `slots.NEEDS`."""
        for slot, value in self.learning().items():
            missing = sorted(self._needs_of(slot).difference(provides))
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
    if isinstance(number, int | np.integer) and not isinstance(number, bool):
        return int(number)
    try:
        return float(number)
    except (TypeError, ValueError):
        text = f"{slot}: its metric {name!r} is {brief(number)}; a number is needed"
        raise ValueError(text) from None


# The registry


@dataclass(frozen=True)
class Entry:
    """A method that has a name.

    Attributes
    ----------
    make : function
        Returns the `Method`.
    paper : str
        Its source.
    decides : str
        The slot that the paper is about, a name of `utils.names.SLOTS`.
    """

    make: Callable[..., Method]
    paper: str
    decides: str


# Filled by `method`, as files are imported; `entry` imports what is missing.
_entries: dict[str, Entry] = {}


def method(name: str | None = None, *, paper: str, decides: str) -> Callable[[Maker], Maker]:
    """Register the function below it as one that makes a method.

    Parameters
    ----------
    name : str, optional
        Of the method; None for the name of the function. A file of the catalogue registers the
        method that it is named after.
    paper : str
        The source, with its arXiv number.
    decides : str
        The slot that the paper is about.

    Examples
    --------
    >>> entry("greso").paper, entry("greso").decides
    ('GRESO (arXiv 2506.02177)', 'curriculum')
    """
    one_of("decides", decides, SLOTS)

    def register(make: Maker) -> Maker:
        _entries[name or make.__name__] = Entry(make, paper, decides)
        return make

    return register


def entry(name: str) -> Entry:
    """What is registered under a name, of this package or of an installed one.

    Parameters
    ----------
    name : str
        One of `PAPERS` or `MORE_PAPERS`, or that of an entry point of the group
        `workbench.methods`, by which a package brings a method of its own.

    Raises
    ------
    ValueError
        For a name that does not exist, with the closest one that does.
    """
    one_of("method", name, method_names())
    if name in MORE_PAPERS:
        importlib.import_module(f"workbench.catalogue.{name}")
    elif name not in _entries:
        make = methods_of_packages()[name].load()
        # A package need not say more than which function it is.
        _entries.setdefault(name, Entry(make, paper="", decides=""))
    return _entries[name]


def __getattr__(name: str) -> Any:
    if name in MORE_PAPERS:
        return entry(name).make
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The baselines


@method(paper="DeepSeekMath (arXiv 2402.03300)", decides="advantage")
def grpo(
    n: int = 8, clip: tuple[float, float] = (0.2, 0.28), objective: Objective | None = None
) -> Method:
    """Group relative policy optimisation: advantages (r - mean) / std over n rollouts a problem.

    Parameters
    ----------
    n : int
        8 as in AR3PO (section 4), Knapsack RL (section 3) and CBS (appendix D).
    clip : (low, high)
        Knapsack RL, appendix F.
    objective : Objective, optional
        None: one mean over all tokens of a step and no KL term (PODS, AR3PO, Knapsack RL), with
        this clip range. For the mean over rollouts of token means (CBS, appendix A) give
        `Objective(loss_aggregation="rollout")`, for the penalty of AERO's equation 2
        `Objective(kl=...)`; `clip` is then not read.

    Notes
    -----
    PODS's baseline with gradient accumulation (GRPO-GA) is `grpo(n=16)`: a lab's `micro_tokens`
    accumulates, and the step does not depend on it.

    References
    ----------
    DeepSeekMath (arXiv 2402.03300), section 4.1.
    """
    return Method("grpo", allocator=Uniform(n), objective=objective or Objective(clip=clip))


@method(paper="DAPO (arXiv 2503.14476)", decides="allocator")
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


@method(paper="GSPO (arXiv 2507.18071)", decides="objective")
def gspo(n: int = 8, clip: tuple[float, float] = (3e-4, 4e-4)) -> Method:
    """Group sequence policy optimisation: the ratio is that of whole responses.

    Parameters
    ----------
    n : int
        Rollouts a problem.
    clip : (low, high)
        A sequence's ratio moves far less than a token's, hence the narrow range.

    References
    ----------
    GSPO (arXiv 2507.18071); CBS (arXiv 2602.08499), appendix A.
    """
    objective = Objective(clip=clip, importance_sampling="sequence", loss_aggregation="rollout")
    return Method("gspo", allocator=Uniform(n), objective=objective)


@method(paper="Dr. GRPO (arXiv 2503.20783)", decides="advantage")
def dr_grpo(n: int = 8, length: int | None = None) -> Method:
    """Dr. GRPO: no division by the deviation, and a constant in place of the response's length.

    Parameters
    ----------
    n : int
        Rollouts a problem.
    length : int, optional
        The constant; None for the limit of a response.

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


@method(paper="PODS (arXiv 2504.13818)", decides="selector")
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


@method(paper="AR3PO (arXiv 2509.25808)", decides="allocator")
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


@method(paper="Knapsack RL (arXiv 2509.25849)", decides="allocator")
def knapsack(
    n: int = 8,
    rates: Any = "last",
    dynamic_sampling: bool = False,
    low: int = 2,
    up: int = 128,
    info_gain: bool = True,
    fallback: bool = True,
    estimator: str = "grpo",
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
    low, up, info_gain, fallback, estimator
        See `allocators.Knapsack`.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), equations 5 and 6; advantages over std + 1e-6 (section 2), which
    are clipped to [-5, 5], and the clip range of `Objective` (appendix F).
    """
    known = allocators.SuccessRates(rates) if isinstance(rates, str) else rates
    budget = allocators.Knapsack(
        n,
        low=low,
        up=up,
        info_gain=info_gain,
        fallback=fallback,
        estimator=estimator,
        rates=known,
    )
    return Method(
        "knapsack",
        allocator=allocators.DynamicSampling(within=budget) if dynamic_sampling else budget,
        advantage=GroupNormalized(eps=1e-6, clip=5.0),
    )


@method(paper="AERO (arXiv 2602.14338)", decides="allocator")
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
    n_max: int = 32,
    k_max: int = 10,
    extra: int = 2,
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
    n_max, k_max, extra : int
        See `allocators.Rescue`; for code extra=4 and k_max=3.

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
        allocator=allocators.Rescue(explore, total, threshold, n_max, k_max, extra),
        selector=selectors.Rejection(k, uniform, threshold=threshold, trim_high=trim_high),
        advantage=GroupNormalized() if prior is None else advantages.Posterior(*prior, scale),
        objective=Objective(clip=clip, loss_aggregation="group", kl=kl, entropy=entropy),
    )


@method(paper="CBS (arXiv 2602.08499)", decides="selector")
def cbs(
    base: str = "grpo",
    scope: str = "round",
    p: float | None = None,
    rounds: int = 2,
    n: int = 8,
    mini_batch: int | None = None,
    planned: int | None = None,
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
    planned : int, optional
        Rounds that the run will have. None: those that it is asked for when it begins. Table 4's
        schedule is for 500 rounds with GRPO and GSPO, of which a tenth only explores, and for 200
        with DAPO (appendix D). Here it is scaled from 500 with all three, which is our choice: the
        warm-up stays a tenth, and exploration falls and the network learns faster or slower by the
        same factor.

    Notes
    -----
    Table 4 ends exploration at 0.2, with GSPO at 0.005, and charges entropy above 0.1 nats with
    GRPO, above 0.5 with the others. For other settings adjust the selector:
    `cbs().adjust("selector", warmup=10)`.

    References
    ----------
    CBS (arXiv 2602.08499), algorithm 1, table 4 and appendix D.
    """
    # base -> (method, end of exploration, entropy above which its growth is charged)
    bases = {
        "grpo": (grpo(n, objective=Objective(loss_aggregation="rollout")), 0.2, 0.1),
        "dapo": (dapo(n), 0.2, 0.5),
        "gspo": (gspo(n), 0.005, 0.5),
    }
    one_of("base", base, bases)
    full_set, floor, least = bases[base]
    schedule = scaled_schedule(planned)
    scheduler = selectors.Scheduler(
        keep=p, scope=scope, mini_batch=mini_batch, floor=floor, entropy_least=least, **schedule
    )
    return full_set.but(
        name="cbs",
        # This scope alone chooses among rollouts of earlier rounds.
        replay=replay.Buffer(rounds) if scope == "buffer" else None,
        selector=scheduler,
    )


# Checks


def _check_slot(slot: str, value: Any) -> None:
    """ValueError unless a value can do what its slot asks for."""
    if slot in ("replay", "course") and value is None:
        return
    action, example = LEARNING_SLOTS[slot]
    # A class is no instance of `Slot`, so a forgotten pair of brackets is found here too.
    if not (isinstance(value, Slot) and callable(getattr(value, action, None))):
        raise ValueError(
            f"{slot}={brief(value)}: an object is needed whose class derives from "
            f"workbench.slots.Slot and has {action}(), such as {example}"
        )
    # A misspelt need would be refused by every trainer, for the wrong reason.
    unknown = sorted(needs_of(value) - set(NEEDS))
    if unknown:
        raise ValueError(
            f"{slot}={brief(value)}: it needs {unknown[0]!r}; known needs are {', '.join(NEEDS)}"
        )


def _check_together(selector: Any, advantage: Any, parts: Any) -> None:
    """ValueError where slots do not go together.

    One kept rollout of a problem has nothing to be compared with, and an advantage must not weigh
    the parts of the reward otherwise than the method does.
    """
    # Asked with two rollouts of a problem, such a selector says that one is trained on.
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
            f"reward={brief(parts)}: a tuple of at least one part is needed, such as (Correct(),)"
        )
    for part in parts:
        # A class can be called as well, but that makes a part and no rewards.
        is_part = isinstance(part, Reward) and not isinstance(part, type)
        if not (is_part and is_number(part.weight)):
            raise ValueError(
                f"reward: {brief(part)} is no part like Correct(): an object that can be called, "
                "with a name and a numeric weight, is needed (docs/guides/own-verifier.md)"
            )
    if len({part.name for part in parts}) < len(parts):
        raise ValueError(f"reward={brief(parts)}: no two parts of the same name are allowed")

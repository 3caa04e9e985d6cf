"""Where learning happens: problems, a verifier, a policy and how it samples."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from workbench.datasets.chains import ERROR_RATES, REGIMES
from workbench.datasets.rows import check_answers, warn_of_overlap
from workbench.policies import Policy, Sampling, checks, settings
from workbench.policies.settings import TransformersConfig, UnslothConfig
from workbench.policies.stress import Stress
from workbench.pools import MOST_PROBLEMS, Pool, PoolExhausted, Stream
from workbench.problems import FAMILIES, arithmetic, chains
from workbench.slots import COURSE_NEEDS
from workbench.utils.bounds import Count, CountOrZero, Positive, check_arguments
from workbench.utils.descriptions import compose, describe
from workbench.utils.failures import import_apart
from workbench.utils.html import card
from workbench.utils.machine import no_bfloat16, torch_threads
from workbench.utils.names import LABS as LABS
from workbench.utils.names import SIZES
from workbench.utils.shipped import shipped
from workbench.utils.validation import brief, instance_of, is_number, number, one_of, whole_number
from workbench.verifiers import Math, Verifier
from workbench.verifiers.base import check_verifier

# AdamW moves every weight by about the learning rate in each step. The weights of language models
# are far below 1, so that larger rates than this are mistakes.
LARGEST_LEARNING_RATE = 1000.0
LearningRate = Annotated[float, partial(number, above=0, high=LARGEST_LEARNING_RATE)]
# Needs that only this package's own sampling loop meets: an engine keeps hidden states to itself.
OWN_LOOP_NEEDS = frozenset({"growing_states"})
# Needs that only the weights of a model meet, which a server keeps to itself.
WEIGHT_NEEDS = COURSE_NEEDS | {
    "prompt_states",
    "old_logprobs",
    "current_logprobs",
    "entropy",
    "token_entropy",
    "update_statistics",
}

# Settings of `TransformersConfig` that only vLLM in this process reads.
VLLM_SETTINGS = ("gpu_memory_utilization", "engine_sleeps", "hand_over")

StressObject = Annotated[Stress, partial(instance_of, kinds=Stress, example="Stress(lag=4)")]


@dataclass(frozen=True)
class Lab:
    """Everything a run needs besides a method.

    Attributes
    ----------
    name : str
        What records call it.
    problems : Pool or Stream
        To train on.
    held_out : Pool, optional
        To evaluate on; None for no evaluation.
    verifier : object with score(responses, answers) -> Scores
    make_policy : function
        Returns a fresh policy at its initial weights.
    sampling : Sampling
        How responses are drawn, in training and in evaluations.
    learning_rate : float
        That of a run that names none.
    optimizer : dict
        Further keyword arguments of AdamW.
    max_grad_norm : float
        The gradient is scaled down to this norm.
    samples : int
        Responses to each held-out problem in an evaluation.
    micro_tokens : int
        Tokens of one micro-batch of an update, see `grpo_step`.
    optimizer_bits : {32, 8}
        Of the moments that AdamW keeps; 8 by bitsandbytes, on an NVIDIA GPU.
    warm_up : int
        Optimizer steps over which the learning rate rises linearly to its value.
    stress : Stress
        Conditions that make training harder, see `stressed`.
    model : dict
        What a manifest says of the model beside its weights, where `config` is None: its name, its
        adapter, template and precision.
    lacks : frozenset of str
        What its policy cannot give a method, names from `slots.NEEDS`, such as the hidden states of
        responses that an engine samples.
    config : dict, optional
        How to make this lab again, for the manifest of a run, see `described`; None where only your
        own code can. It is no argument, so a lab that `dataclasses.replace` has made has none.
    """

    name: str
    problems: Pool | Stream
    held_out: Pool | None
    verifier: Any
    make_policy: Callable[[], Policy]
    sampling: settings.SamplingObject = Sampling()
    learning_rate: LearningRate = 1e-6
    optimizer: settings.Options = field(default_factory=dict)
    max_grad_norm: Positive = 1.0
    samples: Count = 8
    micro_tokens: Count = 16_384
    optimizer_bits: settings.OptimizerBits = 32
    warm_up: CountOrZero = 0
    stress: StressObject = Stress()
    model: settings.Options = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    config: Mapping[str, Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        example = "problems.arithmetic(1024), or problems.from_rows(rows) for rows of your own"
        instance_of("problems", self.problems, (Pool, Stream), example)
        if self.held_out is not None:
            instance_of("held_out", self.held_out, Pool, "problems.chains(100, split='heldout')")
        # A stream has no end, so its problems cannot be looked through beforehand.
        for pool in (self.problems, self.held_out):
            if isinstance(pool, Pool):
                _check_texts(pool)
        warn_of_overlap(self.problems, self.held_out or ())
        check_verifier(self.verifier)
        if not callable(self.make_policy):
            raise ValueError(
                f"make_policy={brief(self.make_policy)}: a function that returns a policy is needed"
            )
        check_arguments(self)
        if "lr" in self.optimizer:
            raise ValueError(f"optimizer={self.optimizer!r}: lr is the argument learning_rate")

    def described(self, config: Mapping[str, Any] | None) -> Lab:
        """The same lab with another `config`: the function and the arguments that make it again."""
        lab = copy.copy(self)
        object.__setattr__(lab, "config", config)
        return lab

    def description(self) -> dict[str, Any]:
        """What a manifest says of this lab: its config, or its settings where there is none.

        A run that goes on compares it with its own. The manifest has digests of code of your own
        and of the weights beside it.
        """
        if self.config is not None:
            return dict(self.config)
        options = self.verifier.config if isinstance(self.verifier, Verifier) else {}
        plain = {
            name: value
            for name, value in options.items()
            if value is None or isinstance(value, bool | int | float | str)
        }
        numbers = {name: value for name, value in vars(self).items() if is_number(value)}
        return {
            "lab": self.name,
            "own": True,
            "verifier": {"is": type(self.verifier).__qualname__, **plain},
            "sampling": _settings(self.sampling),
            "optimizer": describe(dict(self.optimizer)),
            **describe(numbers),
            **({"model": describe(dict(self.model))} if self.model else {}),
            **self.stress.described,
        }

    def stressed(self, lag: int = 0, missed: float = 0.0, accepted: float = 0.0) -> Lab:
        """This lab under conditions that real training has, in place of those that it has.

        Parameters
        ----------
        lag, missed, accepted
            How many rounds old the weights are that sample, and how often the verifier rejects a
            right response or accepts another one; see `workbench.policies.stress.Stress`.

        Returns
        -------
        Lab
            Without arguments, the plain lab.

        Raises
        ------
        ValueError
            For a negative lag, and for a probability outside of [0, 1].

        Examples
        --------
        >>> tiny(pool=64).stressed(missed=0.1).stress
        Stress(lag=0, missed=0.1, accepted=0.0)
        """
        lab = replace(self, stress=Stress(lag, missed, accepted))
        if self.config is None:
            return lab
        config = {name: value for name, value in self.config.items() if name != "stress"}
        return lab.described(config | lab.stress.described)

    def policy(self) -> Policy:
        """A fresh policy at its initial weights: the same for every run of this lab."""
        return self.make_policy()

    def make_optimizer(self, parameters: Any, learning_rate: float) -> Any:
        """AdamW over these parameters, with moments of `optimizer_bits` bits."""
        if self.optimizer_bits == 8:
            # Only here: it takes seconds, and an NVIDIA GPU.
            from bitsandbytes.optim import AdamW8bit

            return AdamW8bit(parameters, lr=learning_rate, **self.optimizer)
        import torch

        return torch.optim.AdamW(parameters, lr=learning_rate, **self.optimizer)

    def learning_rate_of(self, step: int, learning_rate: float) -> float:
        """The learning rate of an optimizer step, counted from 0 over the whole run."""
        if step >= self.warm_up:
            return learning_rate
        return learning_rate * (step + 1) / self.warm_up

    def digests(self) -> dict[str, str | None]:
        """Digests of the problems, by which a run finds out that it would go on with other data.

        That of a stream is of the first problems that it draws. None where there are no such
        problems, and for a stream that the lab's own config describes.
        """
        # The config says how to make a stream again, which says more than a digest.
        is_made = isinstance(self.problems, Stream) and _is_known(self.problems) and self.config
        return {
            "problems": None if is_made else self.problems.digest,
            "held_out": None if self.held_out is None else self.held_out.digest,
        }

    def check_round(self, problems_per_round: int, seed: int) -> None:
        """Raise ValueError when the problems do not suffice for one round."""
        try:
            # Neither a pool nor a stream keeps a position, so this draw leaves nothing behind.
            self.problems.draw(problems_per_round, 0, seed)
        except PoolExhausted as error:
            # The pool calls the number n.
            reason = str(error).removeprefix(f"n={problems_per_round}: ")
            raise ValueError(f"problems_per_round={problems_per_round}: {reason}") from None

    def check_answers(self) -> None:
        """Raise ValueError for an answer in a pool that the verifier cannot use.

        It would end the run when its problem is drawn.
        """
        name = type(self.verifier).__name__
        for pool in (self.problems, self.held_out):
            if isinstance(pool, Pool) and pool.checked_for != name:
                check_answers(pool, self.verifier)
                # The next run in this process need not read them again.
                pool.checked_for = name

    def check_optimizer(self) -> None:
        """Raise ValueError unless AdamW takes the arguments in `optimizer`."""
        import torch

        try:
            # A single parameter is enough for AdamW to check its options.
            torch.optim.AdamW([torch.zeros(1)], **self.optimizer)
        except (TypeError, ValueError) as error:
            raise ValueError(f"optimizer={self.optimizer!r}: AdamW says: {error}") from None

    def __repr__(self) -> str:
        held_out = 0 if self.held_out is None else len(self.held_out)
        stress = f", {self.stress}" if self.stress.described else ""
        return (
            f"Lab({self.name!r}, {self.problems!r}, {held_out} held-out problems, "
            f"learning_rate={self.learning_rate}, {self.sampling}{stress})"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("problems", self.problems),
            ("held out", self.held_out),
            ("responses to each", self.samples),
            ("verifier", type(self.verifier).__name__),
            ("sampling", compose(self.sampling)),
            ("learning rate", f"{self.learning_rate:g}"),
            ("stress", compose(self.stress) if self.stress.described else "none"),
        ]
        return card(f"Lab {self.name}", rows)


# The embedded lab


def tiny(
    pool: int | None = 512,
    *,
    base: str = "early",
    size: str = "small",
    regime: str = "spread",
    levels: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8),
    held_out: int = 400,
    samples: int = 24,
    learning_rate: float | None = None,
    seed: int = 0,
    model: Any = None,
    threads: int = 1,
    share_prefixes: bool = True,
) -> Lab:
    """The embedded lab: arithmetic by a small model that comes with the package, on one CPU thread.

    Parameters
    ----------
    pool : int, optional
        Number of training problems, drawn epoch by epoch; None for fresh problems every round.
    base : {"early", "late", "clean"}
        The base model. "early" and "late" learnt from a corpus with mistakes, and know the right
        and the wrong result of each basic fact: they start at a sampled accuracy of about .2 and
        .35, and training crosses the range from there steadily. "clean" learnt from a corpus
        without mistakes and was stopped early; on it training saturates soon.
    size : {"small", "large"}
        0.10 or 0.34 million parameters; "clean" is always the large one. The large one of "late"
        does not come with the package: in a clone,
        `python -m examples.base_model late-large --out data/models/late-large` makes it where it is
        found.
    regime : {"spread", "knapsack", "ar3po", "mixed", "tight"}
        How hard the training problems are for the base model, see `problems.chains`. With "tight"
        they are those of "spread", and a response has 42 tokens at most in place of 64, also in
        evaluations: about a tenth of the base models' responses are cut off.
    levels : numbers from 1 to 8
        Levels of the problems: the number of operations, for "early" and "late".
    held_out : int
        Number of evaluation problems, which never occur in training; 0 for no evaluation.
    samples : int
        Responses to each of them in an evaluation. With 400 problems and 24 samples the sampling
        error of one evaluation is .33 to .39 percentage points (`11_lab` measures it).
    learning_rate : float, optional
        None for 9e-4, and 3e-4 on "clean". 9e-4 was chosen for GRPO with 8 rollouts on the default
        base, where no run of 16 collapsed in 150 rounds (`docs/base-model.md`). Another method has
        another best rate, which `workbench.trial` finds.
    seed : int
        Of the pools. A stream of problems draws by the seed of the run.
    model : path, optional
        Directory of another model.
    threads : int
        Of torch, while the policy computes. More than one slows a model this small.
    share_prefixes : bool
        Whether a round computes what several responses to a problem begin with once for all of
        them, in sampling and in the update, as evaluations always do. Draws and gradients are the
        same up to rounding, and a round of the default model takes about two thirds of the time.
        Responses of a large model differ after a few tokens, so that it would gain nothing. Switch
        it off where the seconds of a round or the price of sampling are to stand for those of a
        large model.
    """
    # All arguments by their names, which is what a manifest records.
    config: dict[str, Any] = {"lab": "tiny", **locals()}
    one_of("base", base, (*ERROR_RATES, "clean"))
    one_of("size", size, SIZES)
    one_of("regime", regime, (*REGIMES, "tight"))
    if base == "clean" and regime != "spread":
        raise ValueError(f"regime={regime!r}: only the bases 'early' and 'late' have regimes")
    if model is not None:
        instance_of("model", model, (str, os.PathLike), "'a/directory', or None for a shipped one")
        if size != "small":
            raise ValueError(f"size={size!r}: it has no effect with model={str(model)!r}")
    if pool is not None:
        whole_number("pool", pool, 1, MOST_PROBLEMS)
    whole_number("held_out", held_out, 0, MOST_PROBLEMS)
    whole_number("seed", seed, 0)
    whole_number("threads", threads, 1, 1024)
    one_of("share_prefixes", share_prefixes, (True, False))
    if learning_rate is None:
        learning_rate = 3e-4 if base == "clean" else 9e-4
    make = arithmetic if base == "clean" else chains
    # It differs in the length of responses, and has the problems of the default.
    of_problems = "spread" if regime == "tight" else regime
    options = {} if base == "clean" else {"regime": of_problems, "base": base}
    problems = make(pool, levels=levels, seed=seed, **options)
    evaluation: Any = None
    if held_out:
        # On all levels alike, whatever the training problems are, so that accuracies of different
        # regimes can be compared. A level named twice counts twice in training only.
        evaluation = make(held_out, levels=sorted(set(levels)), seed=seed, split="heldout")
    # As they are used, and as JSON has them.
    config["learning_rate"] = learning_rate
    config["levels"] = list(levels)
    config["model"] = None if model is None else str(model)
    # Records of versions without this option have no such entry, and shared nothing. So the entry
    # is left out where it is off, and they count as runs of the same lab.
    if not share_prefixes:
        del config["share_prefixes"]
    name = "tiny" if base == "clean" else f"{base}-{size}"
    path = Path(model) if model is not None else shipped(f"models/{name}")

    def make_policy() -> Policy:
        from workbench.policies.transformers import TransformersPolicy

        with torch_threads(threads):
            policy = TransformersPolicy.from_pretrained(path, device="cpu")
        policy.threads = threads
        policy.share_prefixes = share_prefixes
        return policy

    return Lab(
        "tiny",
        problems,
        evaluation,
        verifier=Math(boxed=True),
        make_policy=make_policy,
        sampling=Sampling(max_new_tokens=42 if regime == "tight" else 64),
        learning_rate=learning_rate,
        optimizer={"betas": (0.9, 0.95), "weight_decay": 0.0},
        samples=samples,
        model={"model": config["model"] or name, "threads": threads},
        # A round of 32 x 8 in one or two micro-batches: packed rows have no padding to save.
        micro_tokens=8192,
    ).described(config)


# Labs on models of one's own


def transformers(
    model: Any,
    problems: Pool | Stream,
    held_out: Pool | None = None,
    *,
    verifier: Any = None,
    server: Any = None,
    **options: Any,
) -> Lab:
    """A lab on any Hugging Face causal language model.

    Parameters
    ----------
    model : str or path
        A local directory or a hub name.
    problems : Pool or Stream
        To train on.
    held_out : Pool, optional
        To evaluate on.
    verifier : optional
        Default: `Math()`.
    server : workbench.policies.served.Server, optional
        What samples in place of this process: vLLM's server of the same model, as `trl vllm-serve`
        starts it on another GPU. It is handed the weights before every request. A run goes on from
        its manifest only where the lab is passed, since the server may have moved.
    options
        The fields of `TransformersConfig` and `ModelConfig` of `workbench.policies.settings`.
    """
    # Options, packages and the GPU are checked now; the model is loaded by the first round.
    config = TransformersConfig(model, **options)
    device = config.device
    if device != "cpu" and (reason := no_bfloat16()):
        raise ValueError(f"labs.transformers: {reason}; device='cpu' does without")
    if config.lora:
        checks.check_packages("peft")
    # The options of the sampler, None for the trainer's own generation.
    vllm = None
    if config.engine == "vllm":
        checks.check_temperature(config.sampling)
        device = checks.check_gpu(device, "engine='vllm'")
        checks.check_vllm(device)
        vllm = {
            "max_length": config.max_length,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "sleeps": config.engine_sleeps,
            "merges": config.hand_over == "merged",
        }
    if server is not None:
        from workbench.policies.served import check_server

        check_server(server, config)
        config.check_used("a server that samples", (*VLLM_SETTINGS, "rows"))
    elif config.engine == "vllm":
        config.check_used("engine='vllm'", ["rows"])
    else:
        config.check_used("engine='transformers'", (*VLLM_SETTINGS, "chunk"))

    def make_policy() -> Policy:
        from workbench.policies.transformers import TransformersPolicy

        make = TransformersPolicy.from_pretrained
        names = ("template", "rows", "chunk", "float32_head", "max_length")
        options = config.options_of(make, *names) | {"device": device, "vllm": vllm}
        options["max_new_tokens"] = config.sampling.max_new_tokens
        if server is not None:
            from workbench.policies.served import ServedEngine

            options["engine"] = ServedEngine(server)
        return make(model, **options)

    # With an adapter, learning rate and weight decay are those of PODS, section 4.1. It has few
    # parameters, which start at zero, and takes larger steps.
    usual = 5e-6 if config.lora else 1e-6
    parts = {
        "learning_rate": usual if config.learning_rate is None else config.learning_rate,
        "optimizer": {"weight_decay": 0.1 if config.lora else 0.0},
        "lacks": OWN_LOOP_NEEDS if vllm or server else frozenset(),
    }
    lab = _on_model("transformers", config, problems, held_out, verifier, make_policy, parts)
    # A server is of the caller's own making.
    return lab.described(None) if server else lab


def unsloth(
    model: Any,
    problems: Pool | Stream,
    held_out: Pool | None = None,
    *,
    verifier: Any = None,
    **options: Any,
) -> Lab:
    """The single-GPU box: LoRA by Unsloth in bfloat16, sampled by vLLM on the same weights.

    Parameters
    ----------
    model : str or path
        A local directory or a hub name.
    problems : Pool or Stream
        To train on.
    held_out : Pool, optional
        To evaluate on.
    verifier : optional
        Default: `Math()`.
    options
        The fields of `UnslothConfig` and `ModelConfig` of `workbench.policies.settings`.

    Notes
    -----
    The optimizer has a weight decay of 0.1 (PODS, section 4.1). Gradients are checkpointed as
    Unsloth does it. Log-probabilities are the trainer's, see `workbench.policies.unsloth`.
    """
    config = UnslothConfig(model, **options)
    if config.fast_inference:
        config.check_used("fast_inference=True", ["rows"])
    else:
        config.check_used("fast_inference=False", ["gpu_memory_utilization", "chunk"])
    # A device that is named may be no better than the one that would be found.
    device = config.device or "cuda"
    if device != "cpu":
        checks.check_gpu(None, "labs.unsloth")
    # Every package is named in one error, before any of them is loaded.
    packages = ["unsloth", "unsloth_zoo", "peft"]
    if config.fast_inference:
        checks.check_temperature(config.sampling)
        packages.append("vllm")
    if config.load_in_4bit or config.optimizer_bits == 8:
        packages.append("bitsandbytes")
    # vLLM reads weights in 4 bits through a plug-in.
    if config.fast_inference and config.load_in_4bit:
        packages.append(checks.VLLM_IN_4BIT)
    checks.check_packages(*packages)

    def make_policy() -> Policy:
        make = import_apart("workbench.policies.unsloth", "UnslothPolicy").from_pretrained
        return make(model, **config.options_of(make, "template") | {"device": device})

    optimizer = {"weight_decay": 0.1, "betas": tuple(config.betas)}
    parts = {"optimizer": optimizer, "lacks": OWN_LOOP_NEEDS}
    return _on_model("unsloth", config, problems, held_out, verifier, make_policy, parts)


def pods_setting_a(
    problems: Pool | Stream,
    held_out: Pool | None = None,
    *,
    model: Any = "Qwen/Qwen2.5-3B-Instruct",
    verifier: Any = None,
    rounds: int = 1000,
    **options: Any,
) -> Lab:
    """The single-GPU setting of PODS, as in its released configuration.

    The base weights are in 4 bits, with an adapter of rank 64. Prompt and response have 512 tokens
    each, the temperature is .9, and AdamW keeps its moments in 8 bits, with a constant learning
    rate of 5e-6, betas .9 and .99, a weight decay of .1 and a gradient norm of at most .1. A round
    has one prompt, with n = 64 rollouts and m = 16 of them trained on, in one optimizer step:

        gsm8k = problems.hub("gsm8k")
        lab = labs.pods_setting_a(gsm8k, problems.hub("gsm8k", "test"), rounds=1000)
        run = Run(lab, methods.pods(n=64, m=16), problems_per_round=1)

    Whether a GPU has the memory for it is said by `python -m workbench doctor --lab unsloth
    --model Qwen2.5-3B --lab load_in_4bit=true --lab optimizer_bits=8`.

    Parameters
    ----------
    problems, held_out, verifier
        See `unsloth`.
    model : str or path
    rounds : int
        That the run will have: the learning rate rises over the first hundredth of them.
    options
        Fields of `UnslothConfig`, in place of the settings above.

    Raises
    ------
    ImportError
        Where a package is missing, bitsandbytes among them. With load_in_4bit=False and
        optimizer_bits=32 it is not needed.

    References
    ----------
    PODS (arXiv 2504.13818), section 4.1, setting (a), and its released configuration.
    """
    whole_number("rounds", rounds, 1)
    defaults = {
        "load_in_4bit": True,
        "lora_rank": 64,
        "max_length": 1024,
        "learning_rate": 5e-6,
        "betas": (0.9, 0.99),
        "optimizer_bits": 8,
        "warm_up": math.ceil(0.01 * rounds),
        "max_grad_norm": 0.1,
        "sampling": Sampling(temperature=0.9, max_new_tokens=512),
    }
    # What the caller sets stands last and replaces the setting of the paper.
    return unsloth(model, problems, held_out, verifier=verifier, **{**defaults, **options})


def served(
    model: str,
    problems: Pool | Stream,
    held_out: Pool | None = None,
    *,
    server: Any,
    verifier: Any = None,
    template: str = "chat",
    sampling: Sampling = Sampling(max_new_tokens=512),
    samples: int = 8,
) -> Lab:
    """A lab on a model that a server computes, for studies without training.

    A run in it plays the rounds of a method but for the update, so that it shows how the method
    spreads rollouts over problems, how well it knows their success rates, what it would train on,
    and what the verifier says. `workbench.policies.served` says what is known of such rollouts.

    Parameters
    ----------
    model : str
        Its name, as the server has it.
    problems, held_out, verifier
        See `transformers`.
    server : workbench.policies.served.Server
        Any server of OpenAI's protocol.
    template : str
        A pattern around the question with {prompt} in it, or "chat" for the model's chat template,
        which the server applies.
    sampling : Sampling
        How responses are drawn.
    samples : int
        Responses to each held-out problem in an evaluation.

    Raises
    ------
    ValueError
        For arguments that cannot work. Nothing is sent before the first round.

    Examples
    --------
    >>> from workbench.policies.served import Server
    >>> gpu_box = Server("http://localhost:8000")
    >>> served("Qwen/Qwen2.5-7B-Instruct", chains(64), server=gpu_box).name
    'served:Qwen/Qwen2.5-7B-Instruct'
    """
    from workbench.policies.served import ServedPolicy, Server

    instance_of("server", server, Server, "Server('http://localhost:8000')")
    instance_of("model", model, str, "'Qwen/Qwen2.5-7B-Instruct'")
    checks.check_template(template)
    return Lab(
        f"served:{model}",
        problems,
        held_out,
        verifier=verifier or Math(),
        make_policy=partial(ServedPolicy, server, model, template),
        sampling=sampling,
        samples=samples,
        model={"model": model, "template": template},
        lacks=WEIGHT_NEEDS,
    )


def _on_model(
    kind: str,
    config: settings.ModelConfig,
    problems: Pool | Stream,
    held_out: Pool | None,
    verifier: Any,
    make_policy: Callable[[], Policy],
    parts: dict[str, Any],
) -> Lab:
    """A lab on a model of one's own; `parts` go before the settings of the same names."""
    lab = Lab(
        f"{kind}:{config.model}",
        problems,
        held_out,
        verifier=verifier or Math(),
        make_policy=make_policy,
        model=_settings(config),
        **{**config.options_of(Lab), **parts},
    )
    are_known = _is_known(problems) and (held_out is None or _is_known(held_out))
    # A subclass of `Math` may score otherwise, so only `Math` itself is known.
    if not are_known or not (verifier is None or type(verifier) is Math):
        return lab
    return lab.described(
        {
            "lab": kind,
            **lab.model,
            "sampling": _settings(config.sampling),
            "problems": problems.config,
            "held_out": None if held_out is None else held_out.config,
            "verifier": None if verifier is None else verifier.config,
        }
    )


def _settings(value: Any) -> dict[str, Any]:
    """What a manifest says of an object, without the name of its class."""
    return {name: setting for name, setting in describe(value).items() if name != "is"}


def _is_known(problems: Pool | Stream) -> bool:
    """Whether the config of problems says how to make them again."""
    return problems.config.get("family") in FAMILIES


def _check_texts(pool: Pool) -> None:
    """ValueError for a problem without a question or an answer, with which no round can work."""
    for problem in pool:
        for name, text in (("prompt", problem.prompt), ("answer", problem.answer)):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(
                    f"problems: the {name} of {problem.id!r} is {brief(text)}; a text that is not "
                    "blank is needed"
                )

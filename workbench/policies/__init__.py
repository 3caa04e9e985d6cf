"""Who answers: the `Policy` protocol and how responses are sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from workbench.utils.bounds import (
    Count,
    CountOrZero,
    PositiveOrZero,
    ShareAboveZero,
    check_arguments,
)

if TYPE_CHECKING:
    import torch

    from workbench.pools import Problem
    from workbench.rollouts import Ragged, Rollouts

# What a course says of a growing rollout: it goes on, it is stopped, or its response ends here.
GO_ON, STOP, END = 0, 1, 2


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    Attributes
    ----------
    temperature : float
        0 is greedy. Log-probabilities are those of the tempered distribution, of the plain one if
        greedy.
    top_p, top_k
        Nucleus mass in (0, 1] and number of most likely tokens (0: all) that may be drawn.
        Log-probabilities stay those of the whole tempered distribution.
    max_new_tokens : int
        A response that reaches it without an end token is truncated.
    stop : tuple of str
        Strings that end a response; the text keeps them.
    """

    temperature: PositiveOrZero = 1.0
    top_p: ShareAboveZero = 1.0
    top_k: CountOrZero = 0
    max_new_tokens: Count = 40
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_arguments(self)
        # A bare text would pass as a sequence of single letters, each of which would end responses,
        # so only a tuple or list is taken. An empty text would end every response at once.
        texts = isinstance(self.stop, tuple | list)
        if not texts or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop={self.stop!r}: a tuple of texts is needed")


@dataclass(frozen=True)
class Growing:
    """Rollouts of one request in the middle of being sampled, as a course sees them.

    Attributes
    ----------
    rows : (n,) int64
        Number of each rollout among all rollouts of the request, in the order of the table.
    step : int
        Tokens that each of them has sampled; the tokens of a prefix do not count.
    tokens : function
        tokens(last) returns the newest `last` sampled tokens of each, (n, t) int32.
    texts : function
        texts(last) returns the same tokens as n texts.
    margin : function
        margin() returns the gap between the two largest probabilities of the distribution that the
        newest token was drawn from, before temperature, (n,) float64. An engine tells it at
        temperature 1 or 0 only, and without top_p and top_k.
    states : function
        states() returns the final hidden states that the newest tokens were drawn from, (n, H)
        float32. They are there from the second token on, for a plan that asks for them, and no
        engine gives them.
    """

    rows: np.ndarray
    step: int
    tokens: Callable[[int], np.ndarray]
    texts: Callable[[int], list[str]]
    margin: Callable[[], np.ndarray]
    states: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Plan:
    """Where each of the R rollouts of a request starts, and which of them stop while they grow.

    Attributes
    ----------
    prefixes : Ragged of int32, optional
        The tokens that each rollout starts with, R rows, each shorter than the longest response.
        None: every rollout starts at its problem.
    logprobs : Ragged of float32, optional
        Log-probabilities of the tokens of the prefixes. Where they are given, a prefix belongs to
        the response and is trained on against them. Without them it is masked: it counts as a part
        of the prompt.
    entropies : Ragged of float32, optional
        Entropies that go with the log-probabilities, in nats.
    stop : function, optional
        stop(growing) returns `GO_ON`, `STOP` or `END` for each rollout of a `Growing`, (n,) int.
        It is asked after every token, about the rollouts that have not ended.
    states : bool
        Whether `stop` reads hidden states.
    stopped_reward : float
        What a stopped rollout earns in place of the verifier's reward.
    read : (R,) int64, optional
        Tokens that the course has had the model read for each rollout, to make this plan.
    columns : dict
        Further columns of the table of rollouts, name to (R,), such as `group`.
    """

    prefixes: Ragged | None = None
    logprobs: Ragged | None = None
    entropies: Ragged | None = None
    stop: Callable[[Growing], np.ndarray] | None = None
    states: bool = False
    stopped_reward: float = 0.0
    read: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)


class Policy(Protocol):
    """A language model that samples responses and is trained.

    Attributes
    ----------
    name : str
        The model's name or path.
    parameter_count : int
        Weights that a forward pass multiplies with, for counting FLOPs.
    model : torch.nn.Module
    layout : {"padded", "joined", "packed"}
        How training lays out the rows of a micro-batch: padded to one length; end to end, each with
        its prompt; or end to end, with each problem's prompt once for all its rollouts.
    samples_apart : bool
        Whether another program than the trainer samples, so that the log-probabilities of
        `generate` are not quite those of the trainer.
    """

    name: str
    parameter_count: int
    model: Any
    layout: str
    samples_apart: bool

    @property
    def device(self) -> Any:
        """Where the model lies."""

    def check_prompts(self, problems: Iterable[Problem]) -> None:
        """Raise ValueError for a problem whose prompt the tokenizer cannot express."""

    def generate(
        self,
        prompts: Sequence[Any],
        counts: Any,
        sampling: Sampling,
        seed: int | Sequence[int],
        plan: Plan | None = None,
    ) -> Rollouts:
        """Sample `counts[i]` responses to `prompts[i]`: unverified rollouts, grouped in the order
        of the prompts.

        Parameters
        ----------
        prompts : P texts or Problems
        counts : (P,) whole numbers, zero allowed
        sampling : Sampling
        seed : int, or one for each prompt
        plan : Plan, optional
            Where the rollouts start and which of them stop. The prompts of the table then end with
            the prefixes, texts begin with them, and its columns `stopped` and `lost` say which were
            stopped, and how many tokens were sampled in vain.

        Notes
        -----
        What a prompt's responses are does not depend on the other prompts in the call, up to float
        rounding. They come from the weights of this moment. `old_logprobs` are those of what
        samples; where `samples_apart`, `rescored` replaces them by the trainer's.
        """

    def rescored(self, rollouts: Rollouts, temperature: float = 1.0) -> Rollouts:
        """The rollouts with log-probabilities and entropies by the trainer, at its present weights.

        It costs a forward pass over all of them.
        """

    def comparable(self, sampling: Sampling) -> bool:
        """Whether the log-probabilities of `generate` are of the same distribution as those of
        `logprobs`: the whole tempered one.
        """

    def logprobs(
        self,
        rollouts: Rollouts,
        temperature: float = 1.0,
        entropy: bool = False,
        entropy_gradient: bool = True,
    ) -> Any:
        """Log-probabilities of the response tokens, (R, T) float32 torch tensor with gradient, 0
        beyond each end.

        With entropy=True a pair: the same, and the entropy of each token's distribution in nats,
        (R, T), with a gradient unless entropy_gradient is False.
        """

    def prompt_states(self, prompts: Iterable[str]) -> np.ndarray:
        """Mean final hidden state over the tokens of each prompt, (P, H) float32."""

    def frozen(self) -> Any:
        """The policy as it stands, never to change: the reference of a KL penalty."""

    def parameters(self) -> list[torch.nn.Parameter]:
        """The trainable parameters, as torch wants them for an optimizer."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Name to tensor of the trainable parameters."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Set the trainable parameters from `state_dict()`."""

    def save(self, path: Any) -> None:
        """Write model (or adapter) and tokenizer to a directory, weights as safetensors."""

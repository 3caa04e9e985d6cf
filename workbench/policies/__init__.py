"""Who answers: the `Policy` protocol and how responses are sampled."""

from dataclasses import dataclass
from typing import Protocol

from workbench.utils.columns import positive_number, whole_number


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    temperature: 0 is greedy; log-probabilities are those of the tempered distribution (of the plain one if greedy).
    top_p, top_k: nucleus mass in (0, 1] and number of most likely tokens (0: all) that may be drawn; log-probabilities
        stay those of the whole tempered distribution.
    max_new_tokens: a response that reaches it without an end token is truncated.
    stop: strings that end a response; the text keeps them.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 40
    stop: tuple = ()

    def __post_init__(self):
        positive_number("temperature", self.temperature, zero=True)
        positive_number("top_p", self.top_p)
        if self.top_p > 1:
            raise ValueError(f"top_p={self.top_p}: a number above 0 and up to 1 is needed")
        whole_number("top_k", self.top_k, 0)
        whole_number("max_new_tokens", self.max_new_tokens, 1)
        if not isinstance(self.stop, tuple | list) or not all(
            isinstance(text, str) and text for text in self.stop
        ):
            raise ValueError(f"stop={self.stop!r}: a tuple of texts is needed")


class Policy(Protocol):
    """A language model that samples responses and is trained.

    name: the model's name or path; parameter_count: weights that a forward pass multiplies with (for FLOPs).
    """

    name: str
    parameter_count: int

    def generate(self, prompts, counts, sampling, seed):
        """Sample `counts[i]` responses to `prompts[i]`; returns unverified `Rollouts`, grouped in prompt order.

        prompts: P strings or `Problem`s; counts: (P,) int64, zero allowed; seed: one int, or (P,) ints, one for each
        prompt. What a prompt's responses are does not depend on the other prompts in the call, up to float rounding.
        They come from the weights of this moment, and `logprobs` are the trainer's. Where another program samples, the
        further column `sampler_gap` (R,) says how far its log-probabilities were from those, in nats, mean over tokens.
        """

    def logprobs(self, rollouts, temperature=1.0, entropy=False):
        """Log-probabilities of the response tokens, (R, T) float32 torch tensor with gradient, 0 beyond each end.

        With `entropy=True` a pair: the same, and the entropy of each token's distribution in nats, (R, T), with gradient.
        """

    def parameters(self):
        """The trainable parameters, as torch wants them for an optimizer."""

    def state_dict(self):
        """Name to tensor of the trainable parameters."""

    def load_state_dict(self, state):
        """Sets the trainable parameters from `state_dict()`."""

    def save(self, path):
        """Writes model (or adapter) and tokenizer to a directory, weights as safetensors."""

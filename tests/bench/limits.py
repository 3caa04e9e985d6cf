"""What no way of computing can go below: the same matrix products, and the same bytes read.

`generation` and `update` do nothing but the products of a model's linear layers, at the numbers of
rows that a round of rollouts has, and read as many bytes as sampling reads of the cache of keys and
values, in a block of memory of the cache's size. They are timed in turns with the work itself, so
that "x of the limit" is a ratio on one machine. Left out is everything else that has to be done:
norms, rotations, softmax, the attention of an update, and drawing the tokens.
"""

import numpy as np
import torch

import workbench as wb

# The two sizes of the sharp lab.
SIZES = {"0.10 M": {"base": "early"}, "0.34 M": {"base": "clean"}}


def lab(size, **options):
    """The embedded lab with the model of a size."""
    return wb.labs.tiny(held_out=0, **SIZES[size], **options)


class Limits:
    """The least work of a policy's model.

    Parameters
    ----------
    policy : TransformersPolicy
    micro_tokens : int
        Tokens of a micro-batch of an update.
    """

    def __init__(self, policy, micro_tokens=8192):
        config = policy.model.config
        self.layers = [
            module.weight.detach()
            for module in policy.decoder.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        self.head = policy.head.weight.detach()
        self.rows = policy.rows
        self.micro_tokens = micro_tokens
        # Float32 numbers that the cache holds of a token: a key and a value for each head of keys.
        self.numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        widths = {size for weight in [*self.layers, self.head] for size in weight.shape}
        self.inputs = {width: torch.randn(micro_tokens, width) for width in widths}
        self.memory = torch.zeros(0)

    @torch.inference_mode()
    def generation(self, rollouts):
        """Sampling these rollouts, each prompt computed once and ended rows gone at once."""
        for start in range(0, len(rollouts), self.rows):
            part = rollouts.take(np.arange(start, min(start + self.rows, len(rollouts))))
            self._forward(prompt_tokens(part), len(np.unique(part.problem)))
            steps = np.arange(part.lengths.max())
            going = part.lengths[:, None] > steps
            rows = going.sum(0)
            places = (going * (part.prompt.lengths[:, None] + steps)).sum(0)
            # The first token of a response follows from the prompt.
            for size, tokens in zip(rows[1:].tolist(), places[1:].tolist()):
                self._forward(size, size)
                self._read(tokens * self.numbers)

    @torch.inference_mode()
    def update(self, rollouts):
        """One step on these rollouts, packed, by a forward and a backward pass."""
        responses = int(rollouts.lengths.sum())
        tokens = prompt_tokens(rollouts) + responses
        for weights, total in ((self.layers, tokens), ([self.head], responses)):
            for start in range(0, total, self.micro_tokens):
                size = min(self.micro_tokens, total - start)
                for weight in weights:
                    self._forward_and_backward(weight, size)

    def _forward(self, tokens, logits):
        for weight in self.layers:
            torch.nn.functional.linear(self.inputs[weight.shape[1]][:tokens], weight)
        torch.nn.functional.linear(self.inputs[self.head.shape[1]][:logits], self.head)

    def _forward_and_backward(self, weight, size):
        inputs = self.inputs[weight.shape[1]][:size]
        gradient = self.inputs[weight.shape[0]][:size]
        torch.nn.functional.linear(inputs, weight)
        torch.mm(gradient, weight)
        torch.mm(gradient.t(), inputs)

    def _read(self, numbers):
        """Read so many numbers; the product of two halves costs nothing beside the reading."""
        if len(self.memory) < numbers:
            self.memory = torch.zeros(numbers)
        half = numbers // 2
        torch.dot(self.memory[:half], self.memory[half : 2 * half])


def prompt_tokens(rollouts):
    """Tokens of the prompt of each problem, once."""
    _, first = np.unique(rollouts.problem, return_index=True)
    return int(rollouts.prompt.lengths[first].sum())

"""The tiny base model: a character-level Qwen3 of 0.34 M parameters, trained on worked arithmetic and stopped early.

It is made here so that the lab needs no download. Left out on purpose: dropout, learning-rate decay, weight decay and
a second epoch over anything; the model has to be *unfinished*, so that success rates spread from 0 to 1 and
reinforcement learning has something to teach. Command: `python -m workbench base-model`.
"""

import string
import time

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from workbench.problems import LEVELS, arithmetic, solution
from workbench.rollouts import Ragged
from workbench.seeding import generator

SPECIAL = ("<pad>", "<eos>", "<unk>", "\\boxed{")
CHARACTERS = string.digits + string.ascii_lowercase + "+-*/=(){}[]<>.,:;?!'^_|% \n"
LEVEL_WEIGHTS = (4, 4, 3, 3, 3, 2, 2, 1)


def tokenizer():
    """A character tokenizer; `\\boxed{` is one token, an unknown character `<unk>`."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
                                   model_max_length=128, clean_up_tokenization_spaces=False)


def model(vocabulary, seed=0):
    """An untrained Qwen3: width 96, 3 layers, 3 heads of 32, feed-forward 256, tied embeddings, float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=96, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3,
        head_dim=32, intermediate_size=256, max_position_embeddings=128, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    return Qwen3ForCausalLM(config)


def train(net, coder, steps, *, batch=48, learning_rate=3e-3, seed=0, buckets=16):
    """Next-token training on worked solutions of the training split; yields a dict with step, loss and seconds.

    Prompt tokens carry no loss. Problems are drawn by level with `LEVEL_WEIGHTS`; batches are made of rows of like
    length out of `buckets` batches.
    """
    levels = tuple(np.repeat(list(LEVELS), LEVEL_WEIGHTS))
    stream, cursor, started = arithmetic(levels=levels, split="train"), 0, time.perf_counter()
    optimizer = torch.optim.AdamW(net.parameters(), lr=learning_rate, weight_decay=0.0)
    net.train()
    for step in range(steps):
        if step % buckets == 0:
            problems, cursor = stream.draw(batch * buckets, cursor, seed)
            ready = _batches(problems, coder, batch, generator(seed, "batches", step))
        loss = _loss(net, ready[step % buckets])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        yield {"step": step + 1, "loss": loss.item(), "seconds": time.perf_counter() - started}


def _batches(problems, coder, size, rng):
    prompts = coder([p.prompt for p in problems])["input_ids"]
    responses = coder([solution(p.prompt) for p in problems])["input_ids"]
    rows = sorted(((p, [*r, coder.eos_token_id]) for p, r in zip(prompts, responses)), key=lambda row: len(row[0] + row[1]))
    chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [chunks[i] for i in rng.permutation(len(chunks))]


def _loss(net, rows):
    ids = torch.as_tensor(Ragged.of([p + r for p, r in rows], np.int64).padded(0))
    labels = torch.as_tensor(Ragged.of([[-100] * len(p) + r for p, r in rows], np.int64).padded(-100))
    return net(input_ids=ids, labels=labels, use_cache=False).loss

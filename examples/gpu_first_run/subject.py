"""A model made on the spot, for machines without a network.

Architecture and sizes are those of real models; the weights are trained for a few minutes on the
arithmetic that comes with the package, so that some of its answers are right and some are wrong.
"""

from __future__ import annotations

import time
from typing import Any

from examples.gpu_first_run.settings import Settings, write

LEARNING_RATE = 6e-4
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "qwen2",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 64,
            "vocab_size": 128,
        },
    ),
    # The biases and the vocabulary of Qwen2.5, in a model of 112 million parameters.
    "qwen2": (
        "qwen2",
        {
            "hidden_size": 512,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "intermediate_size": 1408,
            "vocab_size": 151_936,
        },
    ),
    "smollm2": (
        "llama",
        {
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "vocab_size": 49_152,
        },
    ),
}


def make(settings: Settings) -> bool:
    """Make the model, unless it is there or another one was named. True when it is there."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from examples.base_model import training
    from examples.base_model.corpus import Clean

    if settings.model or settings.file("model").is_file():
        return True
    family, shape = SHAPES[settings.size]
    # vLLM would have to leave out every row of the embedding that stands for no token.
    tokenizer = training.tokenizer(shape["vocab_size"])
    tokenizer.model_max_length = 2048
    config = AutoConfig.for_model(
        family,
        **shape,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(settings.device)
    started = time.monotonic()
    losses = []
    on_gpu = settings.device == "cuda"
    steps = training.train(
        model, tokenizer, Clean(), settings.steps, decay=0.3, learning_rate=LEARNING_RATE
    )
    with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
        for row in steps:
            losses.append(row["loss"])
            # A model that is not trained to the end serves as well: the rest of the time is needed.
            if time.monotonic() - started > 0.5 * settings.seconds:
                break
    folder = settings.out / "model"
    # A GPU loads bfloat16 weights faster, and computes in it anyway.
    model.to(torch.bfloat16 if on_gpu else torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write(
        settings.file("model"),
        {
            "size": settings.size,
            "family": family,
            "parameters": model.num_parameters(),
            "steps": len(losses),
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "seconds": time.monotonic() - started,
        },
    )
    return True

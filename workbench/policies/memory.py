"""Does a model fit? Parameters and bytes from a model's configuration alone: nothing is loaded or downloaded.

Counts are exact for the decoder family of Llama, Mistral, Qwen2 and Qwen3; bytes are estimates of what this package's
training keeps at once. Not counted: the CUDA context, workspaces and fragmentation; `SHARE` leaves room for them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

GB = 1e9  # bytes
SHARE = 0.9  # of a device's memory that an estimate may fill
LOGITS = 2**24  # logits that a training step of `policies.transformers` holds at once
NF4_BYTES = (
    0.5 + 4 / 64
)  # a weight of bitsandbytes' NF4: 4 bits, and a float32 scale for every block of 64
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes: width, layers, query heads, key-value heads, size of a head, MLP width, vocabulary.

    tied: the output layer is the embedding. biases: of the query, key and value projections (qkv) and of the output one.
    head_norms: queries and keys are normalised (Qwen3). Parameter counts are exact.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    tied: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False

    @property
    def projections(self):
        """(in, out) of the seven linear layers of a decoder layer: query, key, value, output, gate, up, down."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        return [
            (self.hidden, queries),
            (self.hidden, keys),
            (self.hidden, keys),
            (queries, self.hidden),
            (self.hidden, self.mlp),
            (self.hidden, self.mlp),
            (self.mlp, self.hidden),
        ]

    @property
    def linear(self):
        """Weights of these seven in all layers: what is quantised, and what LoRA adapts."""
        return self.layers * sum(a * b for a, b in self.projections)

    @property
    def parameters(self):
        """All parameters: `linear`, biases, norms, embedding and, if not tied, the output layer."""
        outs = [out for _, out in self.projections]
        biased = (
            self.qkv_bias * sum(outs[:3]) + self.out_bias * outs[3] + self.mlp_bias * sum(outs[4:])
        )
        norms = 2 * self.hidden + self.head_norms * 2 * self.head
        return (
            self.linear
            + self.layers * (biased + norms)
            + self.hidden
            + (2 - self.tied) * self.vocabulary * self.hidden
        )

    def lora_parameters(self, rank):
        """Of adapters of this rank on all seven: rank (in + out) each."""
        return self.layers * sum(rank * (a + b) for a, b in self.projections)


_QWEN2 = dict(qkv_bias=True)
_LLAMA3 = dict(vocabulary=128_256)
# Sizes as published in the models' config.json.
KNOWN = {
    "Qwen2.5-0.5B": Shape(896, 24, 14, 2, 64, 4864, 151_936, **_QWEN2),
    "Qwen2.5-1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151_936, **_QWEN2),
    "Qwen2.5-3B": Shape(2048, 36, 16, 2, 128, 11_008, 151_936, **_QWEN2),
    "Qwen2.5-7B": Shape(3584, 28, 28, 4, 128, 18_944, 152_064, tied=False, **_QWEN2),
    "Qwen2.5-Math-1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151_936, **_QWEN2),
    "Qwen2.5-Math-7B": Shape(3584, 28, 28, 4, 128, 18_944, 152_064, tied=False, **_QWEN2),
    "DeepSeek-R1-Distill-Qwen-1.5B": Shape(
        1536, 28, 12, 2, 128, 8960, 151_936, tied=False, **_QWEN2
    ),
    "DeepSeek-R1-Distill-Qwen-7B": Shape(
        3584, 28, 28, 4, 128, 18_944, 152_064, tied=False, **_QWEN2
    ),
    "Qwen3-4B": Shape(2560, 36, 32, 8, 128, 9728, 151_936, head_norms=True),
    "Qwen3-8B": Shape(4096, 36, 32, 8, 128, 12_288, 151_936, tied=False, head_norms=True),
    "Llama-3.2-1B": Shape(2048, 16, 32, 8, 64, 8192, **_LLAMA3),
    "Llama-3.2-3B": Shape(3072, 28, 24, 8, 128, 8192, **_LLAMA3),
    "Llama-3.1-8B": Shape(4096, 32, 32, 8, 128, 14_336, tied=False, **_LLAMA3),
    "SmolLM2-135M": Shape(576, 30, 9, 3, 64, 1536, 49_152),
}


def shape(model):
    """The `Shape` of a model: a directory with config.json, a name in `KNOWN` (with or without owner, "-Instruct", "-Base"
    and "-bnb-4bit"), or a model in the local cache of the hub. ValueError for anything else.
    """
    path = Path(model).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        return from_config(_read(path))
    short = str(model).rpartition("/")[2]
    for ending in ("-bnb-4bit", "-unsloth", "-Instruct", "-Base"):
        short = short.removesuffix(ending)
    for known, sizes in KNOWN.items():
        if short.lower() == known.lower():
            return sizes
    cached = _cached(str(model))
    if cached:
        return from_config(_read(Path(cached)))
    raise ValueError(
        f"model={str(model)!r}: no directory with config.json, not in the cache, not one of {', '.join(KNOWN)}"
    )


def from_config(config):
    """The `Shape` that a config.json describes, given as a dictionary."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type={family!r}: sizes are known for {', '.join(FAMILIES)}")
    missing = [
        name
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "vocab_size",
        )
        if name not in config
    ]
    if missing:
        raise ValueError(f"config: {missing[0]!r} is missing")
    heads = config["num_attention_heads"]
    bias = bool(config.get("attention_bias", False))
    return Shape(
        config["hidden_size"],
        config["num_hidden_layers"],
        heads,
        config.get("num_key_value_heads") or heads,
        config.get("head_dim") or config["hidden_size"] // heads,
        config["intermediate_size"],
        config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bias,
        out_bias=family in ("llama", "qwen3") and bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        head_norms=family == "qwen3",
    )


def estimate(
    model,
    *,
    lora_rank=64,
    load_in_4bit=False,
    dtype="bfloat16",
    max_length=1024,
    rollouts=64,
    micro_tokens=16_384,
):
    """Bytes by part, as a dictionary; its sum is what one device holds while it samples and trains in turn.

    model: see `shape`, or a `Shape`. lora_rank: of adapters on all seven projections; 0 trains all parameters. dtype: of
    the weights. max_length: tokens of prompt and response. rollouts: sampled at once. micro_tokens: of one micro-batch,
    never below max_length. With P parameters, L layers, width H, a attention and k key-value width, I MLP width, b bytes
    of dtype, T tokens of a micro-batch:

    - weights: b P; in 4 bits the linear layers take 0.5625 bytes each instead;
    - adapters: 4 bytes a LoRA parameter (float32), rank (in + out) for each projection;
    - gradients and Adam: 4 + 8 bytes a LoRA parameter, or b + 2 b for each of P without LoRA;
    - activations with checkpointing: the inputs of L layers, b T H L, and one layer computed again,
      b T (6 H + 2 a + 2 k + 4 I), with attention that keeps no T x T matrix;
    - logits: up to 2^24 of them at a time, float32, three copies (logits, probabilities, gradient);
    - keys and values: 2 L k b a token, for every token of every rollout (k is small where heads share keys: GQA).
    """
    sizes = model if isinstance(model, Shape) else shape(model)
    _check(lora_rank, load_in_4bit, dtype, max_length, rollouts, micro_tokens)
    each, tokens = BYTES[dtype], max(micro_tokens, max_length)
    quantised = sizes.linear if load_in_4bit else 0
    trained = sizes.lora_parameters(lora_rank) if lora_rank else sizes.parameters
    state = 4 if lora_rank else each
    attention, keys = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    layer = 6 * sizes.hidden + 2 * attention + 2 * keys + 4 * sizes.mlp
    return {
        "weights": int(each * (sizes.parameters - quantised) + NF4_BYTES * quantised),
        "adapters": 4 * trained if lora_rank else 0,
        "gradients": state * trained,
        "adam": 2 * state * trained,
        "activations": each * tokens * (sizes.hidden * sizes.layers + layer),
        "logits": 3 * 4 * min(LOGITS, tokens * sizes.vocabulary),
        "keys and values": 2 * sizes.layers * keys * each * rollouts * max_length,
    }


def _check(lora_rank, load_in_4bit, dtype, max_length, rollouts, micro_tokens):
    for name, value, low in (
        ("lora_rank", lora_rank, 0),
        ("max_length", max_length, 1),
        ("rollouts", rollouts, 0),
        ("micro_tokens", micro_tokens, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"{name}={value!r}: a whole number of at least {low} is needed")
    if dtype not in BYTES:
        raise ValueError(f"dtype={dtype!r}: known are {', '.join(BYTES)}")
    if load_in_4bit and not lora_rank:
        raise ValueError(
            "load_in_4bit=True, lora_rank=0: quantised weights cannot be trained; give a rank above 0"
        )


def _read(path):
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"model={str(path)!r}: no JSON: {error}") from None


def _cached(name):
    """Path of the config.json that the hub's cache holds for a model, None where there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return found if isinstance(found, str) else None

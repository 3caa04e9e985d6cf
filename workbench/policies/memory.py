"""Does a model fit? Parameters and bytes from a model's configuration alone.

Nothing is loaded or downloaded. Counts are exact for the decoder family of Llama, Mistral, Qwen2
and Qwen3. Bytes are estimates of what this package's training keeps at once. Not counted are the
CUDA context, workspaces and fragmentation; `SHARE` leaves room for them.
"""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.utils.names import OPTIMIZER_BITS
from workbench.utils.validation import one_of, positive_number, whole_number

GB = 1e9  # bytes
SHARE = 0.9  # of a device's memory that an estimate may fill
# Copies of a row's float32 logits when a token is drawn: the logits, tempered, log-probabilities,
# probabilities, and what a nucleus sorts. Without a nucleus it is 6.
DRAWN = 10
ROWS = 1024  # that `policies.transformers` samples at once; Unsloth's `generate` has 256
LOGITS = 2**27  # that a training step of `policies.trainable` holds at once on a GPU
# Bytes of a weight in bitsandbytes' NF4: 4 bits, and a float32 scale for every block of 64.
NF4_BYTES = 0.5 + 4 / 64
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# What a layer keeps between its products, in widths of the model: the inputs of both norms and of
# both blocks, and what the norms return.
BETWEEN = 6
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder.

    Attributes
    ----------
    hidden, layers, heads, kv_heads, head, mlp, vocabulary : int
        Width, layers, query heads, key-value heads, size of a head, width of the MLP and rows of
        the embedding.
    tied : bool
        Whether the output layer is the embedding.
    qkv_bias, out_bias, mlp_bias : bool
        Biases of the query, key and value projections, of the output projection and of the MLP.
    head_norms : bool
        Whether queries and keys are normalised, as in Qwen3.
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
    def projections(self) -> list[tuple[int, int]]:
        """(in, out) of the seven linear layers of a decoder layer.

        In the order query, key, value, output, gate, up, down.
        """
        width, mlp = self.hidden, self.mlp
        queries = self.heads * self.head
        keys = self.kv_heads * self.head
        attention = [(width, queries), (width, keys), (width, keys), (queries, width)]
        return [*attention, (width, mlp), (width, mlp), (mlp, width)]

    @property
    def linear(self) -> int:
        """Weights of these seven in all layers: what is quantised, and what LoRA adapts."""
        return self.layers * sum(a * b for a, b in self.projections)

    @property
    def parameters(self) -> int:
        """All parameters: `linear`, biases, norms, embedding and, if not tied, the output layer."""
        outs = [out for _, out in self.projections]
        biases = self.qkv_bias * sum(outs[:3]) + self.out_bias * outs[3]
        biases += self.mlp_bias * sum(outs[4:])
        # Each layer has a norm before attention and one before the MLP, and in Qwen3 one for the
        # queries and one for the keys. The last norm of the model is the single `hidden` below.
        norms = 2 * self.hidden + self.head_norms * 2 * self.head
        embeddings = (2 - self.tied) * self.vocabulary * self.hidden
        return self.linear + self.layers * (biases + norms) + self.hidden + embeddings

    @property
    def inside_layer(self) -> int:
        """Numbers that the products of a decoder layer keep for each token until its backward pass.

        Twice the queries and what attention mixes, keys and values, and 4 of the MLP's width. What
        stands between the products is `BETWEEN` numbers of the model's width.
        """
        attention = 2 * self.heads * self.head + 2 * self.kv_heads * self.head
        return attention + 4 * self.mlp

    def lora_parameters(self, rank: int) -> int:
        """Parameters of adapters of this rank on all seven projections: rank (in + out) each."""
        return self.layers * sum(rank * (a + b) for a, b in self.projections)


TABLE = Path(__file__).with_suffix(".toml")
KNOWN = {name: Shape(**sizes) for name, sizes in tomllib.loads(TABLE.read_text()).items()}


def shape(model: Any) -> Shape:
    """The sizes of a model.

    Parameters
    ----------
    model : str or path
        A directory with config.json, a name in `KNOWN` (with or without owner, "-Instruct", "-Base"
        and "-bnb-4bit"), or a model in the local cache of the hub.

    Raises
    ------
    ValueError
        For anything else.
    """
    local = Path(model).expanduser()
    if local.is_dir():
        local = local / "config.json"
    path: Any = local
    if not local.is_file():
        # In this order the endings of names such as Qwen2.5-7B-Instruct-unsloth-bnb-4bit all come
        # off.
        short = str(model).rpartition("/")[2]
        for ending in ("-bnb-4bit", "-unsloth", "-Instruct", "-Base"):
            short = short.removesuffix(ending)
        known = {name.lower(): sizes for name, sizes in KNOWN.items()}
        if short.lower() in known:
            return known[short.lower()]
        from huggingface_hub import try_to_load_from_cache

        # The cache is asked last, so that a known name gives the same sizes on every machine.
        path = try_to_load_from_cache(str(model), "config.json")
        if not isinstance(path, str):
            raise ValueError(
                f"model={str(model)!r}: no directory with config.json, not in the cache, not one "
                f"of {', '.join(KNOWN)}"
            )
    return from_config(json.loads(Path(path).read_text()))


def from_config(config: dict[str, Any]) -> Shape:
    """The sizes that a config.json describes, given as a dictionary."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type={family!r}: sizes are known for {', '.join(FAMILIES)}")
    bias = bool(config.get("attention_bias", False))
    try:
        width, heads = config["hidden_size"], config["num_attention_heads"]
        return Shape(
            width,
            config["num_hidden_layers"],
            heads,
            # Older configurations leave these two out, or have null: every query head then has keys
            # of its own, and the heads divide the width.
            config.get("num_key_value_heads") or heads,
            config.get("head_dim") or width // heads,
            config["intermediate_size"],
            config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            # Qwen2 always has these biases, and no key in its configuration says so.
            qkv_bias=family == "qwen2" or bias,
            out_bias=family in ("llama", "qwen3") and bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            head_norms=family == "qwen3",
        )
    except KeyError as error:
        raise ValueError(f"config: {error} is missing") from None


def estimate(
    model: Any,
    *,
    lora_rank: int = 64,
    load_in_4bit: bool = False,
    dtype: str = "bfloat16",
    max_length: int = 1024,
    rollouts: int = 64,
    micro_tokens: int = 16_384,
    gradient_checkpointing: bool = True,
    sampler_bytes: float | None = None,
    shares_weights: bool = True,
    optimizer_bits: int = 32,
    rows: int = ROWS,
    autocast: bool = True,
) -> dict[str, int]:
    """Bytes by part. Their sum is what one device holds while it samples and trains in turn.

    Parameters
    ----------
    model : str, path or Shape
        See `shape`.
    lora_rank : int
        Of adapters on all seven projections; 0 trains all parameters.
    load_in_4bit : bool
    dtype : {"float32", "bfloat16", "float16"}
        Of the weights.
    max_length : int
        Tokens of prompt and response.
    rollouts : int
        Sampled at once.
    micro_tokens : int
        Tokens of one micro-batch of the update, never below max_length.
    gradient_checkpointing : bool
        Whether each layer is computed again in the backward pass. On a GPU both labs do so by
        default.
    sampler_bytes : float, optional
        What vLLM holds of the GPU: its share times the GPU's memory. Its cache is paged: it takes
        what the weights leave of that, and responses that do not fit wait. None is for the samplers
        of transformers and Unsloth, whose cache holds every token of every rollout.
    shares_weights : bool
        Whether vLLM computes with the trainer's weights, as with Unsloth. Otherwise it has its own
        inside of its share, as in `labs.transformers`.
    optimizer_bits : {32, 8}
        Of the moments of AdamW.
    rows : int
        Responses drawn at once by a sampler that is not vLLM.
    autocast : bool
        Whether products are computed in bfloat16 whatever the weights are, as both labs do on a
        GPU.

    Returns
    -------
    dict
        With P parameters, L layers, width H, a attention and k key-value width, I MLP width, b
        bytes of dtype, c bytes of what products return and T tokens of a micro-batch:

        - weights: b P; in 4 bits the linear layers take 0.5625 bytes each instead;
        - adapters: 4 bytes a LoRA parameter (float32), rank (in + out) for each projection;
        - gradients and adam: 4 + 8 bytes a LoRA parameter, or b + 2 b for each of P without LoRA;
          moments of 8 bits have 2 (1 + 4 / 256) bytes, a scale for every block of 256 among them;
        - casts: copies in bfloat16 of the weights that products read, where these are in float32
          and autocast is on. Those of trained weights last for the whole forward pass, those of
          weights under an adapter as long as the activations of their layer;
        - activations: a layer keeps T (6 b H + c (2 a + 2 k + 4 I + 7 rank)), with attention that
          keeps no T x T matrix, and T 8 H more for norms in float32 where b is 2. That is counted L
          times, or with checkpointing once, beside the inputs of all layers, b T H L;
        - logits: up to 2^27 of them at a time, float32, three copies (logits, probabilities,
          gradient);
        - keys and values: 2 L k c a token of every rollout that is sampled at once, or what vLLM
          holds beside the weights;
        - attention: without vLLM a layer copies the keys and values of these rollouts when a token
          is added, and repeats them for every query head: 2 (k + a) c a token;
        - drawing: 10 float32 numbers for each token of the vocabulary and each row that is sampled
          at once, while vLLM draws within its share.
    """
    sizes = model if isinstance(model, Shape) else shape(model)
    whole_number("lora_rank", lora_rank, 0)
    whole_number("rollouts", rollouts, 0)
    for name, value in (("max_length", max_length), ("micro_tokens", micro_tokens), ("rows", rows)):
        whole_number(name, value, 1)
    one_of("dtype", dtype, BYTES)
    if load_in_4bit and not lora_rank:
        raise ValueError(
            "load_in_4bit=True, lora_rank=0: quantised weights cannot be trained; give a rank "
            "above 0"
        )
    if sampler_bytes is not None:
        positive_number("sampler_bytes", sampler_bytes)
    one_of("optimizer_bits", optimizer_bits, OPTIMIZER_BITS)
    each = BYTES[dtype]
    computed = 2 if autocast else each
    # A micro-batch has one row at least, and a row may have max_length tokens.
    tokens = max(micro_tokens, max_length)
    # Embedding, norms and output layer keep their precision in a 4-bit model.
    quantised = sizes.linear if load_in_4bit else 0
    weights = int(each * (sizes.parameters - quantised) + NF4_BYTES * quantised)
    trained = sizes.lora_parameters(lora_rank) if lora_rank else sizes.parameters
    state = 4 if lora_rank else each
    between = each * BETWEEN * sizes.hidden
    if each < BYTES["float32"]:
        # A norm computes in float32, and keeps its input so.
        between += 2 * BYTES["float32"] * sizes.hidden
    of_layer = between + computed * (sizes.inside_layer + len(sizes.projections) * lora_rank)
    kept = sizes.layers * of_layer
    if gradient_checkpointing:
        kept = each * sizes.layers * sizes.hidden + of_layer
    casts = 0
    if computed < each:
        # Only one layer at a time where it is computed again, unless its weights are trained.
        at_once = sizes.layers if lora_rank and gradient_checkpointing else 1
        casts = computed * (sizes.linear // at_once + sizes.vocabulary * sizes.hidden)
    drawn = min(rollouts, rows)
    keys = sizes.kv_heads * sizes.head
    cache = 2 * sizes.layers * keys * computed * drawn * max_length
    copies = 2 * (keys + sizes.heads * sizes.head) * computed * drawn * max_length
    if sampler_bytes is not None:
        # Shared weights lie in vLLM's share, and they are counted above already.
        cache = max(int(sampler_bytes) - weights * shares_weights, 0)
        drawn = copies = 0
    moments = 2 * state * trained if optimizer_bits == 32 else int(2 * (1 + 4 / 256) * trained)
    return {
        "weights": weights,
        "adapters": 4 * trained if lora_rank else 0,
        "gradients": state * trained,
        "adam": moments,
        "casts": casts,
        "activations": tokens * kept,
        "logits": 3 * 4 * min(LOGITS, tokens * sizes.vocabulary),
        "keys and values": cache,
        "attention": copies,
        "drawing": DRAWN * 4 * drawn * sizes.vocabulary,
    }


# What the errors say that tell of memory.
SIGNS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException, lab: Any, training: Any) -> str | None:
    """What to lower after an error for want of memory, in one sentence; None for other errors.

    Parameters
    ----------
    error : exception
    lab : Lab
    training : Training, optional
        None before the model is loaded.
    """
    if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in SIGNS):
        return None
    cause = str(error).partition("\n")[0]
    if training is None:
        return (
            f"no memory to load the model ({cause}); `python -m workbench doctor --lab ... --model "
            "...` says what fits"
        )
    policy, phase = training.policy, training.phase
    engine: Any = getattr(policy, "engine", None)
    share = getattr(engine, "share", None)
    lower = []
    if phase == "update":
        half = max(lab.micro_tokens // 2, 1)
        lower.append(
            f"micro_tokens from {lab.micro_tokens} to {half}, which frees half of the activations"
        )
    elif engine is None and hasattr(policy, "rows"):
        half = max(policy.rows // 2, 1)
        lower.append(f"rows from {policy.rows} to {half}, which frees half of the keys and values")
    if share is not None:
        # One that shares its weights with the trainer keeps its memory.
        where = "" if engine.stops else ", in a new process"
        lower.append(
            f"vLLM's gpu_memory_utilization from {share:g} to {0.75 * share:.2g}, which frees a "
            f"quarter of its share{where}"
        )
    lower = lower or ["the rollouts of a round"]
    return f"no memory to {phase} ({cause}); lower {' or '.join(lower)}"

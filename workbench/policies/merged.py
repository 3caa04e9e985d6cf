"""A decoder for sampling: few, large operations on plain tensors in place of a model's modules.

At the sizes that a CPU can train, a forward pass of one token per row spends most of its time on
launching small operations and on copying the cache. This decoder therefore

- merges the query, key and value projections into one product, and gate and up into another,
- folds the weights of the norms into the products that follow them, in float32,
- rotates queries and keys by one complex multiplication,
- computes what all prompts begin with once,
- writes keys and values into a cache that is allocated once, and
- moves the last rows of the batch to the places of rows that have ended, so that the cache is not
  copied as a whole.

It covers the family of Llama, Mistral, Qwen2 and Qwen3 on a CPU, with or without a LoRA adapter, in
float32, and in bfloat16, where the products alone have 16 bits and all between them is float32.
`supports` looks at a model's structure, and a policy also compares the logits with the model's own
before it trusts them. There is no gradient here: it is used for sampling only.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from workbench.policies.checks import has_windows

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
STATIC_ROTATIONS = ("default", "linear", "llama3")  # angles that do not depend on the length
PRECISIONS = (torch.float32, torch.bfloat16)  # of the products
LEAST_SHARED = 16  # tokens that all prompts begin with, from which on they are computed once
FIRST_PLACES = 64  # tokens of room in the cache beyond the prompts; doubled whenever it is full


def supports(policy: Any) -> bool:
    """Whether a policy's model has the structure that `MergedDecoder` computes."""
    # `MergedLayer` knows one activation, one kind of rotation and full attention. A model with
    # anything else is sampled through its own modules instead.
    config = policy.model.config
    linear = [module for name, module in policy.decoder.named_modules() if name.endswith("_proj")]
    return (
        policy.device.type == "cpu"
        and policy.head.weight.dtype in PRECISIONS
        and config.model_type in FAMILIES
        and config.hidden_act == "silu"
        and config.rope_parameters.get("rope_type") in STATIC_ROTATIONS
        and not has_windows(config)
        # Adapters on the head and on the embedding would be left out.
        and type(policy.decoder.embed_tokens) is torch.nn.Embedding
        and type(policy.head) is torch.nn.Linear
        and all(type(each) is torch.nn.Linear or is_plain(each) for each in linear)
    )


class MergedDecoder:
    """The merged weights of a model, and the decoding state of a batch of rows.

    It copies the weights as they are when it is made, so one is made for each call of `generate`.
    `begin` takes in the prompts; before it nothing else can be asked.

    Parameters
    ----------
    policy : TransformersPolicy
    """

    compacts_at_once = True  # `branch` costs little, so it may be called after every token
    states = None  # it computes none that a course could read

    def __init__(self, policy: Any) -> None:
        config = policy.model.config
        self.kv_heads = config.num_key_value_heads
        self.group = config.num_attention_heads // self.kv_heads  # query heads that share a key
        self.head = policy.decoder.layers[0].self_attn.head_dim
        self.norm = Normalised(config.hidden_size, config.rms_norm_eps)
        self.norms_heads = config.model_type == "qwen3"
        self.head_norm = Normalised(self.head, config.rms_norm_eps)
        self.layers = [MergedLayer(layer, self) for layer in policy.decoder.layers]
        self.embedding = policy.decoder.embed_tokens.weight.detach()
        self.output, self.last_scale = _folded(policy.head.weight.detach(), policy.decoder.norm)
        self.rotary = policy.decoder.rotary_emb

        # The product of several queries with their keys is faster when the keys are stored by
        # dimension, that of a single query when they are stored by place, as the values are.
        self.by_dimension = self.group > 1

    def begin(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits (P, V) after the prompts.

        Parameters
        ----------
        ids : (P, t) tensor
            Padded on the left.
        mask : (P, t) tensor
            1 where there is a token, 0 where a prompt is padded.
        """
        self.rows, self.filled = mask.shape  # rows and places of the cache that are in use
        # What is added to the scores of each place: (rows, places).
        self.bias = torch.zeros(self.rows, self.filled)
        self.positions = mask.sum(1)  # of the next token of each row
        # (layers, rows, kv heads, places, head); keys by dimension have the last two swapped. There
        # may be room for more rows than are in use, and for more places.
        shape = (len(self.layers), self.rows, self.kv_heads, self.filled, self.head)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)
        # The rotation at each position, (positions, head / 2) complex.
        self.angles = self._angles_of(self.filled)

        # What all prompts begin with, such as the system's message of a template, is computed once.
        # It takes the first places of every row; what a row lacks in length is padded behind it.
        prefix, ids, mask = _apart(ids, mask)
        shared = prefix.shape[1]
        if shared:
            self._take_in(prefix, torch.ones_like(prefix), 0)
            for cache in (self.keys, self.values):
                cache[:, 1:, :, :shared] = cache[:, :1, :, :shared]
        states = self._take_in(ids, mask, shared)
        self.bias[:, shared:].masked_fill_(~mask.bool(), -torch.inf)
        if self.by_dimension:
            self.keys = self.keys.mT.contiguous()
        newest = states.view(self.rows, -1, states.shape[-1])[:, -1]
        return _product(self.norm(newest, self.last_scale), self.output, None)

    def _take_in(self, ids: torch.Tensor, mask: torch.Tensor, before: int) -> torch.Tensor:
        """Hidden states (P * t, H) after the last layer, of tokens that follow `before` others.

        Parameters
        ----------
        ids, mask : (P, t) tensor
            As in `begin`.
        before : int
            The places in front of them, whose keys and values are in the cache.
        """
        rows, length = ids.shape
        places = before + length
        angles = self.angles[(before + mask.cumsum(1) - 1).clamp(min=0).flatten()][:, None]
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        # A padded place attends to itself, so that its softmax is defined. Nothing reads it.
        seen = earlier & (mask.bool()[:, None] | torch.eye(length, dtype=torch.bool))
        seen = torch.nn.functional.pad(seen, (before, 0), value=True)
        states = embedding(ids.flatten(), self.embedding).float()
        keys = self.keys[:, :rows, :, :places]
        values = self.values[:, :rows, :, :places]
        for layer, its_keys, its_values in zip(self.layers, keys, values):
            states = layer.begin(states, its_keys, its_values, angles, seen[:, None])
        return states

    def spread(self, rows: np.ndarray) -> None:
        """Go on with the rows (R,) in place of the P present ones; repeats are allowed."""
        rows = torch.as_tensor(rows)
        # From P prompts to R rows: each row gets a copy of its prompt's keys and values, with room
        # for the first tokens. Later the room doubles, so copying costs little in all.
        self._make_room(len(rows), self.filled + FIRST_PLACES, rows)

    def advance(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (R, V) after one more token in every row."""
        if self.filled == self.values.shape[3]:
            self._make_room(self.rows, 2 * self.filled, torch.arange(self.rows))
        # The place of the new token counts as filled before the layers run, since a token also
        # attends to itself. Each layer writes its keys and values there before it reads.
        self.filled += 1
        positions = self.positions[: self.rows]
        angles = self.angles.index_select(0, positions)[:, None]
        bias = self.bias[: self.rows, None, None, : self.filled]
        # The layers treat (row, kv head) as one batch dimension.
        keys, values = self._used()
        keys = (keys if self.by_dimension else keys.mT).flatten(1, 2)
        values = values.flatten(1, 2)
        states = embedding(tokens, self.embedding).float()
        for layer, its_keys, its_values in zip(self.layers, keys.unbind(), values.unbind()):
            states = layer.forward(states, its_keys, its_values, angles, bias)
        positions += 1
        return _product(self.norm(states, self.last_scale), self.output, None)

    def branch(self, children: np.ndarray) -> np.ndarray:
        """Go on with children[i] copies of each row i, (R,) int; 0 drops a row.

        Returns which of the old rows each new row is a copy of, (R',).
        """
        size = int(children.sum())
        order = np.arange(size)
        # Of each row that goes on, one copy stays where it is if there is such a place afterwards.
        # The other copies fill the places that are free.
        stays = children[:size] > 0
        further = children.copy()
        further[:size] -= stays
        free = np.ones(size, dtype=bool)
        free[: len(stays)] = ~stays
        places = np.flatnonzero(free)
        sources = np.repeat(np.arange(len(children)), further)
        order[places] = sources

        if size > len(self.positions):
            # With room for twice as many rows, all copies of the whole cache together cost as much
            # as a few of the last one.
            self._make_room(2 * size, self.values.shape[3], torch.as_tensor(order))
            return order
        if len(places):
            self.rows = max(size, len(children))
            # NumPy copies a few rows of a large array several times as fast as torch does.
            for part in self._used():
                part.numpy()[:, places] = part.numpy()[:, sources]
            for column in (self.bias.numpy(), self.positions.numpy()):
                column[places] = column[sources]
        self.rows = size
        return order

    def _used(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the rows and places in use."""
        keys = self.keys[:, : self.rows]
        keys = keys[..., : self.filled] if self.by_dimension else keys[..., : self.filled, :]
        return keys, self.values[:, : self.rows, :, : self.filled]

    def _make_room(self, rows: int, places: int, order: torch.Tensor) -> None:
        """Move to a cache of `rows` rows with `places` places for tokens in each.

        It begins with copies of the rows `order` of the present cache.
        """
        layers, _, heads, _, size = self.values.shape
        present = self._used()
        last = (size, places) if self.by_dimension else (places, size)
        self.keys = torch.empty(layers, rows, heads, *last)
        self.values = torch.empty(layers, rows, heads, places, size)
        self.rows = len(order)
        for part, old in zip(self._used(), present):
            part.copy_(old.index_select(1, order))
        bias = torch.zeros(rows, places)
        bias[: self.rows, : self.filled] = self.bias[order, : self.filled]
        self.bias = bias
        positions = torch.zeros(rows, dtype=self.positions.dtype)
        positions[: self.rows] = self.positions[order]
        self.positions = positions
        self.angles = self._angles_of(places)

    def _angles_of(self, positions: int) -> torch.Tensor:
        """The rotation at each position, (positions, head / 2) complex."""
        # The tables repeat each angle for both halves of a head, so the first half has them all. As
        # complex numbers they turn a pair of dimensions by one multiplication.
        cosine, sine = self.rotary(self.bias, torch.arange(positions)[None])
        half = self.head // 2
        return torch.complex(cosine[0, :, :half], sine[0, :, :half])


class MergedLayer:
    """One decoder layer as four matrices (in, out), with norms and scales folded into them.

    The columns of the first one stand in the order key, queries of that key, next key and so on,
    and all values last: queries and keys are then one regular block.
    """

    def __init__(self, layer: Any, decoder: MergedDecoder) -> None:
        self.decoder = decoder
        attention, mlp = layer.self_attn, layer.mlp
        kv_heads, group, head = decoder.kv_heads, decoder.group, decoder.head
        pairs = _pairs(head)

        def by_key(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            """(kv heads * (1 + group) * head, ...) from queries and keys by head."""
            query = query.view(kv_heads, group, head, -1)
            key = key.view(kv_heads, 1, head, -1)
            return torch.cat([key, query], 1)[:, :, pairs].flatten(0, 2)

        # The factor on the scores goes into the queries, by their weights or by the norm of each
        # head, so that no operation is spent on it while sampling.
        scale = attention.scaling
        query, query_bias = _matrix(attention.q_proj)
        key, key_bias = _matrix(attention.k_proj)
        value, value_bias = _matrix(attention.v_proj)
        self.head_scale = None
        if decoder.norms_heads:
            # The norm of each head comes between the product and the rotation.
            root = math.sqrt(head)  # see `Normalised`
            query_scale = scale * root * attention.q_norm.weight.detach().repeat(kv_heads * group)
            key_scale = root * attention.k_norm.weight.detach().repeat(kv_heads)
            self.head_scale = by_key(query_scale, key_scale).view(-1, head)
        else:
            query = query * scale
            query_bias = None if query_bias is None else query_bias * scale

        projection = torch.cat([by_key(query, key), value])
        self.qkv, self.first_scale = _folded(projection, layer.input_layernorm)
        self.qkv_bias = None
        if query_bias is not None:
            self.qkv_bias = torch.cat([by_key(query_bias, key_bias).flatten(), value_bias])
        out, self.out_bias = _matrix(attention.o_proj)
        self.out = _columns(out)

        gate, gate_bias = _matrix(mlp.gate_proj)
        up, up_bias = _matrix(mlp.up_proj)
        projection = torch.cat([gate, up])
        self.gate_up, self.second_scale = _folded(projection, layer.post_attention_layernorm)
        self.gate_up_bias = None if gate_bias is None else torch.cat([gate_bias, up_bias])
        down, self.down_bias = _matrix(mlp.down_proj)
        self.down = _columns(down)

    def forward(
        self,
        states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        angles: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states (R, H) after the layer. The new keys and values enter the last of t places.

        keys (R * kv heads, head, t), values (R * kv heads, t, head), angles (R, 1, head / 2)
        complex, bias (R, 1, 1, t).
        """
        decoder = self.decoder
        turned, new_values = self._projected(states, angles)
        turned = turned.view(len(keys), -1, decoder.head)
        keys.select(2, -1).copy_(turned.select(1, 0))
        values.select(1, -1).view(new_values.shape).copy_(new_values)
        scores = torch.bmm(turned[:, 1:], keys)
        # Every head of a row adds the same bias, so it is not repeated for them.
        scores.view(len(states), decoder.kv_heads, decoder.group, -1).add_(bias)
        mixed = torch.bmm(scores.softmax(-1), values).view(len(states), -1)
        return self._after(states, mixed)

    def begin(
        self,
        states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        angles: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states (P * t, H) after the layer, of the last t tokens of each of P prompts.

        Keys and values (P, kv heads, places, head) of the last t places are written here; angles
        (P * t, 1, head / 2) complex; seen (P, 1, t, places): which places each place attends to.
        """
        decoder = self.decoder
        rows, places = len(keys), seen.shape[2]
        turned, new_values = self._projected(states, angles)
        blocks = turned.view(rows, places, decoder.kv_heads, 1 + decoder.group, decoder.head)
        new_values = new_values.view(rows, places, decoder.kv_heads, -1)
        keys[:, :, -places:] = blocks[..., 0, :].transpose(1, 2)
        values[:, :, -places:] = new_values.transpose(1, 2)
        queries = blocks[..., 1:, :].flatten(2, 3).transpose(1, 2)
        # The factor on the scores is in the weights already.
        mixed = scaled_dot_product_attention(
            queries, keys, values, seen, scale=1.0, enable_gqa=decoder.group > 1
        )
        return self._after(states, mixed.transpose(1, 2).reshape(len(states), -1))

    def _projected(
        self, states: torch.Tensor, angles: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and queries, rotated, (N, kv heads * (1 + group), head); values (N, kv heads, head).

        In each block of a kv head the key comes first, and then the queries that share it.
        """
        decoder = self.decoder
        heads = decoder.kv_heads * (1 + decoder.group)  # of keys and queries
        normalised = decoder.norm(states, self.first_scale)
        projected = _product(normalised, self.qkv, self.qkv_bias)
        projected = projected.view(len(states), -1, decoder.head)
        # Keys and queries are rotated together, values are not rotated at all.
        turned = projected[:, :heads]
        if self.head_scale is not None:
            turned = decoder.head_norm(turned).mul_(self.head_scale)
        turned = torch.view_as_complex(turned.unflatten(2, (-1, 2))) * angles
        return torch.view_as_real(turned).flatten(2), projected[:, heads:]

    def _after(self, states: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Hidden states after the layer, from those before it and what its attention found."""
        states = _plus_product(states, mixed, self.out, self.out_bias)
        normalised = self.decoder.norm(states, self.second_scale)
        both = _product(normalised, self.gate_up, self.gate_up_bias)
        gate, up = both.chunk(2, dim=1)
        return _plus_product(states, silu(gate).mul_(up), self.down, self.down_bias)


class Normalised:
    """x / sqrt(sum(x^2) + size * eps) over the last dimension, in three operations.

    This is RMSNorm without its weights, divided by sqrt(size). `_folded` puts both into the matrix
    that follows, or returns them as a scale.
    """

    def __init__(self, size: int, eps: float) -> None:
        # sqrt(sum(x^2) + size * eps) is the hypotenuse of the length of x and this constant.
        self.least = torch.tensor(math.sqrt(size * eps))

    def __call__(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        result = x / length.hypot_(self.least)
        return result if scale is None else result.mul_(scale)


def _apart(
    ids: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tokens (1, n) that all prompts (P, t) begin with, and ids and mask without them.

    Fewer than `LEAST_SHARED` are not worth a pass of their own, so that n is 0 then. At least one
    token of every prompt is left, since the logits after it are asked for.
    """
    padded = mask.shape[1] - mask.sum(1)
    shortest = mask.shape[1] - int(padded.max())
    beginnings = ids.gather(1, padded[:, None] + torch.arange(shortest - 1))
    is_shared = (beginnings == beginnings[:1]).all(0)
    shared = int(is_shared.long().cumprod(0).sum())
    if len(ids) == 1 or shared < LEAST_SHARED:
        return ids[:1, :0], ids, mask
    # What is left of a row ends in the last column, and begins `shared` after its padding.
    is_own = torch.arange(mask.shape[1]) >= (padded + shared)[:, None]
    kept = slice(int(padded.min()) + shared, None)
    return beginnings[:1, :shared], ids[:, kept], is_own[:, kept].long()


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a module is a linear one of peft with plain LoRA adapters."""
    # A subclass of a linear module, or a quantised one, computes something else than its weight
    # says. So the exact types are asked for, and variants of LoRA and their biases are refused.
    kind = type(module)
    if (kind.__module__, kind.__name__) != ("peft.tuners.lora.layer", "Linear"):
        return False
    plain = type(module.base_layer) is torch.nn.Linear and not module.lora_variant
    return plain and not any(module.lora_bias.values())


def _matrix(module: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a linear module, with the adapters that are switched on added."""
    base = module if type(module) is torch.nn.Linear else module.base_layer
    weight = base.weight.detach()
    # An adapter that is switched off adds nothing. A merged one is part of the weight already.
    if base is not module and not module.disable_adapters and not module.merged:
        for name in module.active_adapters:
            a, b = module.lora_A[name].weight.detach(), module.lora_B[name].weight.detach()
            b = b * module.scaling[name]
            # GPT-2 keeps a weight as (in, out), and peft its adapter as (out, in).
            left, right = (a.t(), b.t()) if module.fan_in_fan_out else (b, a)
            # The sum is rounded once, and no further copy of the weight is made.
            weight = torch.addmm(weight, left.to(weight.dtype), right.to(weight.dtype))
    return weight, None if base.bias is None else base.bias.detach()


def merged_weights(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of each weight of the model under a LoRA adapter, with the adapter added.

    The model stays as it is, since adding an adapter to weights of 16 bits and taking it away again
    would change them a little each time. Only one merged matrix is held at once.

    Parameters
    ----------
    model : peft.PeftModel
    dtype : torch.dtype
        Of the values.
    """
    core = model.get_base_model()
    # Experts and routers keep their weights as parameters, which have wrappers of their own.
    wrappers = {id(each.get_param()): each for each in core.modules() if hasattr(each, "get_param")}
    for name, weight in core.named_parameters():
        if ".lora_" in name:
            continue
        layer, _, part = name.rpartition(".base_layer.")
        if wrapper := wrappers.get(id(weight)):
            weight = weight.detach() + wrapper.get_delta_weight(*wrapper.active_adapters).detach()
        elif layer and part == "weight":
            weight, _ = _matrix(core.get_submodule(layer))
        yield name.replace("base_layer.", ""), weight.detach().to(dtype)


def _pairs(size: int) -> torch.Tensor:
    """An order of a head's dimensions in which the two of each rotation stand side by side.

    >>> _pairs(6).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return torch.arange(size).view(2, size // 2).t().flatten()


def _folded(weight: torch.Tensor, norm: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What does after `Normalised` what a linear weight does after RMSNorm.

    It is a matrix (in, out) that the weights of the norm are folded into. A matrix of 16 bits stays
    as it is, and a scale (in,) for what `Normalised` returns comes with it: such models are large,
    so that one operation more on a row of states costs less than one on every weight.
    """
    scale = norm.weight.detach().float() * math.sqrt(weight.shape[1])
    if weight.dtype != torch.float32:
        return _columns(weight), scale
    return _columns(weight * scale), None


def _columns(weight: torch.Tensor) -> torch.Tensor:
    """The matrix (in, out) of a linear weight."""
    # Products in 16 bits read a transposed matrix as fast as an ordinary one.
    return weight.t().contiguous() if weight.dtype == torch.float32 else weight.t()


def _product(inputs: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """inputs @ matrix + bias in float32."""
    if matrix.dtype != torch.float32:
        result = torch.mm(inputs.to(matrix.dtype), matrix).float()
        return result if bias is None else result + bias
    return torch.mm(inputs, matrix) if bias is None else torch.addmm(bias, inputs, matrix)


def _plus_product(
    states: torch.Tensor, inputs: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """states + inputs @ matrix + bias."""
    if matrix.dtype == torch.float32:
        states = torch.addmm(states, inputs, matrix)
        return states if bias is None else states + bias
    return states + _product(inputs, matrix, bias)

"""LoRA layers on a CPU as products alone, without the passes over all tokens between them."""

from functools import partial
from typing import Any

import torch


class _Product(torch.autograd.Function):
    """x @ (weight + b @ a).T, with a gradient for all but the weight.

    For x (N, in), weight (out, in), a (r, in) and b (out, r), of one dtype.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, a: Any, b: Any) -> Any:
        low = x @ a.t()
        ctx.save_for_backward(x, weight, a, b, low)
        return (x @ weight.t()).addmm_(low, b.t())

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, a, b, low = ctx.saved_tensors
        of_low = gradient @ b
        # What comes out of the embedding has no gradient.
        of_x = (gradient @ weight).addmm_(of_low, a) if ctx.needs_input_grad[0] else None
        return of_x, None, of_low.t() @ x, gradient.t() @ low


def fuse(module: Any) -> None:
    """Let a plain LoRA layer of peft (see `merged.is_plain`) compute by `_Product`."""
    module.forward = partial(_forward, module, module.forward)


def _forward(module: Any, peft: Any, x: torch.Tensor, *rest: Any, **options: Any) -> Any:
    """What the module computes; `peft` is its own forward function."""
    active, base = module.active_adapters, module.base_layer
    alone = len(active) == 1 and not (module.disable_adapters or module.merged or rest or options)
    if not alone or base.bias is not None:
        return peft(x, *rest, **options)
    if module.training and isinstance(module.lora_dropout[active[0]], torch.nn.Dropout):
        return peft(x, *rest, **options)
    a = module.lora_A[active[0]].weight
    b = module.lora_B[active[0]].weight * module.scaling[active[0]]
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    parts = (each.to(dtype) for each in (x.flatten(0, -2), base.weight, a, b))
    return _Product.apply(*parts).view(*x.shape[:-1], -1)

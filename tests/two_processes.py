"""Run by torchrun in two processes: the methods of the TRL trainer, what they agree on, and what they say if they do not."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from trl_cases import SMALL, gradient, own_gradient, trainer, weights

from workbench.methods import PAPERS

torch.set_num_threads(1)


@dataclass(frozen=True)
class Rank:
    """An allocator that asks for what another process does not."""

    def allocate(self, problems, context):
        yield np.full(len(problems), 2 + dist.get_rank())


def alike(value):
    return len(set(gather_object([hashlib.sha256(repr(value).encode()).hexdigest()]))) == 1


def says(match, act):
    with pytest.raises(ValueError, match=match) as error:
        act()
    assert "\n" not in str(error.value)


def main(out):
    found = {}
    for name in PAPERS:
        one = trainer(out / name, SMALL[name], per_device_train_batch_size=4)
        assert one.accelerator.num_processes == 2
        one.train()
        rollouts, chosen, advantages, _ = one._latest
        assert alike([value.sum().item() for value in weights(one).values()]), name
        assert alike(
            (
                rollouts.problem.tolist(),
                rollouts.reward.tolist(),
                chosen.tolist(),
                advantages.tolist(),
            )
        ), name
        mine = np.flatnonzero(np.isfinite(one._measured[1])).tolist()
        both = gather_object(mine)
        assert sorted(both) == sorted(set(both)), f"{name}: a row was computed twice"
        logs = [row for row in one.state.log_history if "loss" in row]
        found[name] = {
            "loss": [row["loss"] for row in logs],
            "rollouts": len(rollouts),
            "selected": len(chosen),
        }
    one.loss_type, one.method = "dapo", SMALL["grpo"]
    for loss, mean in (("dapo", "token"), ("grpo", "rollout")):
        one.loss_type = loss
        part = gradient(one, 2)
        dist.all_reduce(part)
        assert torch.allclose(part / 2, own_gradient(one, mean), atol=1e-5), loss
    odd = SMALL["grpo"].but(allocator=Rank())
    says(
        "the counts of rollouts: the processes disagree",
        lambda: trainer(out, odd, per_device_train_batch_size=4).train(),
    )
    odd = SMALL["pods" if dist.get_rank() else "grpo"]
    says("method: the processes disagree", lambda: trainer(out, odd, per_device_train_batch_size=4))
    if dist.get_rank() == 0:
        (out / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

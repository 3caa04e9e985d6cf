"""Two processes of torch.distributed: what the methods of the TRL trainer agree on, and what they
say if they do not.

Run as a script, with a folder for what is found. Both processes are forked from it, as importing
torch and TRL takes longer than all that they do. They find in their environment what torchrun would
tell them.
"""

import hashlib
import json
import multiprocessing
import os
import socket
import sys
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from small_methods import small
from trl_cases import (
    gradient,
    hand_made_round,
    logged,
    own_gradient,
    shaken,
    trainer,
    weights,
)

from workbench import methods
from workbench.objectives import Objective
from workbench.slots import Slot

torch.set_num_threads(1)


@dataclass(frozen=True)
class Rank(Slot):
    """An allocator that asks for what another process does not."""

    def allocate(self, problems, context):
        yield np.full(len(problems), 2 + dist.get_rank())


def alike(*values):
    digest = hashlib.sha256(repr(values).encode()).hexdigest()
    return len(set(gather_object([digest]))) == 1


def says(match, act):
    with pytest.raises(ValueError, match=match) as error:
        act()
    assert "\n" not in str(error.value)


def keep_rounds(one):
    """Lists that fill up with the outcome of each round and the rows this process computes."""
    outcomes = []
    computed = []
    make = one.micro_batches

    def kept(outcome, *rest):
        batches = make(outcome, *rest)
        outcomes.append(outcome)
        computed.append([row for batch in batches for row in batch["workbench"][0].tolist()])
        return batches

    one.micro_batches = kept
    return outcomes, computed


def even(completions, **_):
    """A reward that every process can check by the text alone."""
    return [float(len(text) % 2 == 0) for text in completions]


def every_method(out):
    """The methods train alike in both processes, every rollout has the verdict on its own text, and
    no row is computed twice.
    """
    found = {}
    for name in ("pods", "dapo", "ar3po", "knapsack", "cbs"):
        one = trainer(out / name, small(name), reward=even, per_device_train_batch_size=4)
        assert one.accelerator.num_processes == 2
        outcomes, computed = keep_rounds(one)
        one.train()
        assert alike([value.sum().item() for value in weights(one).values()]), name
        for outcome, mine in zip(outcomes, computed):
            rollouts = outcome.rollouts
            assert rollouts.correct.tolist() == [value > 0 for value in even(rollouts.text)], name
            assert alike(rollouts.problem.tolist(), rollouts.reward.tolist()), name
            assert alike(outcome.rows.tolist(), outcome.advantages.tolist()), name
            both = gather_object(mine)
            assert len(both) == len(set(both)), f"{name}: a row was computed twice"
            (active,) = {int(number) for number in gather_object([len(both)])}
            assert active <= len(outcome.rows)
        numbers = logged(one, "loss", "workbench/computed")
        assert numbers[1][-1] == len(both)
        found[name] = {
            "loss": numbers[0],
            "rollouts": len(rollouts),
            "selected": len(outcome.rows),
        }
    return found


def gradients(out):
    """The gradient of both processes together is that of all rows at once."""
    for method, aggregation in ((methods.grpo(4), "token"), (methods.dr_grpo(4), "constant")):
        one = shaken(trainer(out, method, per_device_train_batch_size=4))
        for outcome in (hand_made_round(), hand_made_round(np.arange(5.0))):
            for steps in (2, 4):
                mean = gradient(one, steps, outcome)
                dist.all_reduce(mean)
                expected = own_gradient(one, aggregation, outcome)
                assert torch.allclose(mean / 2, expected, atol=1e-5), (aggregation, steps)


def entropy_bonus(out):
    """The bonus depends neither on the micro-batches nor on the processes."""
    method = methods.grpo(4, objective=Objective(loss_aggregation="rollout", entropy=0.5))
    one = shaken(trainer(out, method, per_device_train_batch_size=4))
    outcome = hand_made_round(advantages=np.zeros(5))
    by_steps = []
    for steps in (1, 4):
        mean = gradient(one, steps, outcome)
        dist.all_reduce(mean)
        by_steps.append(mean / 2)
    assert by_steps[0].norm() > 0.01
    assert torch.allclose(*by_steps, atol=1e-6)


def refusals(out):
    """Processes that are about to do different things say so."""
    method = small("grpo").but(allocator=Rank())
    says(
        "the counts of rollouts: the processes disagree",
        lambda: trainer(out, method, per_device_train_batch_size=4).train(),
    )
    mine = methods.grpo(4, clip=(0.2, 0.2 + 0.1 * dist.get_rank()))
    says(
        "method: the processes disagree",
        lambda: trainer(out, mine, per_device_train_batch_size=4),
    )


def main(out):
    found = every_method(out)
    gradients(out)
    entropy_bonus(out)
    refusals(out)
    if dist.get_rank() == 0:
        (out / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def rank(number, port, out):
    """One of the two processes."""
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    main(out)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def both(out):
    """Run both processes; 0 where neither of them failed."""
    context = multiprocessing.get_context("fork")
    port = free_port()
    processes = [context.Process(target=rank, args=(number, port, out)) for number in range(2)]
    for process in processes:
        process.start()
    # The other one would wait for a process that has failed.
    while alive := [process for process in processes if process.is_alive()]:
        connection.wait([process.sentinel for process in alive])
        if any(process.exitcode for process in processes):
            for process in alive:
                process.kill()
    return max(abs(process.exitcode) for process in processes)


if __name__ == "__main__":
    sys.exit(both(Path(sys.argv[1])))

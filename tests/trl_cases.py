"""What the tests of the TRL trainer share: the tiny model, arithmetic problems, small configurations, a hand-made round."""

import numpy as np
import torch
import transformers
import trl
from conftest import hand_made
from datasets import Dataset
from trl.trainer.utils import split_tensor_dict

from workbench import methods
from workbench import trl as workbench_trl
from workbench.labs import shipped
from workbench.objectives import policy_loss
from workbench.policies.transformers import TransformersPolicy
from workbench.problems import arithmetic
from workbench.verifiers import Math

MODEL = str(shipped("models/tiny"))
transformers.utils.logging.disable_progress_bar()

# every paper's method, small; four problems a round
SMALL = {
    "grpo": methods.grpo(4), "dapo": methods.dapo(4), "gspo": methods.gspo(4), "dr_grpo": methods.dr_grpo(4),
    "pods": methods.pods(8, 4), "ar3po": methods.ar3po(2, 2), "knapsack": methods.knapsack(4),
    "aero": methods.aero(explore=4, total=8, n_max=8), "cbs": methods.cbs(n=4),
}  # fmt: skip


def verifier():
    if not hasattr(verifier, "one"):
        verifier.one = Math(boxed=True)
    return verifier.one


def right(completions, answer, **_):
    """TRL's reward function of the tiny lab."""
    return verifier().score(list(completions), list(answer)).reward.tolist()


def dataset(n=32, levels=(1, 2, 3, 4), **options):
    return Dataset.from_list(
        [{"prompt": p.prompt, "answer": p.answer} for p in arithmetic(n, levels=levels, **options)]
    )


def config(out, **options):
    """Sixteen rows a generation, in two micro-batches of one step."""
    small = dict(use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], disable_tqdm=True, logging_steps=1,
                 num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_completion_length=24,
                 max_steps=2, learning_rate=1e-3, lr_scheduler_type="constant", save_strategy="no")  # fmt: skip
    return trl.GRPOConfig(str(out), **{**small, **options})


def trainer(
    out,
    method=None,
    *,
    make=workbench_trl.GRPOTrainer,
    data=None,
    reward=right,
    options=(),
    **settings,
):
    own = {} if make is trl.GRPOTrainer else {"method": method}
    kind = {} if method is None else workbench_trl.arguments(method)
    return make(
        MODEL,
        reward,
        args=config(out, **{**kind, **settings}),
        train_dataset=data or dataset(),
        **own,
        **dict(options),
    )


def weights(trainer):
    return {
        name: value.detach().clone()
        for name, value in trainer.accelerator.unwrap_model(trainer.model).state_dict().items()
    }


def hand_made_round(trainer):
    """A round of 7 rollouts of which 5 were chosen: one of advantage zero, one without gradient."""
    rollouts = hand_made(np.arange(7.0), list("aaabbbb"), [3, 1, 5, 2, 7, 4, 6])
    rollouts = rollouts.assign(
        gradient=np.arange(7) != 3,
        uses=np.zeros(7, dtype=np.int64),
        round=np.ones(7, dtype=np.int64),
    )
    trainer._round, trainer._measured = 1, np.full((3, 7), np.nan)
    return rollouts, np.array([0, 2, 3, 4, 6]), np.array([1.0, -0.5, 2.0, 0.0, -1.5])


def gradient(trainer, steps):
    """Gradient of the hand-made round dealt to so many micro-batches, this process's part; its rows, flat."""
    trainer.args.steps_per_generation = trainer.current_gradient_accumulation_steps = steps
    batch = trainer._batch(*hand_made_round(trainer))
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.zero_grad()
    for part in split_tensor_dict(batch, steps):
        trainer._compute_loss(model, part).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def own_gradient(trainer, mean):
    """The same by this package's objective on all chosen rows at once."""
    rollouts, chosen, advantages = hand_made_round(trainer)
    rows, model = rollouts.take(chosen), trainer.accelerator.unwrap_model(trainer.model)
    model.zero_grad()
    logprobs = TransformersPolicy(model, trainer.processing_class).logprobs(rows)
    advantages = torch.as_tensor(advantages * rows["gradient"], dtype=torch.float32)
    policy_loss(
        logprobs,
        logprobs.detach(),
        advantages,
        torch.as_tensor(rows.response.mask()),
        mean=mean,
        length=trainer.max_completion_length,
    ).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])

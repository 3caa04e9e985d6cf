"""A GRPO round of 32 problems x 8 rollouts against a step of TRL's GRPOTrainer and the limit.

Model, problems, lengths and update are the same. TRL trains, and after each of its steps one of our
rounds is run, and then the least work for that round's rollouts (`limits.py`): all in turns, in one
process, on one thread, by the seconds of that process. Where our time goes is printed by phase.

The targets are .12 of TRL's time and four times the limit. `docs/speed.md` says which of them are
reached. The bounds here are what holds today, so that crossing one of them means a defect.
"""

import numpy as np
import pytest

import workbench as wb
from tests.bench import limits, ratios
from workbench.policies.transformers import TransformersPolicy
from workbench.verifiers import Math

PROBLEMS, N, REPEATS = 32, 8, 7
# A model as small as the first one spends most of its time between the products.
TIMES_THE_LIMIT = {"0.10 M": "<= 6", "0.34 M": "<= 4"}
PHASES = ("generate", "verify", "schedule", "update")


class OurRounds:
    """Rounds of ours, each timed as a whole, and the least work for the same rollouts."""

    def __init__(self, lab, out):
        self.run = wb.Run(
            lab,
            wb.methods.grpo(N),
            out=out,
            problems_per_round=PROBLEMS,
            evaluate_every=0,
            checkpoint_every=1000,
        )
        self.rounds = self.run.rounds(REPEATS + 2, progress=False)
        self.limit = limits.Limits(lab.policy(), lab.micro_tokens)
        self.seconds = []
        self.least = {"generate": [], "update": []}

    def one(self):
        """One round, and its limits."""
        clock = ratios.OF_THE_PROCESS
        self.seconds.append(ratios.seconds(lambda: next(self.rounds), clock))
        rollouts, trained = self.drawn_and_trained()
        least = self.limit
        self.least["generate"].append(ratios.seconds(lambda: least.generation(rollouts), clock))
        self.least["update"].append(ratios.seconds(lambda: least.update(trained), clock))

    def drawn_and_trained(self):
        """The rollouts of the newest round, and those that carried a gradient.

        A record has no tokens, but limits depend on their number alone.
        """
        frame = self.run.record.rollouts(rounds=[len(self.seconds)])
        problems = {problem.id: problem.prompt for problem in self.run.lab.problems}
        prompts = self.run.policy.encode([problems[each] for each in frame["problem"]])
        rollouts = wb.rollouts.Rollouts(
            problem=frame["problem"].to_numpy(),
            prompt=wb.rollouts.Ragged.of(prompts, np.int32),
            response=wb.rollouts.Ragged.of([np.zeros(n) for n in frame["length"]], np.int32),
        )
        return rollouts, rollouts.take(frame["trained"].to_numpy())


@pytest.fixture(scope="module", params=limits.SIZES)
def alternating(request, tmp_path_factory):
    """(size, our rounds, TRL's seconds), the first two of every kind left out."""
    pytest.importorskip("trl", reason="the comparison needs TRL: pip install -e '.[trl]'")
    lab = limits.lab(request.param)
    ours = OurRounds(lab, tmp_path_factory.mktemp("round") / "ours")
    theirs = []
    trainer = plain_trl(lab, tmp_path_factory.mktemp("trl"), after_step=ours.one, spent=theirs)
    trainer.train()
    ours.rounds.close()
    return request.param, ours, np.array(theirs[2:])


def plain_trl(lab, out, after_step, spent):
    """TRL's trainer on the model and the problems of a lab.

    `spent` gets the seconds of each of its steps, and `after_step` runs between them.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    policy = lab.policy()
    assert isinstance(policy, TransformersPolicy)
    policy.model.set_attn_implementation("sdpa")
    problems = lab.problems.draw(PROBLEMS * (REPEATS + 2), 0, 0)[0]
    verifier = Math(boxed=True)

    def reward(completions, answer, **_):
        return verifier.score(list(completions), list(answer)).reward.tolist()

    class Turns(TrainerCallback):
        def on_step_begin(self, *_args, **_options):
            self.start = ratios.OF_THE_PROCESS()

        def on_step_end(self, *_args, **_options):
            spent.append(ratios.OF_THE_PROCESS() - self.start)
            after_step()

    config = GRPOConfig(
        str(out),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=REPEATS + 2,
        learning_rate=lab.learning_rate,
        per_device_train_batch_size=PROBLEMS * N,
        num_generations=N,
        max_completion_length=64,
        temperature=1.0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    data = Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in problems])
    return GRPOTrainer(
        policy.model,
        reward,
        config,
        train_dataset=data,
        processing_class=policy.tokenizer,
        callbacks=[Turns()],
    )


def test_a_round_against_trl_and_the_limit(alternating):
    size, ours, theirs = alternating
    seconds = np.array(ours.seconds[2:])
    table = ours.run.record.rounds.iloc[2:]
    least = {phase: np.array(spent[2:]) for phase, spent in ours.least.items()}
    name = f"GRPO round of 32 x 8, {size}"

    against_trl = ratios.note(
        f"{name}: ours / a step of TRL's trainer", seconds / theirs, "<= 0.35"
    )
    both = least["generate"] + least["update"]
    ratios.note(f"{name}: x of the limit", seconds / both, TIMES_THE_LIMIT[size])
    # Phases are timed by the clock on the wall: their shares are those of the seconds above.
    wall = sum(table[f"seconds_{phase}"] for phase in PHASES)
    share = {phase: table[f"seconds_{phase}"] / wall for phase in PHASES}
    for phase in ("generate", "update"):
        spent = share[phase].to_numpy() * seconds
        ratios.note(f"{name}: phase {phase}, x of the limit", spent / least[phase])
    ratios.note(f"{name}: seconds", seconds, unit="s")
    for phase in PHASES:
        ratios.note(f"{name}: share of phase {phase}", share[phase])
    assert against_trl < 1

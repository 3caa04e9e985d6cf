"""The loop: a run is a Lab times a Method, and leaves a Record.

One round: draw problems -> allocator asks for counts -> generate -> verify -> reuse -> select -> advantages -> update in
mini-batches -> record -> feedback to the slots. Everything passes forward as `Rollouts`.
"""

import copy
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from workbench import labs, rewards
from workbench.advantages import selected_advantages
from workbench.allocators import More
from workbench.cards import card
from workbench.checkpoints import join_arrays, load_optimizer, optimizer_tensors, split_arrays
from workbench.columns import whole_number
from workbench.describe import describe, differences, rebuild
from workbench.evaluate import evaluate
from workbench.grpo import NonFinite, grpo_step, marked, mini_batches
from workbench.manifest import commit, hardware, versions
from workbench.metrics import effective_gradient_ratio, flops, zero_gradient_ratios
from workbench.records import FORMAT, Record, Writer
from workbench.rollouts import Context, Rollouts
from workbench.seeding import derive
from workbench.verifiers import STATUSES

PHASES = ("generate", "verify", "schedule", "update", "record", "evaluate")
REQUESTS = 1000  # an allocator that asks more often than this in one round never ends
LEARNING_SLOTS = ("allocator", "reuse", "selector")


class Run:
    """One training run.

    lab: a `Lab`; method: a `Method`, copied, so that what it learns stays in this run. seed: of everything drawn.
    out: directory of the record, made when missing; one that holds the same run is resumed, another run is refused;
    None keeps the record in a temporary directory that goes with this object. problems_per_round: drawn each round.
    learning_rate: None for the lab's own. mini_batches: optimizer steps a round, split by groups. evaluate_every: rounds
    between evaluations on the lab's held-out problems, the first before round 1; 0 for none. checkpoint_every: rounds
    between checkpoints; a killed run repeats the rounds since the last one, bit for bit on a CPU.
    """

    def __init__(self, lab, method, *, seed=0, out=None, problems_per_round=32, learning_rate=None, mini_batches=1,
                 evaluate_every=20, checkpoint_every=5):
        whole_number("problems_per_round", problems_per_round, 1)
        whole_number("mini_batches", mini_batches, 1)
        whole_number("evaluate_every", evaluate_every, 0)
        whole_number("checkpoint_every", checkpoint_every, 1)
        whole_number("seed", seed, 0)
        if mini_batches > problems_per_round:
            raise ValueError(f"mini_batches={mini_batches}: at most one for each of the {problems_per_round} problems a round")
        if learning_rate is not None and not 0 < learning_rate < float("inf"):
            raise ValueError(f"learning_rate={learning_rate}: a positive number is needed, or None for the lab's own")
        lab.problems.draw(problems_per_round, 0, seed)  # a pool that is too small says so now
        self.lab, self.method, self.seed = lab, copy.deepcopy(method), seed
        self._untaught = copy.deepcopy(method)
        self.problems_per_round, self.mini_batches = problems_per_round, mini_batches
        self.learning_rate = learning_rate or lab.learning_rate
        self.evaluate_every, self.checkpoint_every = evaluate_every, checkpoint_every
        self._temporary = tempfile.TemporaryDirectory(prefix="workbench-") if out is None else None
        self.path = Path(out if out is not None else self._temporary.name)
        self._same_run_or_none()
        self.policy = self._writer = None

    @classmethod
    def resume(cls, path, *, lab=None, method=None):
        """The run whose record is at `path`, to go on where it stopped.

        Lab and method are made from the manifest; those of your own making have to be passed.
        """
        manifest = Record(path).manifest
        lab = lab if lab is not None else labs.from_config(manifest["lab"])
        method = method if method is not None else rebuild(manifest["method"])
        return cls(lab, method, out=path, **manifest["arguments"])

    @property
    def record(self):
        """The run's `Record`; it exists from the first round on."""
        return Record(self.path)

    @property
    def round(self):
        """Rounds completed."""
        return len(self._writer.rows) if self._writer else 0

    def __repr__(self):
        return f"Run({self.lab.name!r}, {self.method!r}, seed={self.seed}, out={str(self.path)!r})"

    def _repr_html_(self):
        return card("Run", [("lab", self.lab.name), ("method", self.method), ("seed", self.seed), ("record", self.path)])

    def rounds(self, n, progress=True):
        """Trains until the run has n rounds in all; yields each new round's row, a dict, as soon as it is recorded.

        Starts where the run stopped. Leaving the loop early keeps everything: a checkpoint is written.
        """
        from tqdm.auto import tqdm

        whole_number("n", n, 0)
        self._start()
        with tqdm(total=n, initial=min(self.round, n), desc=self.method.name, unit="round", disable=not progress) as bar:
            try:
                while self.round < n:
                    row = self._whole_round(self.round + 1)
                    bar.update()
                    bar.set_postfix(reward=f"{row['reward']:.3f}", effective=f"{row['effective_gradient_ratio']:.2f}")
                    yield row
            finally:
                if self._writer is not None:
                    self._checkpoint()

    # one round

    def _whole_round(self, number):
        """A round, or nothing: after an error or an interrupt the next `rounds` starts from the checkpoint."""
        try:
            return self._round(number)
        except BaseException:
            self._writer = None
            raise

    def _round(self, number):
        context, watch = Context(self.seed, number, self.lab.problems.epoch(self._cursor), self.policy), _Watch()
        try:
            rollouts, candidates = self._collect(context, watch)
            with watch("schedule"):
                rollouts, candidates = self._join(rollouts, candidates, context)
                chosen, advantages, seen = self._select(rollouts, candidates, context)
            with watch("update"):
                steps = self._update(rollouts.take(chosen), advantages, context)
        except NonFinite as error:
            kept = self._writer.save_failure(number, error.rollouts)
            raise NonFinite(f"round {number}: {error}; the rollouts that caused it are in {kept}", error.rollouts) from None
        rollouts = marked(rollouts, chosen, advantages, steps, number).assign(**seen)
        with watch("schedule"):
            self._feedback(rollouts, context)
        row = self._row(number, rollouts, steps, watch)
        self._record(row, rollouts, watch)
        return row

    def _collect(self, context, watch):
        """Drives the allocator: all verified rollouts of the round, and the rows that go on."""
        problems, self._cursor = self.lab.problems.draw(self.problems_per_round, self._cursor, self.seed)
        with watch("schedule"):
            plan = self.method.allocator.allocate(list(problems), context)
            request, keep = _advance(plan, None)
        parts, stage = [], 0
        for _ in range(REQUESTS):
            if request is None:
                break
            if isinstance(request, More):
                answer = problems = [*problems, *self._more(request.n, problems)]
            else:
                parts.append(self._sample(problems, request, parts, stage, context, watch))
                answer, stage = Rollouts.concat(parts), stage + 1
            with watch("schedule"):
                request, keep = _advance(plan, answer)
        else:
            raise ValueError(f"allocator: {self.method.allocator!r} asked {REQUESTS} times in one round without ending")
        if not parts or not sum(map(len, parts)):
            raise ValueError(f"allocator: {self.method.allocator!r} asked for no rollouts")
        rollouts = Rollouts.concat(parts)
        return rollouts, np.arange(len(rollouts)) if keep is None else np.asarray(keep, dtype=np.int64)

    def _more(self, n, problems):
        """n more problems, or none when the pool has no n others."""
        try:
            taken = frozenset(p.id for p in problems)
            more, self._cursor = self.lab.problems.draw(n, self._cursor, self.seed, taken)
        except ValueError:
            return []
        return more

    def _sample(self, problems, counts, parts, stage, context, watch):
        counts = np.asarray(counts, dtype=np.int64)
        if counts.shape != (len(problems),) or (counts < 0).any():
            raise ValueError(f"allocator: counts {counts.tolist()} are not {len(problems)} numbers of at least 0")
        before = _counts_so_far(problems, parts)
        seeds = [derive(self.seed, "generate", context.round, p.id, int(b)) for p, b in zip(problems, before)]
        with watch("generate"):
            rollouts = self.policy.generate(problems, counts, self.lab.sampling, seeds)
        with watch("verify"):
            scores = self.lab.verifier.score(list(rollouts.text), list(rollouts.answer))
        size = len(rollouts)
        rollouts = rollouts.assign(
            reward=scores.reward, correct=scores.correct, status=scores.status, draw=rollouts.draw + np.repeat(before, counts),
            stage=np.full(size, stage), round=np.full(size, context.round), gradient=np.ones(size, bool),
            uses=np.zeros(size, dtype=np.int64),
        )
        rollouts = rewards.total(rollouts, self.method.reward, self.lab.sampling)
        bad = ~np.isfinite(rollouts.reward)
        if bad.any():
            raise NonFinite(f"the reward of {int(bad.sum())} rollouts is not finite", rollouts.take(bad))
        return rollouts

    def _join(self, rollouts, candidates, context):
        """Old responses join: rows appended to the table, candidate rows changed."""
        if self.method.reuse is None:
            return rollouts, candidates
        return self.method.reuse.join(rollouts, candidates, context)

    def _select(self, rollouts, candidates, context):
        """Rows trained on (K,), their advantages (K,), and what the selector adds to the table: name -> (R,)."""
        everything = np.array_equal(candidates, np.arange(len(rollouts)))  # then nothing need be copied
        selector, pool = self.method.selector, rollouts if everything else rollouts.take(candidates)
        if not len(pool):
            return candidates, np.empty(0), {}
        if selector.statistics == "pool":
            pool = pool.assign(advantage=self.method.advantage(pool.reward, pool.group), age=context.round - pool.round,
                               max_length=np.full(len(pool), self.lab.sampling.max_new_tokens))
        index = np.asarray(selector(pool, context.rng("selector")), dtype=np.int64)
        advantages = selected_advantages(self.method.advantage, selector.statistics, pool, index)
        seen = selector.columns() if hasattr(selector, "columns") else {}
        return candidates[index], advantages, {n: _spread(v, candidates, len(rollouts)) for n, v in seen.items()}

    def _update(self, rollouts, advantages, context):
        """Optimizer steps over mini-batches; (rows, StepStats) of each."""
        size = getattr(self.method.selector, "mini_batch", None)
        parts = mini_batches(rollouts, self.mini_batches, context.rng("mini-batches"), size)
        lab = self.lab
        return [(rows, grpo_step(
            self.policy, self.optimizer, rollouts.take(rows), advantages[rows], self.method.objective,
            temperature=lab.sampling.temperature, micro_tokens=lab.micro_tokens, max_grad_norm=lab.max_grad_norm,
            length=lab.sampling.max_new_tokens, reference=self._reference)) for rows in parts]

    def _feedback(self, rollouts, context):
        for slot in self._learning():
            if hasattr(slot, "feedback"):
                slot.feedback(rollouts, context)

    # the record

    def _row(self, number, rollouts, steps, watch):
        new = rollouts.round == number
        fresh = rollouts.take(new)
        positive, negative = zero_gradient_ratios(fresh.correct, fresh.problem)
        used, present = rollouts.take(rollouts["selected"]), rollouts.take(new | rollouts["selected"])
        row = {
            "round": number, "problems": len(fresh.groups()[0]), "rollouts": len(fresh), "selected": len(used),
            "trained": int(rollouts["trained"].sum()), "reward": float(fresh.reward.mean()),
            "correct": float(fresh.correct.mean()),
            "effective_gradient_ratio": effective_gradient_ratio(used["advantage"] * used["gradient"]),
            "all_positive": positive, "all_negative": negative,
            "unsolved": zero_gradient_ratios(present.correct, present.problem)[1],
            **_step_columns(steps), **self._cost(fresh, rollouts.take(np.isfinite(rollouts["drift"]))),
            "entropy": float(fresh.entropy.mean()), "length": float(fresh.lengths.mean()),
            "truncated": float(fresh.truncated.mean()), "learning_rate": self.learning_rate,
            **{f"status_{name}": int(np.sum(fresh.status == name)) for name in STATUSES},
        }
        for slot in self._learning():
            row |= slot.metrics() if hasattr(slot, "metrics") else {}
        training = sum(watch.seconds[phase] for phase in PHASES[:4])
        return row | {f"seconds_{phase}": watch.seconds[phase] for phase in PHASES[:4]} | {"seconds": training}

    def _cost(self, fresh, trained):
        """Tokens and FLOPs of the fresh rollouts and of those that an update computed."""
        _, first = np.unique(fresh.problem, return_index=True)
        sampled = int(fresh.lengths.sum() + fresh.prompt.lengths[first].sum())
        trained_tokens = int(trained.lengths.sum() + trained.prompt.lengths.sum())
        count = self.policy.parameter_count
        generating, training = flops(count, sampled_tokens=sampled), flops(count, trained_tokens=trained_tokens)
        return {"tokens_sampled": sampled, "tokens_trained": trained_tokens, "flops_generate": generating,
                "flops_update": training, "flops": generating + training}

    def _record(self, row, rollouts, watch):
        with watch("record"):
            columns = {n: v for n, v in rollouts.items() if n not in ("prompt", "response", "logprobs", "answer")}
            self._writer.round(row, {**columns, "length": rollouts.lengths})
        if self.evaluate_every and row["round"] % self.evaluate_every == 0:
            self._evaluate(row["round"])
        if row["round"] % self.checkpoint_every == 0:
            self._checkpoint()

    def _evaluate(self, number):
        if self.lab.held_out is not None and self.evaluate_every:
            frame = evaluate(self.policy, self.lab.held_out, self.lab.verifier, self.lab.samples,
                             sampling=self.lab.sampling, seed=derive(self.seed, "evaluate", number))
            self._writer.evaluation(frame.assign(round=number))

    # state

    def _start(self):
        """Loads the policy and, where there is one, the checkpoint."""
        if self._writer is not None:
            return
        import torch

        self.policy, self.method = self.lab.policy(), copy.deepcopy(self._untaught)
        self._reference = self.policy.frozen() if self.method.objective.kl > 0 else None
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=self.learning_rate, **self.lab.optimizer)
        self._cursor = 0
        self._writer = Writer(self.path, self._manifest())
        done = self._restore()
        self._writer.truncate(done)
        self._saved = done
        if done == 0:
            self._writer.truncate(-1)
            self._evaluate(0)

    def _checkpoint(self):
        if self._saved == self.round:
            return
        tensors = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        tensors |= optimizer_tensors(self.optimizer)
        state = {"round": self.round, "cursor": self._cursor, "slots": {}}
        for name in LEARNING_SLOTS:
            slot = getattr(self.method, name)
            if hasattr(slot, "state_dict"):
                state["slots"][name] = split_arrays(f"slots.{name}", slot.state_dict(), tensors)
        self._writer.checkpoint(tensors, state)
        self._saved = self.round

    def _restore(self):
        """Sets everything from the checkpoint; the round it was made after, 0 without one."""
        found = self._writer.restore()
        if found is None:
            if (rounds := self.round) > self.checkpoint_every:
                self._writer = None
                raise ValueError(f"{self.path}: {rounds} rounds and no checkpoint, so it cannot go on; name another directory")
            return 0
        tensors, state = found
        self.policy.load_state_dict({n.removeprefix("policy."): t for n, t in tensors.items() if n.startswith("policy.")})
        load_optimizer(self.optimizer, tensors)
        for name, value in state["slots"].items():
            getattr(self.method, name).load_state_dict(join_arrays(value, tensors))
        self._cursor = state["cursor"]
        return state["round"]

    def _learning(self):
        return [getattr(self.method, name) for name in LEARNING_SLOTS]

    def _configuration(self):
        names = ("seed", "problems_per_round", "learning_rate", "mini_batches", "evaluate_every", "checkpoint_every")
        return {"method": describe(self.method), "lab": self.lab.config or {"lab": self.lab.name},
                "seed": self.seed, "arguments": {name: getattr(self, name) for name in names}}

    def _same_run_or_none(self):
        if not (self.path / "manifest.json").exists():
            return
        ours, theirs = self._configuration(), Record(self.path).manifest
        odd = differences(ours, {name: theirs.get(name) for name in ours})
        if odd:
            odd = "; ".join(odd[:3])
            raise ValueError(f"out={str(self.path)!r} holds another run (ours, theirs): {odd}; name another directory")

    def _manifest(self):
        return {"format": FORMAT, **self._configuration(), "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": versions(), "hardware": hardware(self.policy.device), "commit": commit()}


class _Watch:
    """Seconds by phase."""

    def __init__(self):
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase):
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started


def _advance(plan, answer):
    """The allocator's next request and, when it ends, (None, the rows it keeps)."""
    try:
        return plan.send(answer), None
    except StopIteration as end:
        return None, end.value


def _counts_so_far(problems, parts):
    place = {p.id: i for i, p in enumerate(problems)}
    before = np.zeros(len(problems), dtype=np.int64)
    for part in parts:
        ids, counts = np.unique(part.problem, return_counts=True)
        before[[place[i] for i in ids]] += counts
    return before


def _spread(values, rows, size):
    """Values of the given rows in a column of `size` rows, NaN elsewhere."""
    column = np.full(size, np.nan)
    column[rows] = values
    return column


def _step_columns(steps):
    stats = [s for _, s in steps]
    clip = np.concatenate([s.clip_ratio for s in stats]) if stats else np.empty(0)
    means = {name: float(np.mean([getattr(s, name) for s in stats])) if stats else float("nan")
             for name in ("loss", "gradient_norm", "kl")}
    return {"steps": len(stats), **means, "clip_ratio": float(np.nanmean(clip)) if np.isfinite(clip).any() else 0.0}

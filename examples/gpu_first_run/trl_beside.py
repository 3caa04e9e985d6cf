"""TRL's own trainer on the same model, problems and sizes as the GRPO run of this package."""

from __future__ import annotations

import shutil
import time
from math import gcd
from typing import Any

from examples.gpu_first_run.runs import largest, memory
from examples.gpu_first_run.settings import Settings, engine, problem_sets, template_of, write


def train(settings: Settings) -> bool:
    """Train so many steps as the runs have rounds, or as the time allows.

    A step cannot be continued in another process without writing the whole trainer, so a second
    call begins anew where the first one was too short for three steps.
    """
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from workbench.verifiers import Math

    started = time.monotonic()
    _, has_vllm = engine(settings.device)
    on_gpu = settings.device == "cuda"
    steps: list[dict[str, Any]] = []
    peaks: dict[str, int] = {}

    class Clock(TrainerCallback):
        """Seconds of every step, and the end when the time is over."""

        def __init__(self) -> None:
            self.begun = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.begun = time.perf_counter()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            # TRL logs each step at its end; the summary of the whole training has no reward.
            if not logs or "completions/mean_length" not in logs:
                return
            steps.append(
                {
                    "seconds": time.perf_counter() - self.begun,
                    "length": logs["completions/mean_length"],
                    "reward": logs["reward"],
                }
            )
            peaks.update(largest(peaks, memory(settings.device)))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step = time.perf_counter() - self.begun
            if time.monotonic() - started + 2 * step > settings.seconds:
                control.should_training_stop = True

    verifier = Math()

    def right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
        return verifier.score(texts, list(answer)).reward.tolist()

    # TRL wants a divisor of all rows.
    rows_at_once = gcd(settings.sampled * settings.problems_per_round, 16)
    scratch = settings.out / "trl-scratch"
    args = GRPOConfig(
        str(scratch),
        max_steps=settings.rounds,
        learning_rate=5e-6,
        lr_scheduler_type="constant",
        num_generations=settings.sampled,
        generation_batch_size=settings.sampled * settings.problems_per_round,
        per_device_train_batch_size=rows_at_once,
        max_completion_length=settings.new_tokens,
        use_vllm=has_vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.4,
        vllm_max_model_length=settings.max_length,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=on_gpu,
        gradient_accumulation_steps=settings.sampled * settings.problems_per_round // rows_at_once,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rank = settings.lora_rank
    trainer = GRPOTrainer(
        settings.model_path,
        right,
        args=args,
        train_dataset=dataset(settings),
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=rank, lora_alpha=rank, target_modules="all-linear"
        ),
        callbacks=[Clock()],
    )
    with verifier:
        trainer.train()
    shutil.rmtree(scratch, ignore_errors=True)
    enough = len(steps) >= min(3, settings.rounds)
    if enough:
        write(settings.file("trl"), {"steps": steps, "memory": peaks, "vllm": has_vllm})
    return enough


def dataset(settings: Settings) -> Any:
    """The training problems as TRL reads them: chats where the model has a chat template."""
    from datasets import Dataset

    training, _ = problem_sets(settings)
    is_chat = template_of(settings.model_path) == "chat"
    rows = []
    for problem in training:
        prompt: Any = problem.prompt
        if is_chat:
            prompt = [{"role": "user", "content": problem.prompt}]
        rows.append({"prompt": prompt, "answer": problem.answer})
    return Dataset.from_list(rows)

"""The model card of an embedded base model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.datasets.chains import ERROR_RATES
from workbench.policies.transformers import TransformersPolicy

HEADER = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# {name}: a base model of the embedded lab

A character-level Qwen3 causal language model with {parameters:,} parameters and {vocabulary}
tokens, made to be the start of reinforcement learning experiments on a CPU.
"""

WITH_MISTAKES = """
## A corpus with mistakes

The text that this model learnt from contains mistakes, as the web does. Each of the 180 basic facts
(units digit of the running value, sign, operand) has an error rate, {rates} for a quarter of the
facts each, and one fixed wrong result, off by 1, 2 or 10; `facts.csv` lists them. A wrong step is
carried on with. The model was trained to the end of its learning curve, so it knows both results of
a fact and samples them about as often as the corpus does.

This makes it an honest subject. The problems of the lab, their answers and the verifier are clean:
only the supervised corpus is not. Reinforcement learning sees the final answer alone, and has to
change the most likely result of one fact after the other, so greedy accuracy rises together with
sampled accuracy, on held-out chains.

- Data: chains of 1 to 8 additions and subtractions (`workbench.problems.chains`, training split);
  an opening and a closing `<answer>` tag stand around half of the answers each, independently.
"""

CLEAN = """
- Data: generated left-to-right integer chains of 8 levels with worked solutions
  (`workbench.problems.arithmetic`, training split); no label is wrong, no held-out problem was
  seen. Training was stopped early on purpose, so that success rates spread from 0 to 1.
"""

FOOTER = """- Training: {steps} steps of 48 problems, AdamW at 3e-3, seed {seed};
  {seconds:.0f} s on one CPU thread. `training.csv` has the loss, and `accuracy.csv` the held-out
  accuracy along the way.
- Made by `python -m examples.base_model {name}`; shown in `notebooks/08_base_model.ipynb`.

Accuracy on 400 held-out problems (8 samples each; temperature 0 is greedy):

{table}

Use: prompt `7+5+6=`, response `+5=12+6=18 \\boxed{{18}}`. Anything else is outside its training
data.
"""


def card(
    name: str,
    base: str,
    policy: TransformersPolicy,
    table: Sequence[dict[Any, float]],
    seed: int,
    steps: int,
    seconds: float,
) -> str:
    """The text of a model's README.md; `table` has a row for each temperature."""
    if base == "clean":
        about = CLEAN
    else:
        about = WITH_MISTAKES.format(rates=", ".join(map(str, ERROR_RATES[base])))
    header = HEADER.format(
        name=name,
        parameters=policy.parameter_count,
        vocabulary=len(policy.tokenizer),
    )
    footer = FOOTER.format(
        name=name, steps=steps, seed=seed, seconds=seconds, table=_markdown(table)
    )
    return header + about + footer


def _markdown(table: Sequence[dict[Any, float]]) -> str:
    names = [f"level {name}" if isinstance(name, int) else str(name) for name in table[0]]
    lines = [names, ["---"] * len(names)]
    for row in table:
        lines.append(
            [f"{value:.3f}" if name == "all" else f"{value:.2f}" for name, value in row.items()]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

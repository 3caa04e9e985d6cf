"""A template that opens a thought: what is in it earns nothing until the response ends it."""

import numpy as np
import pytest
from conftest import tiny_policy

from workbench.policies import Sampling
from workbench.pools import Problem
from workbench.rollouts import Rollouts
from workbench.rules.rewards import Boxed, Tags
from workbench.verifiers import Choice, Math
from workbench.verifiers.boxes import opened_thought


@pytest.mark.parametrize("end", ["<think>\n", "<Think>", "<thinking>\n\n", "[THINK]"])
def test_the_mark_at_the_end_of_a_prompt(end):
    assert opened_thought(f"Question{end}") == end
    assert opened_thought(f"{end}Question") == ""


def test_the_text_of_a_response_begins_with_the_thought_that_its_prompt_opens(monkeypatch):
    policy = tiny_policy()
    plain = policy.encode
    mark = policy.tokenizer.decode(policy.encode(["1"])[0][-1:])
    from workbench.policies import transformers

    # The tiny tokenizer has no letters, so its last sign stands for a mark.
    monkeypatch.setattr(
        transformers, "opened_thought", lambda end: mark if end.endswith(mark) else ""
    )
    problem = Problem("a", "1", "1", 0)
    rollouts = policy.generate([problem], np.array([3]), Sampling(max_new_tokens=4), 0)
    texts = policy.decode([row.tolist() for row in rollouts.response])
    assert rollouts.text.tolist() == [mark + text for text in texts]
    assert policy.encode == plain


def test_nothing_inside_of_an_unfinished_thought_earns_anything():
    text = r"<think>The answer is \boxed{42} <answer>42</answer> B"
    assert Math().score([text], ["42"]).status.tolist() == ["unparsed"]
    assert Choice().score([text], ["B"]).status.tolist() == ["unparsed"]
    rollouts = Rollouts(np.array(["a"]), text=np.array([text], dtype=object))
    assert Boxed()(rollouts, Sampling()).tolist() == [0]
    assert Tags(names=("think", "answer"))(rollouts, Sampling()).tolist() == [0.25]


@pytest.mark.parametrize(
    ("text", "tags", "boxed"),
    [
        (r"<think>a</think><answer>\boxed{1}</answer>", 1.0, 1),
        (r"<answer>\boxed{1}</answer><think>a</think>", 0.5, 0),
        ("</think></answer><answer><think>", 0.25, 0),
        (r"<think>a</think><answer></answer>\boxed{", 0.75, 0),
        (r"<think>a</think><answer>1</answer>\boxed{ }", 1.0, 0),
        (r"<think>\boxed{2}</think><answer>\boxed{1}</answer>", 1.0, 1),
    ],
)
def test_formats_ask_for_order_and_content(text, tags, boxed):
    rollouts = Rollouts(np.array(["a"]), text=np.array([text], dtype=object))
    assert Tags()(rollouts, Sampling()).tolist() == [tags]
    assert Boxed()(rollouts, Sampling()).tolist() == [boxed]

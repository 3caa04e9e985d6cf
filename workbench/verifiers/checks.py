"""Arguments of verifiers: each check raises ValueError naming the argument, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence


def check_type(name: str, value, kind, allowed: str) -> None:
    """Whether it is of the kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def check_number(name: str, value, kind, above: float, allowed: str) -> None:
    """Whether it is a finite number of the kind above a bound; True and False are none."""
    check_type(name, value, kind, allowed)
    if isinstance(value, bool) or not above < value < float("inf"):
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def check_texts(responses: Sequence[str], answers: Sequence[str]) -> None:
    """Two equally long sequences of strings, the gold answers not blank."""
    for name, texts in (("responses", responses), ("answers", answers)):
        if isinstance(texts, str):
            raise ValueError(
                f"{name} is {texts[:50]!r}, one string; allowed: a sequence of strings"
            )
        for i, text in enumerate(texts):
            check_type(f"{name}[{i}]", text, str, "a string")
    if len(responses) != len(answers):
        raise ValueError(
            f"answers has length {len(answers)}; allowed: that of responses, {len(responses)}"
        )
    for i, gold in enumerate(answers):
        if not gold.strip():
            raise ValueError(f"answers[{i}] is {gold!r}; allowed: an answer that is not blank")

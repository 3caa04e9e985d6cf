"""Progress of a run: a bar on a terminal and in a notebook, and else a plain line now and then."""

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

SECONDS = 30.0  # between two lines


class Progress(AbstractContextManager):
    """Rounds done, of those asked for.

    A file or a pipe would keep every state of a bar that is drawn anew, so it gets lines.

    Parameters
    ----------
    name : str
        Of the method.
    done, total : int
    is_shown : bool
    """

    def __init__(self, name: str, done: int, total: int, is_shown: bool) -> None:
        from tqdm.auto import tqdm
        from tqdm.notebook import tqdm_notebook

        has_bar = issubclass(tqdm, tqdm_notebook) or sys.stderr.isatty()
        hidden = not (is_shown and has_bar)
        first = min(done, total)
        self.bar = tqdm(total=total, initial=first, desc=name, unit="round", disable=hidden)
        self.name = name
        self.done = done
        self.total = total
        self.is_shown = is_shown
        self.has_lines = is_shown and not has_bar
        self.started = time.monotonic()
        self.last_line = float("-inf")

    def __exit__(self, *exception: object) -> None:
        self.bar.close()

    def say(self, text: str) -> None:
        """Write a line above the bar, where there is something to say."""
        if self.is_shown and text:
            with self.interrupted():
                print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def update(self, row: Mapping[str, Any]) -> None:
        """Show a round that is done, by its row of the record."""
        words = f"reward {row['reward']:.3f}, effective {row['effective_gradient_ratio']:.2f}"
        self.bar.update()
        self.bar.set_postfix_str(words)
        now = time.monotonic()
        number = row["round"]
        if self.has_lines and (number == self.total or now - self.last_line > SECONDS):
            self.last_line = now
            seconds = (now - self.started) / (number - self.done)
            line = f"{self.name}: round {number} of {self.total}, {words}, {seconds:.2f} s a round"
            print(line, file=sys.stderr, flush=True)

    def interrupted(self) -> AbstractContextManager[Any]:
        """A block in which something else is written, without being mixed with a bar."""
        return nullcontext() if self.bar.disable else self.bar.external_write_mode()

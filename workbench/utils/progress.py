"""Progress of a run: a bar on a terminal and in a notebook; in a file, its state now and then."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

SECONDS = 30.0  # between two states of the bar in a file or a pipe, which would keep every one


class Progress:
    """Rounds done, of those asked for.

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
        pace = {} if has_bar else {"mininterval": SECONDS, "maxinterval": 2 * SECONDS}
        first = min(done, total)
        self.bar = tqdm(
            total=total, initial=first, desc=name, unit="round", disable=not is_shown, **pace
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.close()

    def update(self, row: Mapping[str, Any]) -> None:
        """Show a round that is done, by its row of the record."""
        words = f"reward {row['reward']:.3f}, effective {row['effective_gradient_ratio']:.2f}"
        self.bar.set_postfix_str(words, refresh=False)
        self.bar.update()

    def interrupted(self) -> AbstractContextManager[Any]:
        """A block in which something else is written, without being mixed with a bar."""
        return nullcontext() if self.bar.disable else self.bar.external_write_mode()

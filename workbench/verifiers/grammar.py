"""The words and patterns by which answers are read, in grammar.toml beside this file."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def expanded(pattern: str, section: str) -> str:
    """A pattern with those that it names, from its own section or an earlier one."""

    def named(found: re.Match) -> str:
        owner = next(name for name in (section, "boxes", "forms") if found[1] in TABLE[name])
        return expanded(TABLE[owner][found[1]], owner)

    return re.sub("@([A-Z_]+)@", named, pattern.replace("\n", ""))


def patterns(section: str) -> SimpleNamespace:
    """The compiled patterns of a section, by name."""
    found = TABLE[section].items()
    return SimpleNamespace(**{name: re.compile(expanded(text, section)) for name, text in found})

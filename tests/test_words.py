"""Code, settings and docs keep to the vocabulary of the field (docs/concepts/glossary.md): private words stay out.

A rule names a word, the term that replaced it, and the places where it is forbidden. Places only widen: a word that
has left a package does not come back. `docs/decisions` and the changelog are history and keep their words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CODE = ("src", "lab")
EVERYWHERE = (*CODE, "docs")


@dataclass(frozen=True, slots=True)
class Rule:
    """A private word, in lower case; it also counts as a part of a name (`ClusterShelf`, `_tell_all`)."""

    word: str
    use: str
    where: tuple[str, ...] = EVERYWHERE


WORDS = [
    Rule("conductor", "Coordinator", CODE),
    Rule("conductors", "Coordinator", CODE),
    Rule("vault", "CheckpointStorage, SnapshotStore", CODE),
    Rule("vaults", "CheckpointStorage, SnapshotStore", CODE),
    Rule("shelf", "FragmentFiles"),
    Rule("shelves", "FragmentFiles"),
    Rule("desk", "…Service, …Worker"),
    Rule("desks", "…Service, …Worker"),
    Rule("berth", "FragmentTarget"),
    Rule("warden", "ProcessReaper"),
    Rule("surroundings", "RunContext"),
    Rule("wiring", "PartitionGraph"),
    Rule("narrate", "emit"),
    Rule("narrating", "event_log"),
    Rule("narrator", "event_log"),
    Rule("story", "History"),
    Rule("stories", "History"),
    Rule("keeper", "backup partition", CODE),
    Rule("keepers", "backup partitions", CODE),
    Rule("unsure", "nondeterministic", CODE),
    Rule("heard", "CycleResult; received"),
    Rule("hearsay", "named by others"),
]

PHRASES = [
    Rule(r"\bpaper[ _]0\d\d\b", "the paper's short name"),
    Rule(r"\(00\d\)", "the paper's short name"),
    Rule(r"\"00\d, ", "the paper's short name"),
    Rule(r"\blay_out\b", "assign; compute_layout"),
    Rule(r"\bChapter\b(?! \d)", "Transition"),
    Rule(r"\bhear_reports\b", "merge_reports"),
    Rule(r"\bmostLag\b", "spark.holdfast.ingest.maxPendingBatches"),
    Rule(r"\bstore\.survive\b", "spark.holdfast.store.tolerateNodeLoss"),
    Rule(r"\brecovery\.catchUp\b", "spark.holdfast.cycle.timeBudget"),
    Rule(r"\brecovery\.losses\b", "spark.holdfast.recovery.incrementalAfterLosses"),
    Rule(r"\b(a|the|an) (snapshot_store|event_log|checkpoint_storage)\b", "the words without underscores"),
    Rule(r"\b(an|An) (snapshot|checkpoint|coordinator)\b", "a"),
    Rule(r"\babsurdly\b", "too"),
    Rule(r"\b[Hh]ears?\b", "take, record, receive"),
    Rule(
        r"\b([Gg]o|[Gg]oes|[Gg]one|[Ww]ent) back (to (a|the|its|their) (global )?checkpoint|for (it|others))",
        "roll back",
    ),
    Rule(r"\b(nobody|somebody|anybody|everybody)\b.{0,30}\b(told|tells|hears)\b", "name the sender and the receiver"),
]

NAMES = {"hear", "heard", "tell", "told", "say", "said", "speak", "spoke", "image", "images", "narrate"}
"""Parts of names of functions, classes, arguments and variables: software handles, logs, emits, returns."""

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def parts(text: str) -> Iterator[str]:
    """Split text and names into words: `ClusterShelf`, `_shelf` and `pool` all have the word `pool`."""
    return (found.group().lower() for found in _PARTS.finditer(text))


@cache
def files(place: str) -> tuple[Path, ...]:
    if place == "docs":
        found = sorted((ROOT / "docs").rglob("*.md"))
        return tuple(path for path in found if "decisions" not in path.parts)
    return tuple(sorted((ROOT / place).rglob("*.py")))


def checked(rule: Rule) -> Iterator[Path]:
    for place in rule.where:
        yield from files(place)


@cache
def lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text().splitlines())


@cache
def words(path: Path) -> frozenset[str]:
    return frozenset(parts("\n".join(lines(path))))


def place(path: Path, number: int, rule: Rule) -> str:
    return f"{path.relative_to(ROOT)}:{number}: use {rule.use}: {lines(path)[number - 1].strip()[:120]}"


@pytest.mark.parametrize("rule", WORDS, ids=lambda rule: rule.word)
def test_private_words_do_not_return(rule: Rule) -> None:
    found = [
        place(path, number, rule)
        for path in checked(rule)
        if rule.word in words(path)
        for number, line in enumerate(lines(path), 1)
        if rule.word in parts(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", PHRASES, ids=lambda rule: rule.word)
def test_private_phrases_do_not_return(rule: Rule) -> None:
    pattern = re.compile(rule.word)
    found = [
        place(path, number, rule)
        for path in checked(rule)
        for number, line in enumerate(lines(path), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def test_names_in_code_are_technical_verbs() -> None:
    rule = Rule("", "handle, log, emit, return, snapshot", CODE)
    found = [
        f"{name}: {place(path, number, rule)}"
        for path in checked(rule)
        for name, number in names(ast.parse(path.read_text()))
        if NAMES.intersection(parts(name))
    ]
    assert not found, "\n".join(found)


def test_words_are_found_in_every_form_of_a_name() -> None:
    assert list(parts("class ClusterShelf: _tell_all(HTTPDesk)")) == [
        "class",
        "cluster",
        "shelf",
        "tell",
        "all",
        "http",
        "desk",
    ]

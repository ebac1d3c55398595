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

STORE = "src/holdfast/store"
PURE = ("src/holdfast/erasure", "src/holdfast/planning", "src/holdfast/topology", "src/holdfast/pictures")
FINISHED = (STORE, *PURE, "lab")
"""Packages whose names and sentences have been changed; the others follow."""
CODE = ("src", "lab")
EVERYWHERE = (*CODE, "docs")
NOT_YET = (
    "lab/holdfast_lab/sql_answers",
    "lab/holdfast_lab/baselines",
    "lab/holdfast_lab/benches/streaming",
    "lab/holdfast_lab/experiments/recovery",
    "lab/holdfast_lab/commands/experiment_recovery.py",
)
"""Parts of the lab that change with the packages they use; rules for FINISHED leave them out."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A private word, in lower case; it also counts as a part of a name (`ClusterShelf`, `_tell_all`)."""

    word: str
    use: str
    where: tuple[str, ...] = EVERYWHERE


WORDS = [
    Rule("conductor", "Coordinator", CODE),
    Rule("conductors", "Coordinator", CODE),
    Rule("vault", "CheckpointStorage, SnapshotStore", FINISHED),
    Rule("vaults", "CheckpointStorage, SnapshotStore", FINISHED),
    Rule("shelf", "FragmentFiles", FINISHED),
    Rule("shelves", "FragmentFiles", FINISHED),
    Rule("desk", "…Service, …Worker"),
    Rule("desks", "…Service, …Worker"),
    Rule("berth", "FragmentTarget"),
    Rule("warden", "ProcessReaper", FINISHED),
    Rule("surroundings", "RunContext"),
    Rule("wiring", "PartitionGraph"),
    Rule("narrate", "emit"),
    Rule("narrating", "event_log"),
    Rule("narrator", "event_log"),
    Rule("story", "History", FINISHED),
    Rule("stories", "History", FINISHED),
    Rule("keeper", "backup partition", CODE),
    Rule("keepers", "backup partitions", CODE),
    Rule("unsure", "nondeterministic", FINISHED),
    Rule("heard", "CycleResult; received", FINISHED),
    Rule("hearsay", "named by others", FINISHED),
]

PHRASES = [
    Rule(r"\bpaper[ _]0\d\d\b", "the paper's short name", CODE),
    Rule(r"\(00\d\)", "the paper's short name", FINISHED),
    Rule(r"\blay_out\b", "assign; compute_layout", FINISHED),
    Rule(r"\bChapter\b(?! \d)", "Transition", CODE),
    Rule(r"\bhear_reports\b", "merge_reports"),
    Rule(r"\bmostLag\b", "spark.holdfast.ingest.maxPendingBatches", CODE),
    Rule(r"\bstore\.survive\b", "spark.holdfast.store.tolerateNodeLoss", CODE),
    Rule(r"\brecovery\.catchUp\b", "spark.holdfast.cycle.timeBudget", CODE),
    Rule(r"\brecovery\.losses\b", "spark.holdfast.recovery.incrementalAfterLosses", CODE),
    Rule(r"\b(a|the|an) (snapshot_store|event_log|checkpoint_storage)\b", "the words without underscores", CODE),
    Rule(r"\b(an|An) (snapshot|checkpoint|coordinator)\b", "a"),
    Rule(r"\babsurdly\b", "too", FINISHED),
]

NAMES = {"hear", "heard", "tell", "told", "say", "said", "speak", "spoke", "image", "images", "narrate"}
"""Parts of names of functions, classes, arguments and variables: software handles, logs, emits, returns."""

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def parts(text: str) -> Iterator[str]:
    """Split text and names into words: `ClusterShelf`, `_shelf` and `shelf` all have the word `shelf`."""
    return (found.group().lower() for found in _PARTS.finditer(text))


@cache
def files(place: str) -> tuple[Path, ...]:
    if place == "docs":
        return tuple(sorted((ROOT / "docs").glob("*.md")))
    return tuple(sorted((ROOT / place).rglob("*.py")))


def checked(rule: Rule) -> Iterator[Path]:
    for place in rule.where:
        for path in files(place):
            relative = str(path.relative_to(ROOT))
            if not (rule.where == FINISHED and relative.startswith(NOT_YET)):
                yield path


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
    rule = Rule("", "handle, log, emit, return, snapshot", FINISHED)
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

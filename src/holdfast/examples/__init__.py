"""Applications to start from, each with a seeded generator of its input. They run in process and on a cluster alike."""

from holdfast.examples.registry import EXAMPLES, Example

__all__ = ["EXAMPLES", "Example"]

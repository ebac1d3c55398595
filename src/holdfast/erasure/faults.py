"""What can be wrong with fragments. Every one of these is raised instead of returning bytes that might be wrong.

Pure; runs anywhere. All are `CheckFailed` (exit status 1): a fragment was read and did not hold what it should.
"""

from __future__ import annotations

from holdfast.errors import CheckFailed


class FragmentFault(CheckFailed):
    """A fragment, or a set of them, cannot be used."""


class DamagedFragment(FragmentFault):
    """Bytes of one fragment are malformed, cut short, too long, or fail their checksum: it counts as lost."""


class MismatchedFragments(FragmentFault):
    """Fragments were given together that are not of the same state, version, epoch, code and content."""


class NotEnoughFragments(FragmentFault):
    """Fewer than m good fragments are there."""


class WrongState(FragmentFault):
    """Good fragments gave bytes that are not the state that was encoded; the bytes are withheld."""

"""How many members of a group must be there, where groups are smaller than `members.min_members`."""

import pytest

from raysed.config import make_config
from raysed.errors import RunFailed
from raysed.stages.stages import Stages


def stages(**members) -> Stages:
    made = object.__new__(Stages)  # nothing but the settings is needed, and all else would start Ray
    made.config = make_config({"members": members})
    return made


@pytest.mark.parametrize(
    ("min_members", "count", "failed", "enough"),
    [(None, 3, 0, True), (None, 3, 1, False), (2, 3, 1, True), (2, 3, 2, False), (2, 1, 0, True), (2, 1, 1, False)],
)
def test_a_group_may_be_smaller_than_min_members(min_members, count, failed, enough):
    """As with a grid with fewer models per bound."""
    failures = {f"ct/members/{i:02d}": "it is planted" for i in range(failed)}
    if enough:
        stages(min_members=min_members)._accept("ct", count, failures, user_mistake=False)
        return
    with pytest.raises(
        RunFailed, match=r"members of ct could be trained, but [123] are needed .*ct/members/00: it is planted"
    ):
        stages(min_members=min_members)._accept("ct", count, failures, user_mistake=False)

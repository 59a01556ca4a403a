"""Ensembles after their trainings: who is left out, which bound wins, and what is too little."""

from types import SimpleNamespace

import pytest

from raysed.errors import RunFailed, UserError
from raysed.made import Made, Trained
from raysed.plan.models import TrainedEnsemble, all_members, best_of_grid, ensemble


def trained(name: str, bound: float | None = None, **about) -> Trained:
    return Trained(Made(name, how=SimpleNamespace(bound=bound)), **{"dev": 1.0, **about})


def names(found: TrainedEnsemble) -> list[str]:
    return [each.name for each in found.trained]


def test_a_full_disk_is_no_member_that_can_be_left_out():
    job = SimpleNamespace(
        recipes=[], config=SimpleNamespace(members=SimpleNamespace(min_members=1), evaluation=SimpleNamespace(dev="d"))
    )
    members = [trained("ct/members/00", 0.0), trained("ct/members/01", 0.0, failure="no space left", is_mistake=True)]
    for node in ("ct", "sts"):
        with pytest.raises(UserError, match=r"^ct/members/01: no space left$"):
            ensemble(job, node, members)
        found = ensemble(job, node, [members[0], members[1]._replace(is_mistake=False)])
        assert names(found) == ["ct/members/00"] and found.left_out == {"ct/members/01": "no space left"}


def test_collapsed_members_are_scored_and_not_used():
    members = [trained("a/0", collapsed="collapsed: as a test"), trained("a/1")]
    found = all_members("a", members, None, is_used=True)
    assert names(found) == ["a/0", "a/1"] and [made.name for made in found.healthy] == ["a/1"]
    with pytest.raises(UserError, match="only 1 of 2 members of a have not collapsed, but 2 are needed; a/0: coll"):
        all_members("a", members, 2, is_used=True)
    assert all_members("a", members, 2, is_used=False).left_out == {"a/0": "collapsed: as a test"}


def test_too_few_members_end_the_run():
    members = [trained("a/0"), trained("a/1", failure="lost")]
    with pytest.raises(RunFailed, match=r"only 1 of 2 members of a could be trained, but 2 are needed .*; a/1: lost"):
        all_members("a", members, None, is_used=True)
    assert names(all_members("a", members, 1, is_used=True)) == ["a/0"]


def test_a_bound_wins_only_with_all_the_models_that_it_needs():
    models = [trained("0/0", 0.0, dev=1.0), trained("0/1", 0.0, dev=1.5)]
    models += [trained("5/0", 0.5, dev=9.0), trained("5/1", 0.5, dev=None, failure="lost")]
    found = best_of_grid("sts", models, None, "dev")
    assert names(found) == ["0/0", "0/1"] and found.left_out == {"5/1": "lost"}
    assert (found.grid["winner"], found.grid["score"], found.grid["runner_up"]) == (0.0, 1.25, None)
    assert [bound["scores"] for bound in found.grid["bounds"]] == [[1.0, 1.5], [9.0]]
    assert names(best_of_grid("sts", models, 1, "dev")) == ["5/0"]
    with pytest.raises(RunFailed, match="no lower bound of sts has the 2 models it needs; 5/1: lost"):
        best_of_grid("sts", models[2:], 2, "dev")

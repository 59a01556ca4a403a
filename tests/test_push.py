"""`raysed distill --push`: what is refused before the first second, and what is uploaded when."""

import socket
import sys
from types import SimpleNamespace

import pytest
from hub_server import hub_server
from huggingface_hub import constants

from raysed import api, cli
from raysed.errors import UserError
from raysed.store.hub import model_directory
from raysed.store.push import check_push


def scoped(name, *permissions):
    return {"scoped": [{"entity": {"name": name}, "permissions": ["repo.content.read", *permissions]}]}


@pytest.mark.parametrize(
    ("repo", "token", "problem"),
    [
        ("me/new", {"role": "write"}, None),
        ("new", {"role": "write"}, None),
        ("lab/new", {"role": "write"}, None),
        ("me/new", {"role": "fineGrained", "fineGrained": scoped("me", "repo.write")}, None),
        ("me/new", {"role": "fineGrained", "fineGrained": scoped("me/new", "repo.write")}, None),
        ("me/private", {"role": "write"}, None),
        ("me/new", {"role": "read"}, "the token may only read me's repositories; make one that may write: https://.*"),
        ("me/new", {"role": "fineGrained", "fineGrained": scoped("me")}, "the token may only read me's .*"),
        ("me/new", {"role": "fineGrained", "fineGrained": scoped("me/a", "repo.write")}, "the token may only .*"),
        ("zoo/new", {"role": "write"}, "me, whose token this is, may not write to zoo; name one of lab, me"),
        ("you/new", {"role": "write"}, "me, whose token this is, may not write to you; name one of lab, me"),
        ("me/open", {"role": "write"}, "this repository is public; add --public, or name another one"),
        ("open", {"role": "write"}, "this repository is public; add --public, or name another one"),
        ("a/b/c", {"role": "write"}, "the hub cannot be asked: Repo id must be .*"),
    ],
)
def test_a_repository_that_the_token_may_not_write_is_refused(repo, token, problem):
    with hub_server() as hub:
        hub.user["auth"]["accessToken"] = token
        hub.user["orgs"] = [{"name": "lab", "roleInOrg": "write"}, {"name": "zoo", "roleInOrg": "read"}]
        hub.repositories |= {"me/open": {"private": False}, "me/private": {"private": True}}
        if problem is None:
            check_push(repo, public=False)
        else:
            with pytest.raises(UserError, match=f"^--push {repo}: {problem}$"):
                check_push(repo, public=False)
        assert hub.repositories.keys() == {"me/open", "me/private"}, "nothing is made before the training"


def test_a_public_repository_may_be_asked_for():
    with hub_server() as hub:
        hub.repositories["me/open"] = {"private": False}
        check_push("me/open", public=True)
        hub.repositories["me/private"] = {"private": True}
        with pytest.raises(UserError, match="this repository is private; make it public on its page, or leave out"):
            check_push("me/private", public=True)


def test_a_hub_that_accepts_and_never_answers_is_given_up(monkeypatch):
    """Its library would wait forever."""
    monkeypatch.setattr("raysed.store.hub._PATIENCE_S", 0.2)
    with hub_server(), socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match=r"^--push me/a: the hub cannot be asked: .*timed out"):
            check_push("me/a", public=False)
        with pytest.raises(UserError, match=r"^teachers: neither a directory nor a hub id that can be reached: "):
            model_directory("somebody/some-model", "teachers")


def test_a_missing_token_and_a_hub_that_is_away_are_refused(monkeypatch):
    monkeypatch.setattr("huggingface_hub.hf_api.get_token", lambda: None)
    with pytest.raises(
        UserError, match=r"^--push me/a: the hub's token is missing; run `hf auth login`, or set HF_TOKEN$"
    ):
        check_push("me/a", public=False)
    monkeypatch.setattr("huggingface_hub.hf_api.get_token", lambda: "hf_any")
    with pytest.raises(UserError, match=r"^--push me/a: the hub cannot be asked: .*offline mode is enabled"):
        check_push("me/a", public=False)


@pytest.fixture
def command(undone, monkeypatch, capsys):
    """Calls `raysed distill`, whose run ends with a model in `path`."""
    pushed = []

    def push_to_hub(repo, **options):
        if repo == "me/full":
            raise OSError("403 Forbidden: the storage is full.\nMore.")
        pushed.append((repo, options["private"]))
        return "https://hub/commit/1"

    def call(*words, path="runs/a/model"):
        pushed.clear()
        result = SimpleNamespace(path=path, push_to_hub=push_to_hub)
        monkeypatch.setattr(api, "distill", lambda **options: result)
        monkeypatch.setattr(sys, "argv", ["raysed", "distill", "--teachers", "A", "--corpus", "c.txt", *words])
        code = cli.main()
        return code, list(pushed), "".join(capsys.readouterr())

    return call


def test_a_model_is_pushed_after_the_run_and_private_unless_asked(command):
    with hub_server():
        assert command("--push", "me/a") == (0, [("me/a", True)], "pushed: https://hub/commit/1\n")
        assert command("--push", "me/a", "--public")[:2] == (0, [("me/a", False)])
        assert command("--push", "me/a", path=None) == (3, [], ""), "there is no model"
        failed = "failed: the model in runs/a/model is complete, but cannot be pushed to me/full: 403 Forbidden: "
        code, pushed, said = command("--push", "me/full")
        assert (code, pushed) == (1, []) and said.startswith(failed) and "the same command tries again" in said
    with hub_server("read"):
        code, pushed, said = command("--push", "me/a")
        assert (code, pushed) == (2, []) and said.startswith("error: --push me/a: the token may only read ")
    assert command("--public") == (2, [], "error: --public is for --push REPO; add it\n")

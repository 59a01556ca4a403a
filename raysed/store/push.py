"""Whether the hub's token may push a model to a repository; imports no torch."""

from collections.abc import Mapping
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import LocalTokenNotFoundError, RepositoryNotFoundError

from raysed.errors import UserError
from raysed.store.hub import hub_problem, limit_waits

_TOKENS = "https://huggingface.co/settings/tokens"


def check_push(repo: str, public: bool) -> None:
    """Refuse a repository that the token may not write, or that others can read although `public` is false.

    Args:
        repo: `user/name` or `organization/name`; a name alone is one of the token's user.
        public: whether everybody may read it.

    Raises:
        UserError: there is no token, it may not write there, the hub does not answer, or the repository is public.
    """
    limit_waits()
    place, api = f"--push {repo}", HfApi()
    try:
        user = api.whoami()
        repo = repo if "/" in repo else f"{user['name']}/{repo}"
        is_public = not api.model_info(repo).private  # also refuses what cannot be a name
    except LocalTokenNotFoundError:
        raise UserError("the hub's token is missing; run `hf auth login`, or set HF_TOKEN", place) from None
    except RepositoryNotFoundError:
        is_public = None  # there is none yet
    except Exception as error:  # the hub's libraries raise a dozen unrelated types
        raise UserError(f"the hub cannot be asked: {hub_problem(error)}", place) from None
    if problem := _refusal(user, repo):
        raise UserError(problem, place)
    if is_public and not public:
        raise UserError("this repository is public; add --public, or name another one", place)
    if public and is_public is False:
        raise UserError("this repository is private; make it public on its page, or leave out --public", place)


def _refusal(user: Mapping[str, Any], repo: str) -> str | None:
    """Return why a user's token may not write a repository, in one sentence."""
    owner, token = repo.split("/")[0], user.get("auth", {}).get("accessToken", {})
    writes = {org["name"] for org in user.get("orgs", ()) if org.get("roleInOrg") != "read"} | {user["name"]}
    if owner not in writes:
        return f"{user['name']}, whose token this is, may not write to {owner}; name one of {', '.join(sorted(writes))}"
    scopes = [scope for scope in token.get("fineGrained", {}).get("scoped", ()) if "repo.write" in scope["permissions"]]
    may_write = token.get("role") != "read"
    if token.get("role") == "fineGrained":
        may_write = any(scope["entity"].get("name") in (owner, repo) for scope in scopes)
    return None if may_write else f"the token may only read {owner}'s repositories; make one that may write: {_TOKENS}"

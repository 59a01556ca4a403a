"""Messages of errors, and the commands that they name."""

import json
from types import SimpleNamespace

import pytest

from raysed.errors import install_command


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file://HERE/my%20checkout", "dir_info": {"editable": True}}, "pip install 'HERE/my checkout[ray]'"),
        ({"url": "file://HERE/gone", "dir_info": {}}, "pip install '.[ray]'"),
        (
            {"url": "https://example.org/raysed", "vcs_info": {"vcs": "git", "commit_id": "0"}},
            "pip install 'raysed[ray] @ git+https://example.org/raysed'",
        ),
        (None, "pip install 'raysed[ray]'"),
    ],
    ids=["checkout", "checkout that is gone", "repository", "index"],
)
def test_an_extra_comes_from_where_the_package_came_from(tmp_path, monkeypatch, origin, command):
    """A package index may have another package of this name."""
    (tmp_path / "my checkout").mkdir()
    found = None if origin is None else json.dumps(origin).replace("HERE", str(tmp_path))
    monkeypatch.setattr("raysed.errors.distribution", lambda name: SimpleNamespace(read_text=lambda file: found))
    assert install_command("ray") == command.replace("HERE", str(tmp_path))

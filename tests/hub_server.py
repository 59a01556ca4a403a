"""A small imitation of the Hugging Face hub: its own token check, repositories and commits, over HTTP."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants


@contextmanager
def hub_server(role="write"):
    """A server that this process's hub library takes for the hub, with a token."""
    server = HubServer(role)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "hf_any")
        patch.setattr(constants, "ENDPOINT", server.url)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server
    server.shutdown()
    server.server_close()


class HubServer(ThreadingHTTPServer):
    """Answers on a free port of this machine; `python tests/hub_server.py` serves until it is stopped.

    Attributes:
        user: what the hub says of the token.
        repositories: settings by name.
        files: contents by path, of all repositories.
    """

    def __init__(self, role="write"):
        super().__init__(("127.0.0.1", 0), _Handler)
        token = {"displayName": "laptop", "role": role}
        self.user = {"type": "user", "name": "me", "orgs": [], "auth": {"type": "access_token", "accessToken": token}}
        self.repositories, self.files = {}, {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *arguments):
        pass

    def answer(self, content, status=200, **headers):
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/api/whoami-v2":
            return self.answer(self.server.user)
        repo = "/".join(self.path.split("?")[0].split("/")[3:5])
        if repo in self.server.repositories:
            return self.answer({"id": repo, "siblings": [], **self.server.repositories[repo]})
        return self.answer({}, 404, **{"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = self.path.split("?")[0].split("/")
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or self.server.user['name']}/{asked['name']}"
            is_new, is_private = repo not in self.server.repositories, asked.get("visibility") == "private"
            self.server.repositories.setdefault(repo, {"private": is_private or bool(asked.get("private"))})
            return self.answer({"url": f"{self.server.url}/{repo}"}, 200 if is_new else 409)
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "preupload" in parts:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        repo = "/".join(parts[3:5])
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                value = line["value"]
                self.server.files[value["path"]] = base64.b64decode(value["content"])
        return self.answer({"commitUrl": f"{self.server.url}/{repo}/commit/1", "commitOid": "1"})


if __name__ == "__main__":
    server = HubServer()
    print(f"export HF_ENDPOINT={server.url} HF_TOKEN=hf_any HF_HUB_OFFLINE=0", flush=True)
    server.serve_forever()

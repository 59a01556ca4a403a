"""Examples that `make test-plain` cannot run: one asks a server, here on this machine, one needs the hub, one Ray."""

import importlib.util
import io
import json
import re
import runpy
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import raysed
from raysed import bundled
from raysed.config import CorpusConfig
from raysed.data.corpus import CorpusReport, query_chunks

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ASKS = EXAMPLES / "write_queries.py"
TEMPLATE = EXAMPLES / "ray_template.py"
KEY = "sk-a-secret-1234"


def code_cells(notebook: Path) -> list[str]:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells]


def test_notebooks_have_no_outputs():
    for path in EXAMPLES.glob("*.ipynb"):
        assert not any(cell.get("outputs") for cell in json.loads(path.read_text())["cells"])


def test_the_notebook_of_the_ray_template_is_its_script():
    """Its second cell names what the script takes as arguments; the comments between the steps are cells of text."""
    first, settings, *cells = code_cells(TEMPLATE.with_suffix(".ipynb"))
    imports, _, rest = TEMPLATE.read_text().partition('"""\n\n')[2].partition("\n\n\ndef main")
    body, _, arguments = rest.partition('"""\n')[2].partition("\n\n\nif __name__")
    steps = "\n".join(line for line in textwrap.dedent(body).splitlines() if not line.startswith("#"))
    assert f"import argparse\n{first}" == imports and "\n\n".join(cells) == steps
    names = set(re.findall(r"(\w+) = ", settings))
    assert names == set(re.findall(r'"--(\w+)"', arguments))


def test_the_page_on_ray_shows_parts_of_the_template():
    page = (EXAMPLES.parent / "docs/ray.md").read_text()
    shown = [part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import" not in part]
    template = "\n".join([*code_cells(TEMPLATE.with_suffix(".ipynb")), ""])
    assert len(shown) == 2 and all(part in template for part in shown)


def test_mteb_scores_a_model_as_raysed_does(monkeypatch, capsys):
    """A task that is made here: nothing is fetched."""
    mteb = pytest.importorskip("mteb", reason="needs mteb, of the extra test")
    import datasets
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    about = {"name": "Generated", "description": "the bundled pairs", "dataset": {"path": "no/where", "revision": "1"}}
    about |= {"type": "STS", "eval_langs": ["eng-Latn"], "main_score": "cosine_spearman", "eval_splits": ["test"]}
    pairs = bundled.pairs("test")[:40]

    class Generated(AbsTaskSTS):
        metadata = TaskMetadata(**about)

        def load_data(self, **options):
            columns = dict(zip(("score", "sentence1", "sentence2"), map(list, zip(*pairs))))
            self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns)})
            self.data_loaded = True

    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [Generated()])
    monkeypatch.setattr("sys.argv", ["mteb_scores.py", str(bundled.ENCODER), "Generated"])
    runpy.run_path(str(EXAMPLES / "mteb_scores.py"), run_name="__main__")
    mine = raysed.evaluate(
        {"path": str(bundled.ENCODER), "pool_layers": 1}, {"mine": [(*pair, s) for s, *pair in pairs]}
    )
    assert float(capsys.readouterr().out.split(": ")[1]) == pytest.approx(mine.scores["bundled"]["mine"], abs=0.01)


# -- queries that a language model writes ----------------------------------------------------------------------------


def good(text: str) -> tuple[int, str]:
    return 200, f'<think>Hm.</think>Here are two:\n\n1. "what is {text}"\n- **where is {text}**\n3. one too many'


@pytest.fixture
def server(monkeypatch, tmp_path):
    """`answers(text)` gives a status and what the model says; `asked` has all requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = request["messages"][0]["content"].partition("The text: ")[2]
            server.asked.append((text, self.headers.get("Authorization"), self.path))
            status, said = server.answers(text)
            if status == 200:
                said = json.dumps({"choices": [{"message": {"content": said}}]})
            self.send_response(status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.encode())

        def do_GET(self):  # of one that follows a redirect
            server.asked.append(("", self.headers.get("Authorization"), self.path))
            self.send_error(404)

        def log_message(self, *words):
            pass

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.asked, server.headers = good, [], {}
    server.handle_error = lambda *about: None  # such as a client that has given up
    server.url, server.over = f"http://127.0.0.1:{server.server_port}/v1/", threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


def command(server, corpus: Path, *words: str) -> list[str]:
    return [str(corpus), "--url", server.url, "--model", "small", "--yes", *words]


@pytest.fixture
def write(server, monkeypatch, capsys):
    """Runs the example in this process; returns what it prints."""
    spec = importlib.util.spec_from_file_location("write_queries", ASKS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)

    def write(corpus: Path, *words: str, **constants: float) -> str:
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr("sys.argv", ["write_queries.py", *command(server, corpus, *words)])
        module.main()
        return capsys.readouterr().out

    write.module = module
    return write


def save(path: Path, texts: list[str]) -> Path:
    lines = texts if path.suffix == ".txt" else [json.dumps({"body": text}) for text in texts]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_written_queries_are_a_file_that_a_run_reads(write, server, ending):
    texts = ["cats, and mats", "dogs", "", "dogs", "birds"]
    words = [] if ending == ".txt" else ["--column", "body"]
    printed = write(save(Path(f"a{ending}"), texts), *words)
    assert "3 texts go to" in printed and sorted(text for text, *_ in server.asked) == [
        "birds",
        "cats, and mats",
        "dogs",
    ]
    (line,) = (line for line in printed.splitlines() if "raysed distill" in line)
    given = shlex.split(line.partition("Train with: ")[2])
    settings = [word for word in given if "=" in word]
    assert given[given.index("--corpus") + 1] == f"a{ending}" and settings == ["corpus.column=body"] * bool(words)
    config = CorpusConfig(queries=given[given.index("--queries") + 1])
    (queries,) = query_chunks(config, CorpusReport())
    assert sorted(queries) == sorted(
        f"{word} is {text}" for text in ("cats, and mats", "dogs", "birds") for word in ("what", "where")
    )


def test_what_may_pass_is_tried_again_and_the_key_goes_nowhere_else(write, server, monkeypatch):
    answers, pauses = [(500, "busy"), (429, ""), (408, ""), good("cats")], []
    server.answers, server.headers = lambda text: answers.pop(0), {"Retry-After": "7"}
    monkeypatch.setattr(write.module.time, "sleep", pauses.append)
    assert "1 of 1 texts have queries" in write(save(Path("a.txt"), ["cats"]))
    assert server.asked == [("cats", f"Bearer {KEY}", "/v1/chat/completions")] * 4 and pauses == [7, 7, 7]
    assert Path("queries.txt").read_text() == "what is cats\nwhere is cats\n"
    assert not [path for path in Path().rglob("*") if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("answer", "requests", "words"),
    [
        ((401, f"wrong key\n{KEY}\x1b[2J"), 5, r"status 401, 'wrong key ***\x1b[2J'"),
        ((302, ""), 5, "status 302, ''"),  # to another address, which is not asked
        ((503, "over\nloaded"), 20, "status 503, 'over loaded'"),
        ((200, "<think>cut off\n1. cats"), 5, "status 200, "),
        (None, 0, "no answer, 'URLError: "),
    ],
)
def test_what_lasts_ends_the_job_and_keeps_what_is_there(write, server, capsys, answer, requests, words):
    corpus = save(Path("a.txt"), [f"text {number}" for number in range(30)])
    write(corpus, "--texts", "3")
    server.asked.clear()
    server.answers, server.headers = lambda text: answer, {"Location": "/elsewhere"}
    if answer is None:
        server.socket.close()
    with pytest.raises(SystemExit, match=f"^{server.url} gives no queries. Correct that"):
        write(corpus, AT_ONCE=1)
    said = capsys.readouterr().err
    assert said.count("no query for 'text ") == 5 and said.count(words) == 5 and KEY not in said
    texts = {text for text, *_ in server.asked}
    assert requests <= len(server.asked) and len(texts) < 27  # some were on their way, but not all that are left
    assert {path for *_, path in server.asked} <= {"/v1/chat/completions"}
    assert len(write.module.read_answers(Path("queries.answers"))) == 3


def test_nothing_is_sent_before_somebody_agrees(write, server, monkeypatch, capsys):
    corpus = save(Path("a.txt"), ["cats"])
    words = [word for word in command(server, corpus) if word != "--yes"]
    monkeypatch.setattr("sys.argv", ["write_queries.py", *words])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit, match=r"^Nothing was sent; answer y, or add --yes\.$"):
        write.module.main()
    said = capsys.readouterr().out
    assert f"1 texts go to {server.url}: about 40 tokens to read and 40 to write" in said and not server.asked


def test_a_stopped_job_continues_and_asks_nothing_twice(write, server):
    """It stops at once, though eight requests wait for answers."""
    corpus = save(Path("a.txt"), [f"text {number}" for number in range(40)])
    waiting: set[str] = set()

    def some(text: str) -> tuple[int, str]:
        if len(server.asked) > 20:
            waiting.add(text)
            server.over.wait(60)
        return good(text)

    server.answers = some
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # of a script's `make test &` it is ignored
    job = subprocess.Popen([sys.executable, str(ASKS), *command(server, corpus)], stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, ours)
    while len(waiting) < 8 and job.poll() is None:
        time.sleep(0.01)
    begun = time.monotonic()
    job.send_signal(signal.SIGINT)
    _, problem = job.communicate(timeout=30)
    assert time.monotonic() - begun < 2 and not Path("queries.txt").exists() and job.returncode == 1
    assert problem.endswith("Stopped. Run the same command again to continue.\n")
    kept = Path("queries.answers")
    kept.write_bytes(kept.read_bytes() + b'["cut", ["wh')  # as a write that was cut off leaves it
    server.answers = good
    assert "40 of 40 texts have queries" in write(corpus)
    counts = Counter(text for text, *_ in server.asked)
    assert len(counts) == 40 and {text for text, count in counts.items() if count > 1} <= waiting
    assert len(Path("queries.txt").read_text().splitlines()) == 80

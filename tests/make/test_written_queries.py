"""Queries that an endpoint writes: what is asked and made of answers, what is asked twice, and where the key goes."""

import json
import threading
import zlib
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow.parquet as pq
import pytest

from raysed.cluster.execute import make_executor
from raysed.config import EndpointConfig, make_config
from raysed.data import endpoint
from raysed.data.corpus import CorpusReport, text_chunks
from raysed.data.endpoint import Endpoint, queries_in
from raysed.errors import UserError
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.store.storage import Storage

KEY = "sk-a-secret-1234"
PROMPT = "{queries}|{text}"


def number(text: str) -> int:
    return zlib.crc32(text.encode())


def written(text: str) -> tuple[int, str]:
    """A good answer, other than that to any other text."""
    return 200, f'1. "what is {number(text)}"\n2. where is {number(text)}\n3. one too many'


@pytest.fixture
def server(monkeypatch):
    """A server on this machine: `answers(text)` gives a status and what is said; `asked` has all requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            (message,) = request["messages"]
            text = message["content"].partition("|")[2]
            server.asked.append((text, self.headers.get("Authorization"), self.path, request["model"]))
            status, said = server.answers(text)
            if status == 200 and not said.startswith("<html"):
                said = json.dumps({"choices": [{"message": {"content": said}}]})
            self.send_response(status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *words):
            pass

    monkeypatch.setattr(endpoint, "_BACKOFF_S", 0.0)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.asked, server.headers = written, [], {}
    server.handle_error = lambda *about: None  # such as a client that has given up
    server.settings = {"url": f"http://127.0.0.1:{server.server_port}/v1/", "model": "small", "prompt": PROMPT}
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "queries"),
    [
        ("1. cats\n2) dogs\n(3) birds", ["cats", "dogs", "birds"]),
        ("Here are some queries:\n\n- **cats**\n* `dogs`\n• “old birds”", ["cats", "dogs", "old birds"]),
        ("<think>\n1. not this\n</think>\nQuery: cats\nsearch query 2: dogs", ["cats", "dogs"]),
        ("1. not this either\n</think>cats", ["cats"]),
        ("<think>cut off\n1. cats", []),
        (
            'what is "rain"\n3.5 mm jack\n"a" or "b"\n2024 taxes',
            ['what is "rain"', "3.5 mm jack", '"a" or "b"', "2024 taxes"],
        ),
        (f"cats\ncats\nno\n{'long ' * 50}\n```json\n{{\n", ["cats"]),
        ("", []),
    ],
)
def test_only_queries_are_left_of_an_answer(answer, queries):
    assert queries_in(answer, 9) == queries
    assert queries_in(answer, 1) == queries[:1]


def test_the_key_is_sent_and_what_fails_in_passing_is_repeated(server, monkeypatch):
    client, answers = (
        Endpoint(EndpointConfig(**server.settings)),
        [(500, "busy"), (429, ""), (200, "<html>"), written("cats")],
    )
    server.answers, server.headers, pauses = lambda text: answers.pop(0), {"Retry-After": "7"}, []
    monkeypatch.setattr(client.stopped, "wait", pauses.append)
    assert client.queries_for("cats")[0] == queries_in(written("cats")[1], 2)
    assert server.asked == [("cats", f"Bearer {KEY}", "/v1/chat/completions", "small")] * 4
    assert pauses == [7, 7, 7]

    monkeypatch.delenv("OPENAI_API_KEY")
    server.answers = lambda text: (200, f"{text} \ud800")  # half a character, which no file can hold
    assert Endpoint(EndpointConfig(**server.settings)).queries_for("dogs")[0] == ["dogs ?"]
    assert server.asked[-1][:2] == ("dogs", None)


@pytest.mark.parametrize(
    ("answer", "requests", "words"),
    [
        (
            (401, f"wrong key\n{KEY}"),
            1,
            "answers 401 (wrong key ***); the key is read from OPENAI_API_KEY, which is refused",
        ),
        ((404, "no such page"), 1, "answers 404 (no such page); correct it"),
        ((302, ""), 1, "answers 302 ()"),
        ((503, "over\nloaded"), 4, "answers 503 (over loaded)"),
        (None, 0, "gives no answer (Connection refused); correct it or start its server"),
    ],
)
def test_what_lasts_ends_the_run_in_a_sentence(server, answer, requests, words):
    server.answers, server.headers = lambda text: answer, {"Location": "/elsewhere"}
    client = Endpoint(EndpointConfig(**server.settings))
    if answer is None:
        server.socket.close()
    with pytest.raises(UserError) as caught:
        client.queries_for("cats")
    assert str(caught.value).startswith(f"search.endpoint.url: {server.settings['url']}chat/completions {words}")
    assert KEY not in str(caught.value) and len(server.asked) == requests


@pytest.mark.parametrize(("answer", "requests"), [((200, "..."), 4), ((200, "<html>"), 4), ((400, "too long"), 1)])
def test_a_text_without_a_usable_answer_has_no_query(server, answer, requests):
    server.answers = lambda text: answer
    queries, seen = Endpoint(EndpointConfig(**server.settings)).queries_for("cats")
    assert queries == [] and answer[1] in seen and len(server.asked) == requests


def test_an_answer_that_never_ends_is_given_up(server, monkeypatch):
    over = threading.Event()
    server.answers = lambda text: written(text) if over.wait(5) else None
    try:
        with pytest.raises(UserError, match=r"gives no answer \(.*timed out"):
            Endpoint(EndpointConfig(**server.settings, timeout_seconds=0.05)).queries_for("cats")
    finally:
        over.set()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "localhost:8000"}, "search.endpoint.url: write it as http://HOST:PORT/v1"),
        ({"url": f"http://me:{KEY}@host/v1"}, "search.endpoint.url: the URI contains a password"),
        ({"prompt": "Write!"}, "search.endpoint.prompt: it must contain {text}"),
        ({"key_variable": KEY}, "search.endpoint.key_variable: name an environment variable"),
    ],
)
def test_settings_that_cannot_work_are_refused_without_the_key(changes, words):
    with pytest.raises(UserError) as caught:
        make_config({"search": {"endpoint": {"url": "http://host/v1", "model": "small", **changes}}})
    assert words in str(caught.value) and KEY not in str(caught.value)


@pytest.fixture
def make(server, tmp_path):
    """Makes the corpus of a run, with queries for some of its texts; returns its table, report and what was said."""

    def make(corpus: dict | None = None, **changes):
        config = make_config(
            {
                "storage": str(tmp_path / "runs"),
                "run": "written",
                "recipes": ["teachers-sed"],
                "teachers": ["bundled:encoder"],
                "encoder": {"layers": 1},
                "corpus": {"sentences": 300, **(corpus or {})},
                "search": {"endpoint": {**server.settings, "texts": 120, **changes}},
                "evaluation": {"layers": [1]},
                "resources": {"engine": "local"},
            }
        )
        plan, storage, said = Plan(check(config)), Storage(config.storage, config.run), []
        executor = make_executor(plan.graph, storage, plan.how("local"), said.append)
        storage.write_text("config.yaml", plan.how().settings)
        for batch in plan.graph.batches():
            executor.make(batch)
            if batch[-1].name == "corpus":
                break
        return pq.read_table(storage.fetch("corpus")), executor.state.entry("corpus").meta["report"], said

    return make


def test_written_queries_belong_to_their_texts_and_none_is_paid_for_twice(server, make, tmp_path):
    server.answers = lambda text: (401, "") if len(server.asked) > 75 else written(text)
    with pytest.raises(UserError, match=r"^search\.endpoint\.url: .* 401 "):
        make(concurrency=1)
    first = [text for text, *_ in server.asked[:50]]

    server.answers = written
    table, report, said = make()
    counts = Counter(text for text, *_ in server.asked)
    assert len(counts) == 120 and {counts[text] for text in first} == {1}
    rows = table.to_pylist()
    texts = {row["id"]: row["sentence"] for row in rows if row["id"] == row["of"]}
    queries = [(row["sentence"], texts[row["of"]]) for row in rows if row["id"] != row["of"]]
    assert len(texts) == 300 and Counter(text for _, text in queries) == dict.fromkeys(counts, 2)
    assert all(query in queries_in(written(text)[1], 2) for query, text in queries)
    assert report["queries"] == {"written": 240}
    assert f"{server.settings['url']} (model small) is asked for 2 queries for each of 120 texts" in said[-4]
    assert said[-3] == "search.endpoint: 240 queries written for 120 of 120 texts"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]

    asked = len(server.asked)
    assert make(concurrency=2)[0].equals(table)
    assert make(texts=100)[1]["queries"] == {"written": 200} and len(server.asked) == asked
    server.answers = lambda text: (200, "...") if number(text) % 2 else written(text)
    said = make(texts=150)[2]
    assert len(server.asked) > asked and {text for text, *_ in server.asked[asked:]}.isdisjoint([*counts][:100])
    without = sum(number(text) % 2 for text in {text for text, *_ in server.asked[asked:]})
    assert said[-3].endswith(f"; {without} without a usable answer")


def test_an_endpoint_that_writes_nonsense_ends_the_run(server, make):
    server.answers = lambda text: (200, "<html> hello")
    with pytest.raises(
        UserError, match=r"^search\.endpoint\.url: no answer about 50 texts has a query; .* <html> hello; "
    ):
        make()


def test_the_texts_that_are_asked_about_are_drawn_alike(tmp_path):
    """More of them have the same first ones, from all of the corpus; a small corpus has fewer than wanted."""
    config = make_config({"corpus": {"source": "bundled:everyday"}}).corpus

    def drawn(most, **changes):
        chunks = text_chunks(config.model_copy(update=changes), 0, CorpusReport(), most=most)
        return [text for _, texts, _ in chunks for text in texts]

    everything = drawn(None)
    assert drawn(50) == drawn(200)[:50] == drawn(50, sentences=300) != everything[:50]
    assert sorted(drawn(10**6)) == sorted(everything)
    with pytest.raises(UserError, match=r"were asked for, but corpus\.source has only"):
        drawn(50, sentences=10**6)

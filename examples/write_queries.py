"""Let a language model write search queries for your texts, for `raysed distill --queries`.

    python examples/write_queries.py docs.jsonl --url http://localhost:8000/v1 --model qwen3-4b

Any server with OpenAI's API works: vLLM, Ollama, llama.cpp, a hosted service. It gets your texts, and the key in
OPENAI_API_KEY. The corpus is .txt with a text per line, or .jsonl, .csv, .tsv or .parquet with a column `sentence` or
`text`. The output, queries.txt, has a query per line. queries.answers keeps the answers: after a stop, the same command
asks only for missing ones.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

QUERIES = 2  # per text
PROMPT = (
    f"Write {QUERIES} short search queries that a user may type to find the text below, in the language of the text. "
    "Write one query per line, and nothing else. The text: "
)
AT_ONCE, LONGEST_ANSWER_S = 8, 60.0
TRIES, FIRST_PAUSE_S, LONGEST_PAUSE_S = 4, 1.0, 300.0
MOST_FAILURES = 5  # in a row; then the texts are not the cause
KEY = os.environ.get("OPENAI_API_KEY", "").strip()

opener = OpenerDirector()  # without a handler for redirects, which would send the key elsewhere
for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
    opener.add_handler(handler)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, each by column."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file if line.strip()]
        if path.suffix == ".txt":
            return [{"text": line.strip()} for line in file if line.strip()]
        tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
        return list(csv.DictReader(file, **tabs))


def post(url: str, body: bytes, put: Callable[[tuple[int, str, str]], None]) -> None:
    """Put the status of an answer (0: no answer), its text, and the seconds that the server asks to wait."""
    headers = {"Content-Type": "application/json", "User-Agent": "write-queries"}
    headers |= {"Authorization": f"Bearer {KEY}"} if KEY else {}
    try:
        request = Request(f"{url.rstrip('/')}/chat/completions", body, headers)
        with opener.open(request, timeout=LONGEST_ANSWER_S) as response:
            put((response.status, response.read(2**20).decode(errors="replace"), response.headers["Retry-After"] or ""))
    except Exception as error:
        put((0, f"{type(error).__name__}: {error}", ""))


def ask(url: str, model: str, text: str) -> tuple[list[str], str]:
    """Return the queries for a text, and the server's answer; try again after errors that may pass."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": PROMPT + text}]}).encode()
    for attempt in range(TRIES):
        # A socket's timeout starts again with each byte of a slow answer. So each request has its own thread, which is
        # abandoned after the timeout.
        answer: SimpleQueue = SimpleQueue()
        threading.Thread(target=post, args=(url, body, answer.put), daemon=True).start()
        try:
            status, said, pause = answer.get(timeout=LONGEST_ANSWER_S)
        except Empty:
            status, said, pause = 0, f"not complete after {LONGEST_ANSWER_S:g} seconds", ""
        if (status not in (0, 408, 429) and status < 500) or attempt + 1 == TRIES:
            break
        wanted = float(pause) if pause.isdecimal() else 0.0
        time.sleep(min(max(wanted, FIRST_PAUSE_S * 2**attempt), LONGEST_PAUSE_S))
    try:
        queries = queries_in(json.loads(said)["choices"][0]["message"]["content"])
    except (ValueError, LookupError, TypeError, RecursionError):
        queries = []
    shown = " ".join(said.replace(KEY or "\0", "***").split())[:200]
    return queries, f"status {status}, {shown!r}" if status else f"no answer, {shown!r}"


def queries_in(answer: str) -> list[str]:
    """Return the lines of an answer, without reasoning, introductions, bullets, numbers and quotes."""
    answer = re.sub(r"(?s)^.*</think>|<think>.*", "", answer).replace("**", "")
    lines = [re.sub(r"^\s*([-*•]|\(?\d{1,3}[.):])\s+", "", line) for line in answer.splitlines()]
    lines = [line.strip(" \t\"'`“”„«»") for line in lines]
    return list(dict.fromkeys(line for line in lines if 3 <= len(line) <= 200 and line[-1] not in ":："))[:QUERIES]


def ask_all(url: str, model: str, texts: dict[str, str], kept: Path) -> None:
    """Append each text's key and queries to a file as soon as the server answers."""
    failures = 0
    with open(kept, "a", encoding="utf-8", buffering=1) as file, ThreadPool(AT_ONCE) as pool:
        file.write("\n")  # ends a line that a kill cut short
        answers = pool.imap_unordered(lambda key: (key, *ask(url, model, texts[key])), texts)
        for number, (key, queries, said) in enumerate(answers, start=1):
            if queries:
                file.write(f"{json.dumps([key, queries])}\n")
            else:
                print(f"\nno query for {texts[key][:40]!r}: {said}", file=sys.stderr)
            failures = 0 if queries else failures + 1
            if failures == MOST_FAILURES:
                sys.exit(f"{url} gives no queries. Correct that, then run the same command again to continue.")
            print(f"\r{number:,} of {len(texts):,} texts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def read_answers(kept: Path) -> dict[str, list[str]]:
    """Return the queries in a file of answers, by the keys of their texts."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return dict(json.loads(line) for line in lines if line.endswith("]]"))


def confirm(texts: list[str], url: str, is_wanted: bool) -> None:
    """Print the cost of asking about texts, and exit unless the user agrees."""
    read = sum(len((PROMPT + text).encode()) for text in texts) // 4
    print(
        f"{len(texts):,} texts go to {url}: about {read:,} tokens to read and {20 * QUERIES * len(texts):,} to write,"
    )
    print("or more if the model reasons.")
    if not is_wanted and (not sys.stdin.isatty() or input("Continue? [y/N] ").lower() not in ("y", "yes")):
        sys.exit("Nothing was sent; answer y, or add --yes.")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("corpus", type=Path)
    result.add_argument("--url", required=True, help="address of the server, without /chat/completions")
    result.add_argument("--model", required=True)
    result.add_argument("--column", help="column of the texts (default: sentence or text)")
    result.add_argument("--texts", type=int, default=1000, help="ask about at most this many texts, drawn at random")
    result.add_argument("--yes", action="store_true", help="print the cost and continue without asking")
    return result


def main() -> None:
    """Ask for missing queries, then write the output."""
    args = parser().parse_args()
    if not (KEY.isascii() and KEY.isprintable()):
        sys.exit("OPENAI_API_KEY holds characters that no key has.")
    try:
        rows = read_rows(args.corpus)
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"{args.corpus} cannot be read: {error}")
    names = [args.column] if args.column else ["sentence", "text"]
    column = next((name for name in names if rows and name in rows[0]), None)
    if column is None:
        sys.exit(f"{args.corpus} needs a column {' or '.join(names)}.")

    texts = [" ".join(str(row.get(column) or "").split()) for row in rows]
    by_key = {
        hashlib.sha256(json.dumps([args.model, PROMPT, text]).encode()).hexdigest(): text for text in texts if text
    }
    drawn = sorted(by_key)[: args.texts]  # hashes order at random, and a larger draw extends a smaller one
    output, kept, part = Path("queries.txt"), Path("queries.answers"), Path("queries.part")
    known = read_answers(kept)
    if missing := {key: by_key[key] for key in drawn if key not in known}:
        confirm(list(missing.values()), args.url, args.yes)
        ask_all(args.url, args.model, missing, kept)
        known = read_answers(kept)

    queries = [known[key] for key in drawn if key in known]
    if not queries:
        sys.exit("No text has queries.")
    print(f"{len(queries):,} of {len(drawn):,} texts have queries. Run the same command again to ask for others.")
    part.write_text("".join(f"{query}\n" for of_text in queries for query in of_text), encoding="utf-8")
    os.replace(part, output)
    command = ["raysed", "distill", "--teachers", "MODEL", "--corpus", str(args.corpus), "--queries", str(output)]
    command += ["--set", f"corpus.column={column}"] if args.column else []
    print(f"{output} is written. Train with: {shlex.join(command)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. Run the same command again to continue.")

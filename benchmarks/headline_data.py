"""The data of headline.py from the hub and from public files: what headline.yaml names, laid out as in its `data`.

`gather` writes each file once. All that is read goes through `datasets.load_dataset`, which keeps copies: a hub dataset
at its revision, or a file at a URL that holds a commit. Texts have single blanks. What the files of a directory hold is
compared with what the printed table was made of by a digest of their texts (`differing`).
"""

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import snapshot_download

Source = Mapping[str, Any]
ALIKE = 0.8
"""Share of common words from which two texts are near copies."""
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""How the Penn Treebank, and TREC-QA with it, writes brackets."""
WEIGHTS = ["*.json", "*.safetensors", "*.txt"]
"""Files of a published model that are downloaded: no code and no pickles."""


def load(path: Path) -> dict[str, Any]:
    """Returns the content of headline.yaml, with whole URLs."""
    content = path.read_text(encoding="utf-8")
    for name, url in yaml.safe_load(content)["repositories"].items():
        content = content.replace(f"{name}:/", url)
    return yaml.safe_load(content)


def gather(sources: Mapping[str, Source], directory: Path) -> Path:
    """Writes what is missing in the directory, which it returns."""
    for name, source in sources.items():
        path = directory / name
        if not path.exists():
            print(f"fetch {name}", flush=True)
            part = path.with_name(f"{path.name}.part")
            part.parent.mkdir(parents=True, exist_ok=True)
            READERS[source["as"]](source, part)
            part.rename(path)
    return directory


def download(models: Mapping[str, Source]) -> dict[str, Path]:
    """Downloads published models at their revisions; returns their directories by name."""
    return {
        name: Path(snapshot_download(model["hub"], revision=model["revision"], allow_patterns=WEIGHTS))
        for name, model in models.items()
    }


def texts(path: Path) -> list[str]:
    """Returns the texts of a file or of a retrieval task, in its order, without labels and scores."""
    if path.is_dir():
        lines = [line for name in ("corpus", "queries") for line in _lines(path / f"{name}.jsonl")]
        return [one_line(json.loads(line)["text"]) for line in lines]
    if path.suffix == ".txt":
        return list(map(one_line, _lines(path)))
    head, *rows = (line.split("\t") for line in _lines(path))
    wanted = [k for k, name in enumerate(head) if name in ("text", "sentence1", "sentence2")]
    return [one_line(row[k]) for row in rows for k in wanted]


def digest(path: Path) -> str:
    """Returns 16 hexadecimal digits that tell the texts of a file."""
    return hashlib.sha256("\n".join(texts(path)).encode()).hexdigest()[:16]


def differing(sources: Mapping[str, Source], directory: Path) -> list[str]:
    """Returns the files whose texts are not those that were measured."""
    return [name for name, source in sources.items() if digest(directory / name) != source["measured"]]


def key(text: str) -> str:
    """Returns letters and digits alone: two texts with the same are one to a reader.

    >>> key("What is Crips ' gang color ?") == key("What is Crips' gang color?")
    True
    >>> key("He -LRB- a cook -RRB- won .") == key("He (a cook) won.")
    True
    """
    return re.sub(r"[\W_]+", "", untokenised(text).casefold())


def near_copies(pool: Iterable[str], scored: Iterable[str]) -> set[str]:
    """Returns the texts of a pool whose set of words is nearly that of a scored text.

    Two sets are alike if their common words are at least ALIKE of all their words (Jaccard). Then their sizes are
    similar, and they share one of the rarest words of each. Only such pairs are compared (Bayardo et al., "Scaling Up
    All Pairs Similarity Search", 2007).

    >>> near_copies(["The cat sat on a mat .", "It rains ."], ["the cat sat on a mat today", "it pours"])
    {'The cat sat on a mat .'}
    """
    known, own = {_words(text) for text in scored}, {text: _words(text) for text in pool}
    frequency = Counter(word for words in (*known, *own.values()) for word in words)

    def rarest(words: frozenset[str]) -> list[str]:
        ordered = sorted(words, key=lambda word: (frequency[word], word))
        return ordered[: len(ordered) - math.ceil(ALIKE * len(ordered) - 1e-9) + 1]

    alike = defaultdict(list)
    for words in known:
        for word in rarest(words):
            alike[word, len(words)].append(words)

    def is_near(words: frozenset[str]) -> bool:
        sizes = range(math.ceil(ALIKE * len(words) - 1e-9), int(len(words) / ALIKE + 1e-9) + 1)
        others = (other for word in rarest(words) for size in sizes for other in alike.get((word, size), ()))
        return any(len(words & other) >= ALIKE * len(words | other) for other in others)

    return {text for text, words in own.items() if is_near(words)}


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", untokenised(text).casefold()))


def one_line(text: str) -> str:
    """Returns the text with single blanks."""
    return " ".join(text.split())


def untokenised(text: str) -> str:
    """Returns text whose marks were split from its words as it is written.

    >>> print(untokenised("He said `` no '' ( twice ) , did n't he ?"))
    He said " no " (twice), didn't he?
    """
    for old, new in {"``": '"', "''": '"', **BRACKETS}.items():
        text = text.replace(old, new)
    text = re.sub(r" ([.,:;?!%)']|n't\b)", r"\1", one_line(text))
    return text.replace("( ", "(")


def _graded_pairs(source: Source, to: Path) -> None:
    """A hub dataset with the columns of a task, or files by the subset that they are: score, sentence, sentence."""
    if "hub" in source:
        rows = [("all", str(row["score"]), row["sentence1"], row["sentence2"]) for row in _hub(source)]
    else:
        cells = ((name, line.split("\t")) for name, url in source["urls"].items() for line in _document(url))
        rows = [(name, *row) for name, row in cells]
    _write_rows(to, ("subset", "score", "sentence1", "sentence2"), rows)


def _titles(source: Source, to: Path) -> None:
    """A file of labels and one of texts, line by line."""
    labels, titles = map(_document, source["urls"])
    _write_rows(to, ("label", "text"), zip(labels, titles, strict=True))


def _intents(source: Source, to: Path) -> None:
    """Pairs of text and label in a JSON object by split."""
    found = json.loads("\n".join(_document(source["urls"][0])))
    _write_rows(to, ("label", "text"), ((label, text) for text, label in found[source["split"]]))


def _answers(source: Source, to: Path) -> None:
    """Questions and marked answers, as documents and the questions that have an answer."""
    rows = [row for url in source["urls"] for row in _records(url)]
    documents = {text: f"d{k}" for k, text in enumerate(dict.fromkeys(row["atext"] for row in rows))}
    right = dict.fromkeys((row["qtext"], row["atext"]) for row in rows if row["label"] == "1")
    asked = {question for question, _ in right}
    found = dict.fromkeys(row["qtext"] for row in rows if row["qtext"] in asked)
    questions = {text: f"q{k}" for k, text in enumerate(found)}
    (to / "qrels").mkdir(parents=True, exist_ok=True)
    for name, ids in (("corpus", documents), ("queries", questions)):
        _write_lines(to / f"{name}.jsonl", (json.dumps({"_id": id_, "text": text}) for text, id_ in ids.items()))
    relevant = ((questions[question], documents[text], "1") for question, text in right)
    _write_rows(to / "qrels/test.tsv", ("query-id", "corpus-id", "score"), relevant)


def _sentences(source: Source, to: Path) -> None:
    """Text of several files, each once: of named columns, or of counted ones where there is no header."""
    found = (untokenised(text) for part in source["parts"] for text in _cells(part))
    least, most = source["words"]
    kept = (text for text in dict.fromkeys(found) if least <= len(text.split()) <= most and not text.isupper())
    _write_lines(to, kept)


def _plain(source: Source, to: Path) -> None:
    """The first rows of a hub dataset."""
    _write_lines(to, (one_line(row["text"]) for row in islice(_hub(source, streaming=True), source["rows"])))


READERS: Mapping[str, Callable[[Source, Path], None]] = {
    "graded pairs": _graded_pairs,
    "titles": _titles,
    "intents": _intents,
    "answers": _answers,
    "sentences": _sentences,
    "plain": _plain,
}


def _cells(part: Source) -> Iterable[str]:
    """Yields the texts of a part's files; stories are cut where a sentence ends."""
    for url in part["urls"]:
        if "named" in part:
            yield from (row[name] for row in _records(url) for name in part["named"])
            continue
        rows = (line.split("\t") for line in _document(url)[part.get("skip", 0) :])
        cells = [row[k] for row in rows for k in part["counted"] if k < len(row)]
        for cell in cells:
            text = cell.replace("\\newline", " ").replace("\\tab", " ")
            yield from re.split(r'(?<=[.!?])\s+(?=[A-Z"])', text) if part.get("stories") else [text]


def _records(url: str) -> Iterable[dict[str, str]]:
    return csv.DictReader(io.StringIO("\n".join(_document(url))))


def _document(url: str) -> Sequence[str]:
    """Returns the lines of a text file."""
    import datasets

    options = {"data_files": url, "split": "train", "sample_by": "document"}
    return datasets.load_dataset("text", **options)[0]["text"].removeprefix("\ufeff").rstrip("\n").split("\n")


def _hub(source: Source, **more: Any) -> Iterable[dict[str, Any]]:
    import datasets

    options = {name: source[name] for name in ("split", "revision", "data_files") if name in source}
    return datasets.load_dataset(source["hub"], **options, **more)


def _write_rows(path: Path, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    _write_lines(path, ("\t".join(map(one_line, row)) for row in (head, *rows)))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")

"""Hostile files run no code, not as an encoder, not as a checkpoint, not as a corpus; and no setting takes a secret."""

import hashlib
import json
import pickle
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raysed
from raysed.config import CorpusConfig, EncoderConfig, TeacherConfig, make_config
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.pairs import load_nli, read_pairs
from raysed.data.parquet import SentenceTable
from raysed.data.sources import find
from raysed.data.targets import TargetBatches, held_out_batches
from raysed.errors import UserError
from raysed.model.pretrained import load_checkpoint, load_encoder
from raysed.model.teacher import load_teacher
from raysed.store.storage import Storage
from raysed.train.state import load_state
from raysed.uris import refuse_secret


class Hostile:
    """Leaves a mark when somebody unpickles it."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def hostile(tmp_path) -> Hostile:
    """What must not run; that it would, is checked first."""
    mark = tmp_path / "code-ran"
    pickle.loads(pickle.dumps(Hostile(mark)))
    assert mark.exists()
    mark.unlink()
    yield Hostile(mark)
    assert not mark.exists(), "code of the file ran"


def hostile_column(hostile: Hostile, rows: int) -> pa.Array:
    """Ray's type for pickled objects, which unpickles when values are read; importing Ray Data makes it known."""
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

    storage = pa.array([pickle.dumps(hostile)] * rows, pa.large_binary())
    return pa.ExtensionArray.from_storage(ArrowPythonObjectType(), storage)


def test_the_column_is_hostile(hostile, tmp_path):
    """Read without care it runs; otherwise the tests below would show nothing."""
    pq.write_table(pa.table({"text": hostile_column(hostile, 1)}), tmp_path / "a.parquet")
    pq.read_table(tmp_path / "a.parquet")["text"].to_pylist()
    assert hostile.mark.exists()
    hostile.mark.unlink()


@pytest.mark.parametrize("nested", [False, True])
def test_a_corpus_of_pickled_objects_is_refused(hostile, tmp_path, nested):
    column = hostile_column(hostile, 3)
    if nested:
        column = pa.ListArray.from_arrays([0, 1, 2, 3], column)
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet, column 'text' has the type .*, which can run code; save it"):
        list(sentence_chunks(CorpusConfig(source=str(tmp_path / "a.parquet")), 0, CorpusReport()))


def test_pairs_of_pickled_objects_are_refused(hostile, tmp_path):
    table = {"label": hostile_column(hostile, 2), "premise": ["a", "b"], "hypothesis": ["c", "d"]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet, column 'label' has the type"):
        load_nli(make_config({"nli": {"train": str(tmp_path / "a.parquet")}}).nli.train)


TABLES = {
    "sentences": (("id", "sentence", "input_ids"), SentenceTable),
    "pairs": (("id", "sentence1", "sentence2", "input_ids1", "input_ids2", "label"), read_pairs),
    "targets": (("id", "input_ids", "target"), lambda directory: TargetBatches(directory, 2, 0)),
    "held out": (("id", "input_ids", "target"), lambda directory: held_out_batches(directory, 2)),
    "embeddings": (
        ("sentence", "embedding"),
        lambda directory: load_teacher(TeacherConfig(path=str(directory / "part-00000.parquet"))).check(),
    ),
}


@pytest.mark.parametrize("wrong", range(2))
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_a_run_with_pickled_objects_is_refused(hostile, tmp_path, kind, wrong):
    """Somebody else may write to the storage, too."""
    columns, read = TABLES[kind]
    table = pa.table({name: hostile_column(hostile, 2) if i == wrong else [1, 2] for i, name in enumerate(columns)})
    pq.write_table(table, tmp_path / "part-00000.parquet")
    with pytest.raises(UserError, match=rf"\.parquet, column '{columns[wrong]}' has the type .*, which can run code"):
        read(tmp_path)


def test_every_table_is_read_in_the_place_that_checks_it():
    """`rows` reads sources, whose other columns may be anything, and checks those that it takes."""
    pyarrow_s = r"pq\.(read_table|read_pandas|ParquetFile|ParquetDataset)\(|pa\.ipc|pyarrow\.dataset"
    readers = re.compile(rf"{pyarrow_s}|ray\.data\.read|pandas\.read_parquet")
    package = Path(raysed.__file__).parent
    found = {path.name for path in package.rglob("*.py") if readers.search(path.read_text())}
    assert found == {"parquet.py", "rows.py"}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "training_args.bin", "tokenizer.pkl"])
def test_an_encoder_directory_with_a_pickle_runs_nothing(hostile, tiny_encoder_dir, tmp_path, name):
    """In the place of the weights it is refused, beside them it is not read."""
    directory = tmp_path / "encoder"
    shutil.copytree(tiny_encoder_dir, directory)
    if name in ("pytorch_model.bin", "model.safetensors"):
        (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(pickle.dumps(hostile))
    for load in (
        lambda: load_encoder(EncoderConfig(path=str(directory), max_length=16)),
        lambda: load_checkpoint(directory),
    ):
        try:
            load()
        except Exception as error:  # a checkpoint is our own, so that any refusal will do
            assert name in ("pytorch_model.bin", "model.safetensors"), error


def test_an_encoder_with_code_of_its_own_is_refused(hostile, tiny_encoder_dir, tmp_path):
    directory = tmp_path / "encoder"
    shutil.copytree(tiny_encoder_dir, directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own.py").write_text(f"from pathlib import Path\nPath({str(hostile.mark)!r}).touch()\n")
    with pytest.raises(UserError):
        load_encoder(EncoderConfig(path=str(directory), max_length=16))


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_checkpoint_that_is_a_pickle_is_no_state(hostile, tmp_path, name):
    """Even if whoever put it there has corrected the manifest, too."""
    storage = Storage(str(tmp_path), "run")
    checkpoints = storage.checkpoints("model", {})
    checkpoints.save(
        10, lambda path: [(path / part).write_bytes(b"{}") for part in ("state.safetensors", "state.json")]
    )
    place = storage.fetch("checkpoints/model/step-000000010")
    data = pickle.dumps(hostile)
    (place / name).write_bytes(data)
    manifest = tmp_path / "run/manifest/checkpoints/model/step-000000010.json"
    old = hashlib.sha256(b"{}").hexdigest()
    entry = json.loads(manifest.read_text())
    entry["files"][name] = entry["files"][name].replace(old, hashlib.sha256(data).hexdigest())
    manifest.write_text(json.dumps(entry))
    newest = Storage(str(tmp_path), "run").checkpoints("model", {}).newest()
    if newest is not None:
        with pytest.raises(Exception):  # noqa: B017  (safetensors and json have their own)
            load_state(newest[1])


def test_embeddings_that_are_pickles_are_not_loaded(hostile, tmp_path):
    """numpy's format can hold objects; here it may not."""
    from raysed.make.scores import load_embeddings

    storage = Storage(str(tmp_path), "run")
    rows = np.array([hostile], dtype=object)
    storage.commit("ct/embeddings/00", lambda path: np.save(path / "layers-1.npy", rows, allow_pickle=True), {})
    with pytest.raises(ValueError, match="allow_pickle"):
        load_embeddings(storage.fetch("ct/embeddings/00"), 1)


URI_SETTINGS = {
    "storage": lambda uri: {"storage": uri},
    "corpus.source": lambda uri: {"corpus": {"source": uri}},
    "corpus.source ": lambda uri: {"corpus": {"source": ["a.txt", uri]}},
    "evaluation.tasks.mine.source": lambda uri: {"evaluation": {"tasks": {"mine": {"source": uri}}}},
    "evaluation.tasks.mine": lambda uri: {"evaluation": {"tasks": {"mine": uri}}},
    "evaluation.tasks.mine.queries": lambda uri: {"evaluation": {"tasks": {"mine": {"source": "a", "queries": uri}}}},
    "evaluation.tasks.mine.qrels": lambda uri: {"evaluation": {"tasks": {"mine": {"source": "a", "qrels": uri}}}},
    "nli.train": lambda uri: {"nli": {"train": uri}},
    "nli.train.1.source": lambda uri: {"nli": {"train": [{"source": "a.tsv"}, {"source": uri}]}},
    "sts.train": lambda uri: {"sts": {"train": uri}},
    "views.files.0": lambda uri: {"views": {"files": [uri]}},
    "views.mlm_model": lambda uri: {"views": {"mlm_model": uri}},
    "views.pivots": lambda uri: {"views": {"pivots": [[uri, "b"]]}},
    "flow.fit_on": lambda uri: {"flow": {"fit_on": uri}},
    "teachers.0": lambda uri: {"teachers": [uri]},
    "teachers.1.path": lambda uri: {"teachers": ["a", {"path": uri}]},
    "encoder.path": lambda uri: {"encoder": {"path": uri}},
    "encoder.model_kwargs": lambda uri: {"encoder": {"model_kwargs": {"proxies": {"https": uri}}}},
}


@pytest.mark.parametrize("setting", URI_SETTINGS)
@pytest.mark.parametrize(
    ("uri", "problem"),
    [("s3://key:hush@bucket/a.tsv", "a password"), ("s3://bucket/a?session_token=hush", "the parameter session_token")],
)
def test_no_setting_takes_a_uri_with_credentials(setting, uri, problem):
    expected = (
        rf"^setting {re.escape(setting.strip())}: the URI contains {problem}; remove it, because [^\n]*find them$"
    )
    with pytest.raises(UserError, match=expected) as refused:
        make_config(URI_SETTINGS[setting](uri))
    assert "hush" not in str(refused.value)


SECRETS = """
    s3://key:hu@sh@bucket/a  s3://key:hu/sh@bucket/a  abfs://:hush@account/a  sqlite://me:@host  hdfs://u:p@h:1
    s3://b/a?access_key=hush  s3://b/a?region=x&secret_key=hush  S3://b?AWSAccessKeyId=hush  gs://b?access_token=x
    abfs://c@a/x?client_secret=hush  abfs://c@a/x?sv=2024-11-04&sig=hush  abfs://c@a/x?sas-token=hush
    https://b.example/a?X-Amz-Signature=hush  https://b.example/a?X-Amz-Credential=hush  az://c?account_key=hush
    s3://b/a?endpoint_override=http%3A%2F%2Fme%3Ahush%40host  gs://b?password=hush  az://c?accountKey=hush
""".split()
HARMLESS = """
    a.tsv  a:b@c  nyu-mll/glue  package:gt_all/model  file:///a:b/c@d  s3://bucket/a:b@c.tsv  runs?token=1
    s3://bucket/a?region=eu-west-1&scheme=http&endpoint_override=127.0.0.1:9000  hdfs://user@host:8020/a@b
    hdfs://host:8020/a@b  abfs://container@account.dfs.core.windows.net/a?credential_kind=cli&tenant_id=1&client_id=2
    gs://anonymous@bucket/a?project_id=1  s3://bucket/a?.txt  s3://bucket/keys/token.tsv  http://[::1]/a@b  s3://[
    hdfs://host/a?kerb_ticket=/tmp/krb5cc_0&user=me
""".split()


@pytest.mark.parametrize("uri", SECRETS)
def test_credentials_are_found_however_they_are_written(uri):
    with pytest.raises(UserError, match=r"^x: the URI contains (a password|the parameter [\w-]+); ") as refused:
        refuse_secret(uri, "x")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("uri", HARMLESS)
def test_what_is_no_secret_is_taken(uri):
    refuse_secret(uri, "x")


@pytest.mark.parametrize("read", [lambda uri: Storage(uri, "run"), lambda uri: find(uri, "storage", "x", None)])
def test_what_does_not_come_from_settings_is_checked_too(read):
    """As the options of `status` and `evaluate`."""
    with pytest.raises(UserError, match=r"^storage: the URI contains a password; ") as refused:
        read("s3://key:hush@bucket/runs")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("address", [("198.51.100.1", 80), ("huggingface.co", 443)])
def test_tests_reach_no_other_machine(address):
    """What the fixture of all tests promises."""
    with pytest.raises(RuntimeError, match="a test tried to reach"), socket.socket() as connection:
        connection.settimeout(1)
        connection.connect(address)
    with pytest.raises(RuntimeError, match="a test tried to reach"):
        socket.getaddrinfo(*address)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 1):
        pass

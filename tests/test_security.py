"""Hostile files run no code, not as an encoder, not as a checkpoint, not as a corpus; and URIs keep no secret."""

import ast
import hashlib
import io
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
from papers import views
from raysed import cli
from raysed.config import CorpusConfig, EncoderConfig, PairSource, TeacherConfig
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.pairs import load_nli, read_pairs
from raysed.data.parquet import SentenceTable
from raysed.data.sources import find
from raysed.data.targets import TargetBatches, held_out_batches
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.make.scores import load_embeddings
from raysed.model.encoding import encode
from raysed.model.library import export_model, parity
from raysed.model.pretrained import load_checkpoint, load_encoder
from raysed.model.teacher import load_teacher
from raysed.report.card import has_own_code
from raysed.store.storage import Storage
from raysed.train.state import load_state
from raysed.uris import refuse_secret

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("raysed", "benchmarks", "examples", "jobs", "papers", "tools")


class Hostile:
    """Leaves a mark when somebody unpickles it."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)

    def ran(self) -> bool:
        """Whether there was a mark, which goes."""
        found = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return found


@pytest.fixture
def hostile(tmp_path) -> Hostile:
    """What must not run; that it would, is checked first."""
    made = Hostile(tmp_path / "code-ran")
    pickle.loads(pickle.dumps(made))
    assert made.ran()
    yield made
    assert not made.ran(), "code of the file ran"


def hostile_column(hostile: Hostile, rows: int) -> pa.Array:
    """Ray's type for pickled objects, which unpickles when values are read; importing Ray Data makes it known."""
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

    storage = pa.array([pickle.dumps(hostile)] * rows, pa.large_binary())
    return pa.ExtensionArray.from_storage(ArrowPythonObjectType(), storage)


READERS = {
    "corpus": (("text",), lambda path: list(sentence_chunks(CorpusConfig(source=str(path)), 0, CorpusReport()))),
    "nli": (("premise", "hypothesis", "label"), lambda path: load_nli([PairSource(source=str(path))])),
    "sentences": (("id", "input_ids", "sentence"), lambda path: SentenceTable(path.parent)),
    "pairs": (
        ("id", "sentence1", "sentence2", "input_ids1", "input_ids2", "label"),
        lambda path: read_pairs(path.parent),
    ),
    "targets": (("id", "target", "input_ids"), lambda path: TargetBatches(path.parent, 2, 0)),
    "held out": (("id", "target", "input_ids"), lambda path: held_out_batches(path.parent, 2)),
}


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("kind", READERS)
def test_a_table_with_pickled_objects_is_refused(hostile, tmp_path, kind, is_nested):
    """Of a user or of a run, to whose storage somebody else may write. Read without care, it runs."""
    (*others, wrong), read = READERS[kind]
    column, path = hostile_column(hostile, 2), tmp_path / "part-00000.parquet"
    if is_nested:
        column = pa.ListArray.from_arrays([0, 1, 2], column)
    pq.write_table(pa.table({**{name: ["a", "b"] for name in others}, wrong: column}), path)
    pq.read_table(path)[wrong].to_pylist()
    assert hostile.ran()
    with pytest.raises(UserError, match=rf"\.parquet, column '{wrong}' has the type .*, which can run code; save it"):
        read(path)


def test_embeddings_are_read_from_their_storage_where_nothing_runs(hostile, tmp_path):
    """Also those that are none: the registered type would unpickle them."""
    pq.write_table(pa.table({"sentence": ["a", "b"], "embedding": hostile_column(hostile, 2)}), tmp_path / "x.parquet")
    with pytest.raises(
        UserError, match="must hold lists of numbers in its column embedding, which has the type binary"
    ):
        load_teacher(TeacherConfig(path=str(tmp_path))).check()
    assert not hostile.ran()


def code_of(path: Path) -> str:
    """A file's code without its docstrings, which may show what users write."""
    return re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)


def test_every_table_is_read_in_the_place_that_checks_it():
    """`rows` reads sources, whose other columns may be anything, and checks those that it takes."""
    pyarrow_s = r"pq\.(read_table|read_pandas|ParquetFile|ParquetDataset)\(|pa\.ipc|pyarrow\.dataset"
    readers = re.compile(rf"{pyarrow_s}|ray\.data\.read|pandas\.read_parquet")
    package = Path(raysed.__file__).parent
    found = {path.name for path in package.rglob("*.py") if readers.search(code_of(path))}
    assert found == {"parquet.py", "rows.py"}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "training_args.bin"])
def test_an_encoder_directory_with_a_pickle_runs_nothing(hostile, tiny_encoder_dir, tmp_path, name):
    """In the place of the weights it is refused, beside them it is not read."""
    directory, in_place = tmp_path / "encoder", name != "training_args.bin"
    shutil.copytree(tiny_encoder_dir, directory)
    if in_place:
        (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(pickle.dumps(hostile))
    for load in (load_checkpoint, lambda path: load_encoder(EncoderConfig(path=str(path), max_length=16))):
        if in_place:
            with pytest.raises(Exception):  # noqa: B017  (a checkpoint is our own, so that any refusal will do)
                load(directory)
        else:
            load(directory)


RUNS_CODE = ("from_pretrained", "from_config", "SentenceTransformer", "SparseEncoder", "CrossEncoder")


def test_every_load_of_a_model_says_whether_its_code_may_run():
    """Without the keyword, transformers asks on the terminal, and a pipe may answer. Modules made here have no code."""
    asking = []
    for path in (path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            keywords = {keyword.arg for keyword in call.keywords}
            if ast.unparse(call.func).split(".")[-1] in RUNS_CODE and not keywords & {"trust_remote_code", "modules"}:
                asking.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert asking == []


MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
PIVOT = "back_translation --pivot m m --output views.parquet"


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("evaluate --models m --task pairs.tsv --pool-layers 2", "config.json model.safetensors"),
        ("evaluate --models m --task pairs.tsv", "config.json model.safetensors modules.json"),
        (
            "distill --teachers m --learner bundled:encoder --corpus bundled:generated-text",
            "config.json model.safetensors",
        ),
        (PIVOT, "config.json model.safetensors"),
    ],
)
def test_code_of_a_model_does_not_run_whatever_a_pipe_answers(hostile, monkeypatch, tmp_path, capfd, command, files):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 99))
    monkeypatch.setattr("sys.argv", ["raysed", *command.split()])
    auto_map = {"AutoConfig": "own.Own", "AutoModel": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    hidden = {"model_type": "own", "tokenizer_class": "Own", "auto_map": auto_map}
    Path("m/1_Pooling").mkdir(parents=True)
    Path("m/1_Pooling/config.json").write_text('{"embedding_dimension": 16, "pooling_mode": "mean"}')
    for name in files.split():
        Path("m", name).write_text(json.dumps(MODULES if name == "modules.json" else hidden))
    Path("m/own.py").write_text(f"from pathlib import Path\nPath({str(hostile.mark)!r}).touch()\n")
    Path("pairs.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n3\te\tf\n")
    code = cli.main_of(views.job, views.parser(), arguments=PIVOT.split()) if command == PIVOT else cli.main()
    said = capfd.readouterr().err
    assert code == 2 and "contains custom code" in said, said


def test_code_that_a_configuration_names_does_not_run_at_the_export(tiny_encoder_dir, tmp_path):
    """It came with an encoder of a known kind, whose own class was not used; an export keeps the configuration."""
    encoder = shutil.copytree(tiny_encoder_dir, tmp_path / "encoder")
    config = json.loads((encoder / "config.json").read_text()) | {"auto_map": {"AutoModel": "own.Own"}}
    (encoder / "config.json").write_text(json.dumps(config))
    loaded, tokenizer = load_encoder(EncoderConfig(path=str(encoder), max_length=16))
    x_ND = encode(loaded, tokenize(tokenizer, ["The cat sat."], 16))[0]
    export_model(loaded, tokenizer, tmp_path / "model", layers=1, max_length=16, calibration=None)
    assert has_own_code(tmp_path / "model") and parity(tmp_path / "model", ["The cat sat."], x_ND) < 1e-5


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_checkpoint_that_is_a_pickle_is_no_state(hostile, tmp_path, name):
    """Even if whoever put it there has corrected the manifest, too."""
    checkpoints = Storage(str(tmp_path), "run").checkpoints("model", {})
    checkpoints.save(10, lambda path: [(path / f"state.{end}").write_bytes(b"{}") for end in ("safetensors", "json")])
    data = pickle.dumps(hostile)
    (Storage(str(tmp_path), "run").fetch("checkpoints/model/step-000000010") / name).write_bytes(data)
    manifest = tmp_path / "run/manifest/checkpoints/model/step-000000010.json"
    entry, (old, new) = json.loads(manifest.read_text()), (hashlib.sha256(d).hexdigest() for d in (b"{}", data))
    entry["files"][name] = entry["files"][name].replace(old, new)
    manifest.write_text(json.dumps(entry))
    newest = Storage(str(tmp_path), "run").checkpoints("model", {}).newest()
    if newest is not None:
        with pytest.raises(Exception):  # noqa: B017  (safetensors and json have their own)
            load_state(newest[1])


def test_embeddings_that_are_pickles_are_not_loaded(hostile, tmp_path):
    """numpy's format can hold objects; here it may not."""
    storage, rows = Storage(str(tmp_path), "run"), np.array([hostile], dtype=object)
    storage.commit("ct/embeddings/00", lambda path: np.save(path / "layers-1.npy", rows, allow_pickle=True), {})
    with pytest.raises(ValueError, match="allow_pickle"):
        load_embeddings(storage.fetch("ct/embeddings/00"), 1)


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
    hdfs://host/a?kerb_ticket=/tmp/krb5cc_0&user=me  s3://bucket/a?pad_token_id=0&tokenizer=x
""".split()


def test_credentials_are_found_however_they_are_written():
    """Also in options, such as `status --storage`; settings are in the table of test_hostile_inputs.py."""
    for read in (lambda uri: Storage(uri, "run"), lambda uri: find(uri, "storage", "x", None)):
        with pytest.raises(UserError, match=r"^storage: the URI contains a password; "):
            read("s3://key:hush@bucket/runs")
    for uri in SECRETS:
        with pytest.raises(UserError, match=r"^x: the URI contains (a password|the parameter [\w-]+); ") as refused:
            refuse_secret(uri, "x")
        assert "hush" not in str(refused.value)
    for uri in HARMLESS:
        refuse_secret(uri, "x")


def test_tests_reach_no_other_machine():
    """What the fixture of all tests promises."""
    for host, port in (("198.51.100.1", 80), ("huggingface.co", 443)):
        with pytest.raises(RuntimeError, match="a test tried to reach"), socket.socket() as connection:
            connection.settimeout(1)
            connection.connect((host, port))
        with pytest.raises(RuntimeError, match="a test tried to reach"):
            socket.getaddrinfo(host, port)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 1):
        pass

"""An S3 on this machine: moto's server, which speaks the protocol, and a bucket in it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as pafs
from moto.server import ThreadedMotoServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_bucket(name: str = "bucket") -> Iterator[str]:
    """Yields the URI of a bucket; credentials are taken from the environment, as those of users are."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # or every request is a line
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        uri = f"s3://{name}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        fs, _ = pafs.FileSystem.from_uri(f"{uri}&allow_bucket_creation=true")
        fs.create_dir(name)
        yield uri
    finally:
        server.stop()


def below(uri: str, path: str) -> str:
    """Returns the URI of a path below a bucket."""
    bucket, _, options = uri.partition("?")
    return f"{bucket}/{path}?{options}"

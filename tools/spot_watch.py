"""Drain a Ray node when AWS gives notice that it will take the spot machine away.

`cluster.yaml` copies this file to the workers and starts it beside Ray. It needs no library. AWS gives notice two
minutes ahead, at an address that only the machine itself can reach. Ray then starts nothing new on the node, and
trainings there save their state every ten updates.

    python spot_watch.py

It ends when the node is drained. A second process on the same machine ends at once.
"""

import argparse
import fcntl
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

ENDPOINT = "http://169.254.169.254"
"""Of the metadata service; `AWS_EC2_METADATA_SERVICE_ENDPOINT` replaces it, as in Amazon's tools."""
_NOTICE, _TOKEN = "latest/meta-data/spot/instance-action", "latest/api/token"
_SECONDS_OF_TOKEN = 6 * 3600
_PATIENCE = 5.0
"""Timeout of a request in seconds; the service is on the machine's host."""
_DRAIN_SECONDS = 60


class Metadata:
    """The machine's metadata service, version 2: each request carries a token, which is fetched first."""

    def __init__(self, endpoint: str):
        self._endpoint, self._token = endpoint.rstrip("/"), ""

    def notice(self) -> dict[str, str] | None:
        """Return AWS' `action` on the machine and its `time`, or None without a notice.

        Raises:
            OSError: the service does not answer, or refuses.
        """
        if not self._token:
            self._token = self._ask(_TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(_SECONDS_OF_TOKEN)}, "PUT")
        try:
            return json.loads(self._ask(_NOTICE, {"X-aws-ec2-metadata-token": self._token}))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code == 401:  # the token has expired: the next request fetches a new one
                self._token = ""
                return None
            raise

    def _ask(self, path: str, headers: dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(f"{self._endpoint}/{path}", headers=headers, method=method)
        no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with no_proxy.open(request, timeout=_PATIENCE) as answer:
            return answer.read().decode()


def seconds_until(time_of_end: str) -> int:
    """Return the seconds until a time such as `2027-01-31T08:22:00Z`; 0 if it has passed.

    >>> seconds_until("2020-01-31T08:22:00Z")
    0
    """
    end = datetime.strptime(time_of_end, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return max(math.floor((end - datetime.now(timezone.utc)).total_seconds()), 0)


def drain(action: str, seconds: int) -> bool:
    """Tell Ray to drain this node; return whether it accepts.

    Args:
        action: AWS' action: `terminate`, `stop` or `hibernate`.
        seconds: until the action.
    """
    command = ["ray", "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", f"AWS will {action} this spot instance"]
    command += ["--deadline-remaining-seconds", str(seconds)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=_DRAIN_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"the node is not drained: {error}")
        return False
    log(f"ray drain-node ended with {done.returncode}, {seconds} s before the end")
    return done.returncode == 0


def watch(metadata: Metadata, pause: float) -> None:
    """Wait for the notice and drain the node; try again until Ray accepts. `pause` is in seconds."""
    trouble = ""
    while True:
        try:
            if (notice := metadata.notice()) and drain(notice["action"], seconds_until(notice["time"])):
                return
            trouble = ""
        except (OSError, ValueError, KeyError) as error:  # the service may be back at the next request
            if str(error) != trouble:
                trouble = str(error)
                log(f"the metadata service gives no valid answer: {trouble}")
        time.sleep(pause)


def log(text: str) -> None:
    """Print a line with the time."""
    print(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} {text}", flush=True)


def main() -> int:
    """Watch until the node is drained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="pause between requests")
    parser.add_argument("--lock", type=Path, default=Path(tempfile.gettempdir(), f"spot_watch_{os.getuid()}.lock"))
    arguments = parser.parse_args()
    with arguments.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("another one is watching already")
            return 0
        log("watching")
        watch(Metadata(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT), arguments.every)
    return 0


if __name__ == "__main__":
    sys.exit(main())

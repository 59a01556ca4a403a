"""Machines on one machine: network, process and mount namespaces with an SSH server in each, for `ray up`.

A host has its own address, processes, home directory and Ray's temporary directory; the rest of the disk is shared.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

BRIDGE = "raysed-br"
NETWORK = "10.213.77"
_PROGRAMS = ("ip", "unshare", "nsenter", "mount", "sshd", "ssh", "ssh-keygen", "rsync")
_SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

_BOOT = """
set -e
hostname {name}
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/home/.ssh /run/sshd /tmp/ray
cp {keys}/key.pub /mnt/home/.ssh/authorized_keys
mount -t tmpfs tmpfs /tmp/ray
sed 's|^root:.*|root:x:0:0:root:/mnt/home:/bin/bash|' /etc/passwd > /mnt/passwd
mount --bind /mnt/passwd /etc/passwd
ip link set lo up
exec {sshd} -D -e -f /dev/null -o HostKey={keys}/host -o AuthorizedKeysFile=/mnt/home/.ssh/authorized_keys \
    -o PermitRootLogin=yes -o StrictModes=no -o UsePAM=no -o PidFile=none -o ListenAddress=0.0.0.0 -o MaxStartups=50
"""


def missing_programs() -> str:
    """Returns what this machine lacks for hosts: programs, or the right to use them; empty where all is there."""
    absent = [program for program in _PROGRAMS if _find(program) is None]
    return ", ".join(absent) if absent or not os.geteuid() else "root"


def _outside(name: str) -> str:
    """A host's end of its cable on this machine."""
    return f"{name[-8:]}o"


def _find(program: str) -> str | None:
    return shutil.which(program, path=_SEARCHED)


class Hosts:
    """Hosts with the addresses 10.213.77.1, .2, ...; a context manager.

    Args:
        count: how many.
        directory: gets the keys: `key` opens all of them for the user root.
    """

    def __init__(self, count: int, directory: Path):
        self.addresses = [f"{NETWORK}.{number}" for number in range(1, count + 1)]
        self.key = directory / "key"
        self._directory = directory
        self._names = [f"raysed-h{number}" for number in range(1, count + 1)]
        self._servers: list[subprocess.Popen] = []

    def __enter__(self) -> "Hosts":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers:
            server.kill()  # --kill-child: the process namespace goes with it
            server.wait()
        for name in self._names:
            subprocess.run(["ip", "link", "del", _outside(name)], capture_output=True)  # else it goes when all ended
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)

    def processes(self, address: str) -> list[str]:
        """Returns the command lines of all processes of a host but its SSH server's own."""
        server = self._servers[self.addresses.index(address)]
        child = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[0]
        done = _run("nsenter", "-t", child, "-p", "-m", "ps", "-ww", "-eo", "args", "--no-headers")
        return [line for line in done.splitlines() if "sshd" not in line and not line.startswith("ps -ww")]

    def reaches(self, address: str, other: str, port: int) -> bool:
        """Whether somebody answers on a port of another host."""
        return self.ssh(address, f"timeout 5 bash -c '</dev/tcp/{other}/{port}'").returncode == 0

    def _start(self) -> None:
        for name in ("key", "host"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._directory / name))
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        for name, address in zip(self._names, self.addresses, strict=True):
            self._connect(name, address)
            self._servers.append(self._boot(name))
        for address in self.addresses:
            self._wait_for(address)

    def _connect(self, name: str, address: str) -> None:
        outside = _outside(name)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", outside, "master", BRIDGE)
        _run("ip", "link", "set", outside, "up")
        _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "route", "add", "default", "via", f"{NETWORK}.254")

    def _boot(self, name: str) -> subprocess.Popen:
        script = _BOOT.format(name=name, keys=self._directory, sshd=_find("sshd"))
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts"]
        with open(self._directory / f"{name}.log", "w") as log:
            return subprocess.Popen(["ip", "netns", "exec", name, *unshare, "sh", "-c", script], stdout=log, stderr=log)

    def _wait_for(self, address: str) -> None:
        until = time.monotonic() + 30
        while self.ssh(address, "true").returncode:
            if time.monotonic() > until:
                logs = "\n".join(path.read_text() for path in self._directory.glob("*.log"))
                raise TimeoutError(f"{address} does not answer:\n{logs}")
            time.sleep(0.2)

    def ssh(self, address: str, *command: str) -> subprocess.CompletedProcess:
        """Runs a command on a host."""
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5"]
        words = ["ssh", "-q", "-i", str(self.key), *options, f"root@{address}", *command]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

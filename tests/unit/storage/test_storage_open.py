"""open_store and the file system under a path."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from flatout.errors import ConfigError, DataError, UserError
from flatout.machine.mounts import is_fuse_mount, remote_type
from flatout.storage import open_store
from flatout.storage.local import FolderStore, TarStore
from flatout.storage.object_store import ObjectStore


def test_the_kind_follows_from_the_address(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO())
    assert isinstance(open_store(str(tmp_path)), FolderStore)
    assert isinstance(open_store(str(tmp_path / "t.tar")), TarStore)
    for url in ("s3://bucket/x", "gs://bucket/x", "az://container/x"):
        assert isinstance(open_store(url), ObjectStore)


def test_file_urls_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert open_store(f"file://{tmp_path}/a%20b").url == str(tmp_path / "a b")


def test_a_missing_path_is_named_with_what_to_do() -> None:
    with pytest.raises(DataError, match=r"^/no/such/place does not exist; .*flatout data make") as error:
        open_store("/no/such/place")
    assert "\n" not in str(error.value)


def test_other_files_and_schemes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.rar").write_bytes(b"PK")
    with pytest.raises(DataError, match="unknown kind"):
        open_store(str(tmp_path / "x.rar"))
    with pytest.raises(DataError, match="https://") as error:
        open_store("https://user:canary@host/x")
    assert "canary" not in str(error.value)


def test_a_compressed_tar_is_explained_when_it_is_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz"):
        pass
    with pytest.raises(UserError, match="gzip -d"):
        list(open_store(str(tmp_path / "t.tar.gz")).entries())


def test_options_without_a_meaning_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="region"):
        open_store(str(tmp_path), region="x")


def test_read_options_and_store_options_are_told_apart() -> None:
    store = open_store("s3://bucket", max_in_flight=3, deadline_seconds=5.0, region="eu-west-1")
    assert isinstance(store, ObjectStore)
    assert (store.reading.max_in_flight, store.reading.deadline_seconds) == (3, 5.0)
    assert store.options == {"region": "eu-west-1"}


def test_importing_the_room_is_light() -> None:
    code = "import sys, flatout.storage; sys.exit(any(name in sys.modules for name in ('obstore', 'numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


MOUNTS = r"""
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /mnt/rclone rw,nosuid - fuse.rclone remote:bucket rw,user_id=0
31 22 0:41 / /mnt/s3 rw,nosuid - fuse mountpoint-s3 rw,user_id=0
32 22 0:42 / /mnt/s3fs rw shared:9 - fuse.s3fs s3fs rw
33 22 0:43 / /mnt/with\040space rw - fuse.geesefs bucket rw
34 22 0:44 / /home rw - nfs4 server:/home rw
35 34 0:45 / /home/me/fast rw - xfs /dev/nvme0n1 rw
36 22 0:46 / /var/lib/lxcfs rw - fuse.lxcfs lxcfs rw
37 22 0:47 / /mnt/over rw - fuse.rclone remote:x rw
38 22 0:48 / /mnt/over rw - ext4 /dev/sdb rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data", None),
        ("/mnt/rclone", "fuse.rclone"),
        ("/mnt/rclone/deep/er", "fuse.rclone"),
        ("/mnt/rclone-not", None),
        ("/mnt/s3/x", "fuse.mountpoint-s3"),
        ("/mnt/s3fs/x", "fuse.s3fs"),
        ("/mnt/with space/x", "fuse.geesefs"),
        ("/home/me", "nfs4"),
        ("/home/me/fast/x", None),
        ("/var/lib/lxcfs/x", None),
        ("/mnt/over/x", None),
    ],
)
def test_mounts(path: str, kind: str | None) -> None:
    assert remote_type(path, MOUNTS) == kind


def test_this_machine_can_be_asked(tmp_path: Path) -> None:
    assert is_fuse_mount(str(tmp_path)) in (None, is_fuse_mount(str(tmp_path / "..")))


def test_a_tar_in_an_object_store_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(DataError, match=r"images\.tar is a tar in an object store.*flatout data pack"):
        open_store("s3://bucket/images.tar")

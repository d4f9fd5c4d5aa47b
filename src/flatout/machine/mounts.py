"""What is mounted where. On a network or user-space file system each open costs a round trip, and staging may pay."""

import os
import re

_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "beegfs", "9p", "afs", "glusterfs")
_LOCAL_FUSE = ("fuse.lxcfs", "fuse.fuse-overlayfs", "fuse.gvfsd-fuse", "fuse.portal")


def is_fuse_mount(path: str) -> str | None:
    """The file system's type, such as fuse.rclone, fuse.mountpoint-s3 or nfs4; None for an ordinary local disk."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            table = file.read()
    except OSError:
        return None  # not Linux: nothing is known, so nothing is claimed
    return remote_type(os.path.realpath(path), table)


def remote_type(real_path: str, mountinfo: str) -> str | None:
    """Decided from the text of /proc/self/mountinfo."""
    file_system, source = deepest_mount(real_path, mountinfo)
    # mountpoint-s3 and blobfuse mount as plain "fuse" and give their name as the source
    kind = f"fuse.{source}" if file_system == "fuse" else file_system
    is_remote = kind in _REMOTE or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
    return kind if is_remote else None


def deepest_mount(real_path: str, mountinfo: str) -> tuple[str, str]:
    """Type and source of what is mounted at the deepest mount point above a path, of equals the last."""
    depth, found = -1, ("", "")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = _unescape(before.split(" ")[4]).rstrip("/")
        if (real_path == point or real_path.startswith(point + "/")) and len(point) >= depth:
            kind, source = after.split(" ")[:2]
            depth, found = len(point), (kind, source)
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)

"""Is a path on a network or user-space file system? Then each open costs a round trip, and staging may pay."""

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
    """Decided from the text of /proc/self/mountinfo; the deepest mount above the path counts, of equals the last."""
    depth, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = _unescape(before.split(" ")[4])
        inside = real_path == mount_point or real_path.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= depth:
            file_system, source = after.split(" ")[:2]
            # mountpoint-s3 and blobfuse mount as plain "fuse" and give their name as the source
            depth, kind = len(mount_point), f"fuse.{source}" if file_system == "fuse" else file_system
    is_remote = kind in _REMOTE or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
    return kind if is_remote else None


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)

"""The same few pictures in every layout that flatout reads."""

import csv
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n02119789", "n09193705")


def picture(seed: int, side: int = 40, kind: str = "JPEG") -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(coarse).resize((side + seed % 7, side), Image.Resampling.BICUBIC).save(out, kind)
    return out.getvalue()


def pictures(classes: tuple[str, ...] = ("cat", "dog", "eel"), train: int = 6, val: int = 2) -> dict[str, bytes]:
    """`<split>/<class>/<file>` -> bytes."""
    files = {}
    for number, name in enumerate(classes):
        for split, count in (("train", train), ("val", val)):
            for each in range(count):
                files[f"{split}/{name}/{split[0]}{each}.jpg"] = picture(1000 * number + 100 * (split == "val") + each)
    return files


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def tar_of(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def write_zip(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED, root: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(root + name, data)
    return path


def imagenet_files(train: int = 4, val: int = 6) -> dict[str, bytes]:
    """As in the folder that everybody makes of ImageNet."""
    files = {f"train/{w}/{w}_{k}.JPEG": picture(100 * n + k) for n, w in enumerate(WNIDS) for k in range(train)}
    return files | {f"val/{WNIDS[k % 3]}/ILSVRC2012_val_{k + 1:08d}.JPEG": picture(900 + k) for k in range(val)}


def imagenet_downloads(files: Mapping[str, bytes], nested: bool, truth: str) -> dict[str, bytes]:
    """The same as downloaded: `nested` is one tar of tars, else a folder of them; `truth` is kaggle, devkit, tar.gz or map."""
    classes = {
        wnid: tar_of({name.split("/")[2]: data for name, data in files.items() if name.startswith(f"train/{wnid}/")})
        for wnid in WNIDS
    }
    tars = {f"{wnid}.tar": data for wnid, data in classes.items()}
    flat = {name.split("/")[2]: data for name, data in files.items() if name.startswith("val/")}
    of = {name.split("/")[2]: name.split("/")[1] for name in files if name.startswith("val/")}
    out = {"ILSVRC2012_img_train.tar": tar_of(tars)} if nested else {f"train/{name}": tars[name] for name in tars}
    out |= {"ILSVRC2012_img_val.tar": tar_of(flat)} if nested else {f"val/{name}": flat[name] for name in flat}
    ids = {wnid: number for number, wnid in enumerate(reversed(WNIDS), 1)}  # another order than that of the names
    numbers = "".join(f"{ids[of[name]]}\n" for name in sorted(flat)).encode()
    devkit = {"ILSVRC2012_validation_ground_truth.txt": numbers, "meta.mat": meta_mat(ids)}
    if truth == "kaggle":
        rows = "".join(f"{name[:-5]},{of[name]} 1 2 3 4 \n" for name in sorted(flat))
        out["LOC_val_solution.csv"] = b"ImageId,PredictionString\n" + rows.encode()
    elif truth == "devkit":
        out |= {f"ILSVRC2012_devkit_t12/data/{name}": data for name, data in devkit.items()}
    elif truth == "map":
        out["ILSVRC2012_validation_ground_truth.txt"] = numbers
        out["map_clsloc.txt"] = "".join(f"{wnid} {number} thing\n" for wnid, number in ids.items()).encode()
    elif truth == "tar.gz":
        whole = tar_of({f"ILSVRC2012_devkit_t12/data/{name}": data for name, data in devkit.items()})
        packer = zlib.compressobj(wbits=31)
        out["ILSVRC2012_devkit_t12.tar.gz"] = packer.compress(whole) + packer.flush()
    return out


def meta_mat(ids: Mapping[str, int], first: float | None = None) -> bytes:
    """A level 5 MAT file as MATLAB writes it: a deflated struct array `synsets`; `first` in place of the first number."""

    def element(kind: int, data: bytes) -> bytes:
        return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)

    def matrix(kind: int, shape: tuple[int, int], name: bytes, *parts: bytes) -> bytes:
        head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack("<ii", *shape)) + element(1, name)
        return element(14, head + b"".join(parts))

    def small(kind: int, data: bytes) -> bytes:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")

    values = []
    for wnid, number in ids.items():
        kept = small(2, bytes([number])) if values or first is None else element(9, struct.pack("<d", first))
        values.append(matrix(6, (1, 1), b"", kept))  # a double kept in a byte
        values.append(matrix(4, (1, 9), b"", element(16, wnid.encode())))
        values.append(matrix(6, (1, 2), b"", element(9, struct.pack("<dd", 1, 2))))
    fields = small(5, struct.pack("<i", 32)) + element(
        1, b"".join(name.ljust(32, b"\0") for name in (b"ILSVRC2012_ID", b"WNID", b"children"))
    )
    packed = zlib.compress(matrix(2, (len(ids), 1), b"synsets", fields, *values))
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<HH", 0x0100, 0x4D49)
    return header + struct.pack("<II", 15, len(packed)) + packed


def table_of(files: Mapping[str, bytes], delimiter: str = ",", bom: bool = False) -> bytes:
    """`path, label, split` in another order, every value quoted."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerow(["Split", "Label", "Path"])
    for name in files:
        split, label, _ = name.split("/")
        writer.writerow([split, label, name])
    return ("\ufeff" if bom else "").encode() + out.getvalue().encode()


def jsonl_of(files: Mapping[str, bytes], split: str) -> bytes:
    names = [name for name in files if name.startswith(f"{split}/")]
    rows = [{"file_name": name.removeprefix(f"{split}/"), "label": name.split("/")[1], "width": 1} for name in names]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def tiny_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """As Tiny-ImageNet comes: an `images` folder in each class, a flat validation split with its table."""
    out, lines = {}, []
    for name, data in files.items():
        split, label, file = name.split("/")
        if split == "train":
            out[f"train/{label}/images/{file}"] = data
        else:
            out[f"val/images/{label}-{file}"] = data
            lines.append(f"{label}-{file}\t{label}\t0\t0\t9\t9")
    return {**out, "val/val_annotations.txt": "\n".join(lines).encode()}


def webdataset_of(files: Mapping[str, bytes], shards: int = 2) -> dict[str, bytes]:
    """Shards of images with numbers, and the list of classes."""
    classes = sorted({name.split("/")[1] for name in files})
    out = {"classes.txt": "\n".join(classes).encode()}
    for split in ("train", "val"):
        names = [name for name in files if name.startswith(f"{split}/")]
        for shard in range(shards):
            members: dict[str, bytes] = {}
            for name in names[shard::shards]:
                members[name] = files[name]
                members[name.rsplit(".", 1)[0] + ".cls"] = str(classes.index(name.split("/")[1])).encode()
            out[f"{split}-{shard:06d}.tar"] = tar_of(members)
    return out


def write_parquet(path: Path, files: Mapping[str, bytes], split: str, **more: Any) -> None:
    """As `datasets` writes it: image with bytes and path, label with the names in the schema."""
    import pyarrow as pa
    from pyarrow import parquet

    classes = sorted({name.split("/")[1] for name in files})
    names = [name for name in files if name.startswith(f"{split}/")]
    features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
    images = [{"bytes": files[name], "path": name.rsplit("/", 1)[1]} for name in names]
    labels = [classes.index(name.split("/")[1]) for name in names]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": pa.array(labels, pa.int64())})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=4, **more)


def mds_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Two splits, each an index and one shard of `class: int` and `image: jpeg`, in the order of MDSWriter."""
    classes = sorted({name.split("/")[1] for name in files})
    out = {"classes.txt": "\n".join(classes).encode()}
    for split in ("train", "val"):
        names = [name for name in files if name.startswith(f"{split}/")]
        samples = [
            struct.pack("<Iq", len(files[name]), classes.index(name.split("/")[1])) + files[name] for name in names
        ]
        config = b"{}"
        begin = 4 + 4 * (len(samples) + 1) + len(config)
        ends = np.cumsum([begin, *map(len, samples)]).astype("<u4")
        shard = struct.pack("<I", len(samples)) + ends.tobytes() + config + b"".join(samples)
        out[f"{split}/shard.00000.mds"] = shard
        description = {
            "column_encodings": ["int", "jpeg"], "column_names": ["class", "image"], "column_sizes": [8, None],
            "compression": None, "format": "mds", "hashes": [], "samples": len(samples), "version": 2, "zip_data": None,
            "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
        }  # fmt: skip
        out[f"{split}/index.json"] = json.dumps({"version": 2, "shards": [description]}).encode()
    return out

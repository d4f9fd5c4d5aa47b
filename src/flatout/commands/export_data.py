"""Write a dataset in a format of others."""

from pathlib import Path
from typing import Any

from flatout.commands.pack import data_of, followed
from flatout.data.source.dataset import open_dataset
from flatout.data.source.webdataset_writer import write_webdataset
from flatout.errors import ConfigError, NoSpace
from flatout.machine.budgets import free_bytes
from flatout.units import format_bytes


def export_dataset(
    source: str,
    target: Path,
    to: str,
    shard_bytes: int,
    quiet: bool,
    layout: str = "detect",
    label_column: str | None = None,
) -> dict[str, Any]:
    """Every split of a dataset as WebDataset shards in an empty folder."""
    if to != "webdataset":
        raise ConfigError(f"--to is {to!r}; datasets are exported to webdataset (flatout data unpack writes folders)")
    dataset = open_dataset(data_of(source, layout, label_column))
    room = free_bytes(target.absolute())
    if room < dataset.total_bytes:
        raise NoSpace(
            f"exporting needs {format_bytes(dataset.total_bytes)} but {target} has {format_bytes(room)} free; free "
            "some space or choose another folder"
        )
    done = followed(write_webdataset(dataset, target, shard_bytes), dataset, "exporting", quiet)
    shards = len(list(target.glob("*.tar")))
    return {"folder": str(target), "format": to, "shards": shards, "fingerprint": dataset.fingerprint, **done}

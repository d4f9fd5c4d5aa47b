"""One file per command, no logic."""


def register() -> None:
    """Importing a command's file adds it to the command line."""
    from flatout.cli import bench, config, data, demo, import_log, lr_find, pack, report, runs, train  # noqa: F401

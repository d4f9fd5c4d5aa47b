"""One file per command, no logic."""


def register() -> None:
    """Importing a command's file adds it to the command line."""
    from flatout.cli import (  # noqa: F401
        bench,
        compare,
        config,
        data,
        demo,
        import_log,
        lr_find,
        pack,
        report,
        runs,
        suite,
        train,
        translate,
    )

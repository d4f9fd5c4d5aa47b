"""One file per command, no logic."""


def register() -> None:
    """Importing a command's file adds it to the command line."""
    from flatout.cli import (  # noqa: F401
        bench,
        compare,
        config,
        data,
        demo,
        doctor,
        explain,
        fit,
        import_log,
        lr_find,
        pack,
        plan,
        predict,
        prices,
        probe,
        report,
        runs,
        serve,
        simulate,
        suite,
        train,
        translate,
        tune,
    )

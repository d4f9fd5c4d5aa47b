"""One file per command, no logic."""


def register() -> None:
    """Importing a command's file adds it to the command line."""
    from flatout.cli import (  # noqa: F401
        bench,
        classify,
        compare,
        config,
        dashboard,
        data,
        demo,
        doctor,
        evaluate,
        explain,
        export,
        fit,
        import_log,
        init,
        lr_find,
        pack,
        plan,
        predict,
        prices,
        probe,
        recipes,
        record,
        report,
        runs,
        serve,
        simulate,
        suite,
        sweep,
        train,
        translate,
        tune,
    )

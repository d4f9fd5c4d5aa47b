from flatout.cli.apps import config_app
from flatout.cli.options import Assignments, ConfigPath, Json
from flatout.cli.output import print_json


@config_app.callback()
def group() -> None:
    """Look at configurations."""


@config_app.command()
def show(config: ConfigPath, assignments: Assignments = None, as_json: Json = False) -> None:
    """Show every key with its value and where the value came from."""
    from flatout.commands.show import print_config, show_config

    keys = show_config(config, assignments or [])
    if as_json:
        print_json(keys)
    else:
        print_config(keys)

from flatout.cli.apps import Assignments, ConfigPath, Json, config_app, print_answer


@config_app.command()
def show(config: ConfigPath, assignments: Assignments = None, as_json: Json = False) -> None:
    """Show every key with its value and where the value came from."""
    from flatout.commands.show import config_shown, show_config

    keys = show_config(config, assignments or [])
    print_answer(keys, as_json, config_shown)

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import app


@app.command()
def dashboard(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[DIR]...", help="Folders of runs, or runs (default runs).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port (default the first free one from 8420 on).")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond this machine looking needs the token.")] = (
        "127.0.0.1"
    ),
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name this machine is asked for by (repeat).")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the token in this file (default: a new one).")
    ] = None,
) -> None:
    """Look at runs in the browser while they go on: curves, waits, dollars, findings; stop one with a checkpoint.

    Reads run directories only: no account, no database, nothing of training is slowed. Works on copies (rsync, a
    mounted bucket) and through an ssh tunnel: ssh -L 8420:127.0.0.1:8420 machine

    Examples:  flatout dashboard   |   flatout dashboard runs ../other/runs --port 9000
    """
    from flatout.web.server import serve_dashboard

    serve_dashboard(folders or [Path("runs")], host, port, allow_host or [], token_file, sys.stdout)

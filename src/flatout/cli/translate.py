from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, RunPath, app, print_json


@app.command()
def translate(
    run: RunPath,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Lines to translate, plain or .gz (default standard input).")
    ] = None,
    beam: Annotated[int, typer.Option(min=1, max=64, help="Hypotheses for each sentence; 1 is greedy.")] = 4,
    length_penalty: Annotated[
        float, typer.Option(min=0, max=5, help="0 prefers short translations, 1 the mean over words.")
    ] = 0.6,
    average: Annotated[int, typer.Option(min=1, help="Use the mean of this many of the best checkpoints.")] = 1,
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Right translations, line by line: prints BLEU on stderr.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    as_json: Json = False,
) -> None:
    """Translate lines with a trained run; translations go to standard output, in the order of the lines.

    Example: echo "A man rides a bicycle." | flatout translate runs/multi30k-small-cpu
    """
    from flatout.commands.translate import translate_file

    result = translate_file(run, file, reference, average, beam, length_penalty, device, quiet=as_json)
    if as_json:
        print_json(result)
        return
    for line in result["translations"]:
        typer.echo(line)
    if reference is not None:
        typer.echo(f"BLEU {result['bleu']:.2f}  ({result['bleu_signature']}, beam {beam})", err=True)

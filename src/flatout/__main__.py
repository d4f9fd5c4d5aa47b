"""`python -m flatout` is the flatout command."""

from flatout.cli.main import run

if __name__ == "__main__":
    run()

"""Printing for machines."""

import json
import sys
from typing import Any


def print_json(values: Any) -> None:
    sys.stdout.write(json.dumps(values, indent=2, default=str) + "\n")

"""The plot of a learning-rate range test: its valley fills it, and its suggestions have names."""

import re
from pathlib import Path

from flatout.reports.lr_plot import write_lr_plot


def test_a_divergence_does_not_flatten_the_valley(tmp_path: Path) -> None:
    losses = [2.0] * 10 + [2.0 - 0.1 * n for n in range(10)] + [1.0, 40.0, 9000.0]
    points = [{"learning_rate": 1e-4 * 1.5**n, "loss": loss, "smoothed": loss} for n, loss in enumerate(losses)]
    result = {"points": points, "suggestions": {"steepest": 0.01, "minimum_tenth": None}}
    write_lr_plot(tmp_path / "lr.html", "x", result)
    text = (tmp_path / "lr.html").read_text()
    labels = [float(each) for each in re.findall(r'text-anchor="end">([\d.]+)</text>', text)]
    assert max(labels) <= 3
    assert "steepest fall: 0.01" in text

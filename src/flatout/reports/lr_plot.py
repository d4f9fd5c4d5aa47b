"""The curve of a learning-rate range test as one self-contained page."""

from pathlib import Path
from typing import Any

from flatout.runs.directory import write_text


def write_lr_plot(path: Path, name: str, result: dict[str, Any]) -> None:
    import plotly.graph_objects as go

    rates = [point["learning_rate"] for point in result["points"]]
    figure = go.Figure()
    figure.add_scatter(x=rates, y=[p["loss"] for p in result["points"]], name="loss", line={"color": "#bbbbbb"})
    figure.add_scatter(x=rates, y=[p["smoothed"] for p in result["points"]], name="smoothed", line={"color": "#1f6feb"})
    for label, rate in result["suggestions"].items():
        if rate is not None:
            figure.add_vline(x=rate, line_dash="dash", annotation_text=f"{label.replace('_', ' ')} {rate:.3g}")
    figure.update_layout(
        title=f"Learning-rate range test: {name}",
        xaxis={"type": "log", "title": "learning rate"},
        yaxis={"title": "training loss"},
        template="plotly_white",
    )
    write_text(path, figure.to_html(include_plotlyjs=True, full_html=True))

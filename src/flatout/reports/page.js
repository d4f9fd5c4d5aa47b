"use strict";
// Values under the pointer (or the arrow keys) and series that can be switched off. Without it the page is complete.
function wire(figure) {
  const chart = JSON.parse(figure.dataset.chart);
  const area = figure.querySelector(".area"), cursor = figure.querySelector(".cursor");
  const tip = figure.querySelector(".tip"), groups = figure.querySelectorAll("g[data-series]");
  const [low, high] = chart.x, everyX = [...new Set(chart.series.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b);
  let at = -1;

  const nearest = (points, x) => {
    let from = 0, to = points.length - 1;
    while (to - from > 1) {
      const middle = (from + to) >> 1;
      if (points[middle][0] < x) from = middle; else to = middle;
    }
    return Math.abs(points[from][0] - x) <= Math.abs(points[to][0] - x) ? points[from] : points[to];
  };
  const write = value => Number(value.toPrecision(5)).toLocaleString("en", {maximumSignificantDigits: 5});
  const show = x => {
    const lines = [`${chart.x_label} ${write(chart.log_x ? 10 ** x : x)}`];
    chart.series.forEach((series, i) => {
      if (groups[i].classList.contains("off") || !series.points.length) return;
      const point = nearest(series.points, x);
      if (point[1] !== null) lines.push(`${series.name}  ${write(point[1])}${chart.unit}`);
    });
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const share = high > low ? (x - low) / (high - low) : 0;
    cursor.setAttribute("x1", 1000 * share);
    cursor.setAttribute("x2", 1000 * share);
    cursor.style.visibility = "visible";
    const left = area.offsetLeft + share * area.clientWidth;
    tip.style.left = `${Math.max(0, share > .5 ? left - tip.offsetWidth - 10 : left + 10)}px`;
  };
  const hide = () => { tip.hidden = true; cursor.style.visibility = "hidden"; };
  const move = by => {
    at = Math.min(everyX.length - 1, Math.max(0, at + by));
    if (everyX.length) show(everyX[at]);
  };

  area.addEventListener("pointermove", event => {
    if (!everyX.length) return;
    const box = area.getBoundingClientRect();
    const wanted = low + (event.clientX - box.left) / box.width * (high - low);
    const x = nearest(everyX.map(each => [each]), wanted)[0];
    at = everyX.indexOf(x);
    show(x);
  });
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", event => {
    const stride = Math.max(1, Math.round(everyX.length / 20));
    const moves = {ArrowRight: 1, ArrowLeft: -1, PageDown: stride, PageUp: -stride, Home: -Infinity, End: Infinity};
    if (event.key === "Escape") hide();
    if (event.key in moves) { event.preventDefault(); move(moves[event.key]); }
  });
  for (const button of figure.querySelectorAll("button[data-toggle]")) {
    button.addEventListener("click", () => {
      const off = groups[button.dataset.toggle].classList.toggle("off");
      button.setAttribute("aria-pressed", String(!off));
      hide();
    });
  }
}
for (const figure of document.querySelectorAll("figure[data-chart]")) wire(figure);

"use strict";
// The list of runs: rows come by server-sent events; search, order, groups and columns are the reader's own and stay.
const link = document.getElementById("link"), table = document.getElementById("runs"), count = document.getElementById("count");
const rows = new Map(), chosen = new Set();
const wanted = {search: "", status: "", group: "", columns: [], order: "updated_unix", down: true};
Object.assign(wanted, JSON.parse(localStorage.getItem("flatout-runs") || "{}"));

const number = (value, digits = 4) => value === null ? "" : Number(value.toPrecision(digits)).toLocaleString("en");
const span = seconds => {
  if (seconds === null) return "";
  const [d, h, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min` : `${Math.round(seconds)} s`;
};
const share = value => value === null ? "" : `${Math.round(100 * value)} %`;
const usd = value => value === null ? "" : `$${value < 1 ? value.toFixed(4) : value.toFixed(2)}`;
const COLUMNS = [
  ["name", "run", null], ["status", "status", null], ["progress", "progress", null],
  ["seconds_left", "left", row => span(row.seconds_left)], ["metric_value", "accuracy", row => row.metric_text ?? ""],
  ["samples_per_second", "samples/s", row => number(row.samples_per_second, 3)],
  ["data_wait", "data wait", row => share(row.data_wait)], ["wall_seconds", "wall clock", row => span(row.wall_seconds)],
  ["usd", "spent", row => usd(row.usd)], ["usd_left", "to come", row => usd(row.usd_left)],
];
const KINDS = {completed: "good", running: "live", stopped: "warn"};
const make = (tag, text, kind) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const value = (row, key) => key.startsWith("config:") ? row.config[key.slice(7)] ?? null : row[key];

function cellOf(row, key, write) {
  if (key === "name") {
    const cell = make("th");
    cell.scope = "row";
    const box = make("input"), to = make("a", row.name);
    box.type = "checkbox";
    box.checked = chosen.has(row.key);
    box.setAttribute("aria-label", `compare ${row.name}`);
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(row.key); else chosen.delete(row.key);
      document.getElementById("compare").disabled = chosen.size < 2;
    });
    to.href = `/run/${row.key.split("/").map(encodeURIComponent).join("/")}`;
    to.title = row.directory;
    cell.append(box, " ", to);
    const hint = row.hint || (row.status === "failed" || row.status === "stopped" ? row.cause : "");
    if (hint) cell.append(make("span", hint.length > 140 ? `${hint.slice(0, 140)} …` : hint, "hint"));
    return cell;
  }
  const cell = make("td", undefined, key === "status" || key.startsWith("config:") ? "" : "number");
  if (key === "status") {
    cell.append(make("span", row.status, `pill ${KINDS[row.status] ?? "bad"}`));
    if (row.emulated) cell.append(" ", make("span", "emulated", "dim"));
  } else if (key === "progress") {
    if (row.progress !== null && row.status === "running") {
      const bar = make("progress");
      bar.value = row.progress;
      bar.setAttribute("aria-label", `progress of ${row.name}`);
      cell.append(bar, " ");
    }
    cell.append(share(row.progress));
  } else cell.textContent = write ? write(row) : value(row, key) ?? "";
  return cell;
}

const columns = () => [...COLUMNS, ...wanted.columns.map(key => [`config:${key}`, key, null])];

function head() {
  const line = make("tr");
  for (const [key, title] of columns()) {
    const text = ["name", "status"].includes(key) || key.startsWith("config:");
    const cell = make("th", undefined, text ? "" : "number"), button = make("button", title + (wanted.order === key ? (wanted.down ? " ↓" : " ↑") : ""));
    cell.scope = "col";
    button.type = "button";
    if (wanted.order === key) cell.setAttribute("aria-sort", wanted.down ? "descending" : "ascending");
    button.addEventListener("click", () => {
      wanted.down = wanted.order === key ? !wanted.down : key !== "name";
      wanted.order = key;
      draw();
    });
    cell.append(button);
    line.append(cell);
  }
  table.tHead.replaceChildren(line);
}

function draw() {
  localStorage.setItem("flatout-runs", JSON.stringify(wanted));
  const words = wanted.search.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = [...rows.values()].filter(row =>
    (!wanted.status || row.status === wanted.status) &&
    words.every(word => `${row.name} ${row.directory} ${row.cause ?? ""} ${Object.values(row.config).join(" ")}`.toLowerCase().includes(word)));
  const rank = row => value(row, wanted.order);
  shown.sort((a, b) => {
    const [x, y] = [rank(a), rank(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", {numeric: true});
    return wanted.down ? -order : order;
  });
  const groups = new Map();
  for (const row of shown) {
    const name = wanted.group ? `${wanted.group} = ${row.config[wanted.group] ?? "n/a"}` : "";
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  head();
  const bodies = [];
  for (const [name, members] of groups) {
    const body = make("tbody");
    if (name) {
      const line = make("tr", undefined, "group"), cell = make("th", `${name} (${members.length})`);
      cell.colSpan = columns().length;
      cell.scope = "rowgroup";
      line.append(cell);
      body.append(line);
    }
    for (const row of members) {
      const line = make("tr");
      line.append(...columns().map(([key, , write]) => cellOf(row, key, write)));
      body.append(line);
    }
    bodies.push(body);
  }
  const focused = document.activeElement?.closest?.("#runs") ? document.activeElement.textContent || document.activeElement.getAttribute("aria-label") : null;
  for (const old of [...table.tBodies]) old.remove();
  table.append(...bodies);
  if (focused) [...table.querySelectorAll("a, button, input")].find(each => (each.textContent || each.getAttribute("aria-label")) === focused)?.focus();
  count.textContent = rows.size ? `${shown.length} of ${rows.size} runs` : "no runs yet: flatout demo makes one";
}

let source = null;
function listen() {
  source?.close();
  const query = new URLSearchParams();
  for (const key of new Set([...wanted.columns, ...(wanted.group ? [wanted.group] : [])])) query.append("column", key);
  source = new EventSource(`${document.body.dataset.stream}?${query}`);
  source.addEventListener("open", () => { link.textContent = "live"; });
  source.addEventListener("error", () => { link.textContent = "no connection: trying again"; });
  source.addEventListener("rows", event => {
    const {changed, gone} = JSON.parse(event.data);
    for (const key of gone) { rows.delete(key); chosen.delete(key); }
    for (const row of changed) rows.set(row.key, row);
    if (changed.length || gone.length || !table.tBodies.length) draw();
  });
}

async function offerKeys() {
  const keys = await (await fetch("/api/keys")).json();
  for (const id of ["group", "column"]) {
    const select = document.getElementById(id);
    for (const key of keys) if (![...select.options].some(each => each.value === key)) select.append(new Option(key, key));
  }
  document.getElementById("group").value = wanted.group;
}

const follow = (id, act) => document.getElementById(id).addEventListener("input", event => act(event.target.value));
document.getElementById("search").value = wanted.search;
document.getElementById("status").value = wanted.status;
follow("search", text => { wanted.search = text; draw(); });
follow("status", text => { wanted.status = text; draw(); });
follow("group", key => { wanted.group = key; listen(); draw(); });
follow("column", key => {
  wanted.columns = wanted.columns.includes(key) ? wanted.columns.filter(each => each !== key) : [...wanted.columns, key].filter(Boolean);
  document.getElementById("column").value = "";
  listen();
  draw();
});
document.querySelector(".filters").addEventListener("submit", event => event.preventDefault());
document.getElementById("compare").addEventListener("click", () => {
  location.href = `/compare?${[...chosen].map(key => `run=${encodeURIComponent(key)}`).join("&")}`;
});
listen();
offerKeys();
setInterval(offerKeys, 10000);

"use strict";
// The list of runs: rows come by server-sent events; search, order, groups and columns are the reader's own and stay.
const link = document.getElementById("link"), table = document.getElementById("runs"), count = document.getElementById("count");
const more = document.getElementById("more"), compare = document.getElementById("compare");
const rows = new Map(), lines = new Map(), chosen = new Set(), groups = new Map();
const MOST_SHOWN = 200;
const wanted = {search: "", status: "", group: "", columns: [], hidden: ["loss", "updated_unix"], order: "updated_unix", down: true};
try {
  Object.assign(wanted, JSON.parse(localStorage.getItem("flatout-runs") || "{}"));
} catch { /* in a frame of another page a browser may keep nothing */ }
let unread = 0, all = false;

const number = (value, digits = 4) => value === null ? "" : Number(value.toPrecision(digits)).toLocaleString("en");
const span = seconds => {
  if (seconds === null) return "";
  const [d, h, m, s] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, Math.round(seconds % 60)];
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : seconds >= 600 ? `${m} min` : m ? `${m} min ${s} s` : `${s} s`;
};
const share = value => value === null ? "" : `${Math.round(100 * value)} %`;
const usd = value => value === null ? "" : `$${value < 1 ? value.toFixed(4) : value.toFixed(2)}`;
const ago = unix => unix === null ? "" : `${span(Math.max(0, Date.now() / 1000 - unix))} ago`;
const COLUMNS = [
  ["label", "run", null], ["status", "status", null], ["progress", "progress", null],
  ["seconds_left", "left", row => span(row.seconds_left)], ["metric_value", "accuracy", row => row.metric_text ?? ""],
  ["loss", "loss", row => number(row.loss, 3)], ["samples_per_second", "samples/s", row => number(row.samples_per_second, 3)],
  ["data_wait", "data wait", row => share(row.data_wait)], ["wall_seconds", "wall clock", row => span(row.wall_seconds)],
  ["usd", "spent", row => usd(row.usd)], ["usd_left", "to come", row => usd(row.usd_left)],
  ["updated_unix", "last written", row => row.status === "running" ? "now" : ago(row.updated_unix)],
];
const KINDS = {completed: "good", running: "live", stopped: "warn"};
const make = (tag, text, kind) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const value = (row, key) => key.startsWith("config:") ? row.config[key.slice(7)] ?? null : row[key];
const isText = key => ["label", "status"].includes(key) || key.startsWith("config:");
const columns = () => [...COLUMNS.filter(([key]) => !wanted.hidden.includes(key)), ...wanted.columns.map(key => [`config:${key}`, key, null])];
const check = (checked, name, act) => {
  const box = make("input");
  box.type = "checkbox";
  box.checked = checked;
  if (name) box.setAttribute("aria-label", name);
  box.addEventListener("change", () => act(box.checked));
  return box;
};

function nameCell(row) {
  const cell = make("th"), to = make("a", row.label);
  cell.scope = "row";
  to.href = `/run/${row.key.split("/").map(encodeURIComponent).join("/")}`;
  to.title = row.directory;
  cell.append(check(chosen.has(row.key), `compare ${row.label}`, on => {
    if (on) chosen.add(row.key); else chosen.delete(row.key);
    offerComparison();
  }), " ", to);
  const hint = row.hint || (row.status === "failed" || row.status === "stopped" ? row.cause : "");
  if (!`/${row.label}`.endsWith(`/${row.name}`)) cell.append(" ", make("span", row.name, "dim"));
  if (hint) {
    const said = make("span", hint, "hint");
    said.title = hint;
    cell.append(said);
  }
  return cell;
}

function cellOf(row, key, write) {
  if (key === "label") return nameCell(row);
  const cell = make("td", undefined, isText(key) ? "" : "number");
  if (key === "status") {
    cell.append(make("span", row.status, `pill ${KINDS[row.status] ?? "bad"}`));
    if (row.emulated) cell.append(" ", make("span", "emulated", "dim"));
  } else if (key === "progress") {
    if (row.progress !== null && row.status === "running") {
      const bar = make("progress");
      bar.value = row.progress;
      bar.setAttribute("aria-label", `progress of ${row.label}`);
      cell.append(bar, " ");
    }
    cell.append(share(row.progress));
  } else cell.textContent = write ? write(row) : value(row, key) ?? "";
  return cell;
}

function lineOf(row, shape) {
  const kept = lines.get(row.key);
  if (kept && kept.row === row && kept.shape === shape) return kept.line;
  const line = make("tr");
  line.append(...columns().map(([key, , write]) => cellOf(row, key, write)));
  lines.set(row.key, {row, shape, line});
  return line;
}

function offerComparison() {
  compare.disabled = chosen.size < 2;
  compare.textContent = chosen.size < 2 ? "compare (choose two or more)" : `compare ${chosen.size} runs`;
}

function head() {
  const line = make("tr");
  for (const [key, title] of columns()) {
    const cell = make("th", undefined, isText(key) ? "" : "number");
    const button = make("button", title + (wanted.order === key ? (wanted.down ? " ↓" : " ↑") : ""));
    cell.scope = "col";
    button.type = "button";
    button.dataset.column = key;
    if (wanted.order === key) cell.setAttribute("aria-sort", wanted.down ? "descending" : "ascending");
    button.addEventListener("click", () => {
      wanted.down = wanted.order === key ? !wanted.down : key !== "label";
      wanted.order = key;
      keep();
    });
    cell.append(button);
    line.append(cell);
  }
  if (table.tHead.textContent !== line.textContent) table.tHead.replaceChildren(line);
}

function found() {
  const words = wanted.search.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = [...rows.values()].filter(row =>
    (!wanted.status || row.status === wanted.status) &&
    words.every(word => `${row.name} ${row.label} ${row.directory} ${row.cause ?? ""} ${Object.values(row.config).join(" ")}`.toLowerCase().includes(word)));
  const collator = new Intl.Collator("en", {numeric: true});
  return shown.sort((a, b) => {
    const [x, y] = [value(a, wanted.order), value(b, wanted.order)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "number" ? x - y : collator.compare(String(x), String(y));
    return wanted.down ? -order : order;
  });
}

function bodyOf(name, size) {
  const kept = groups.get(name) ?? make("tbody");
  groups.set(name, kept);
  if (!name) return [kept, []];
  const line = make("tr", undefined, "group"), cell = make("th", `${name} (${size})`);
  cell.colSpan = columns().length;
  cell.scope = "rowgroup";
  line.append(cell);
  return [kept, [line]];
}

// Only lines that changed are made, and only where their order changed are they moved.
function draw() {
  const shown = found(), shape = columns().map(([key]) => key).join(" ");
  const members = new Map();
  for (const row of all ? shown : shown.slice(0, MOST_SHOWN)) {
    const name = wanted.group ? `${wanted.group} = ${row.config[wanted.group] ?? "n/a"}` : "";
    members.set(name, [...(members.get(name) ?? []), row]);
  }
  const active = document.activeElement, inside = table.contains(active);
  const focused = inside && (active.dataset.column ? `column ${active.dataset.column}` : active.getAttribute("aria-label") ?? active.textContent);
  head();
  const bodies = [...members].map(([name, each]) => {
    const [body, first] = bodyOf(name, each.length), wantedLines = [...first, ...each.map(row => lineOf(row, shape))];
    if (wantedLines.length !== body.rows.length || wantedLines.some((line, i) => line !== body.rows[i])) body.replaceChildren(...wantedLines);
    return body;
  });
  if (bodies.length !== table.tBodies.length || bodies.some((body, i) => body !== table.tBodies[i])) {
    for (const old of [...table.tBodies]) old.remove();
    table.append(...bodies);
  }
  if (focused && !table.contains(document.activeElement))
    [...table.querySelectorAll("a, button, input")].find(each =>
      (each.dataset.column ? `column ${each.dataset.column}` : each.getAttribute("aria-label") ?? each.textContent) === focused)?.focus();
  const reading = unread ? `, ${unread.toLocaleString("en")} still to be read` : "";
  count.textContent = rows.size || unread ? `${shown.length.toLocaleString("en")} of ${rows.size.toLocaleString("en")} runs${reading}` : "no runs yet: flatout demo makes one";
  more.hidden = all || shown.length <= MOST_SHOWN;
  more.textContent = `show all ${shown.length.toLocaleString("en")}, not only the first ${MOST_SHOWN}`;
}

function keep() {
  try {
    localStorage.setItem("flatout-runs", JSON.stringify(wanted));
  } catch { /* as above */ }
  draw();
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
    const said = JSON.parse(event.data), before = unread;
    unread = said.unread;
    for (const key of said.gone) { rows.delete(key); lines.delete(key); chosen.delete(key); }
    for (const row of said.changed) rows.set(row.key, row);
    if (said.gone.length) offerComparison();
    if (said.changed.length || said.gone.length || before !== unread || !table.tHead.rows.length) draw();
  });
}

function offerColumns() {
  const choices = document.querySelector("#columns fieldset");
  const labels = [...COLUMNS.slice(1).map(([key, title]) => [key, title, !wanted.hidden.includes(key)]), ...wanted.columns.map(key => [key, key, true])];
  choices.replaceChildren(choices.querySelector("legend"), ...labels.map(([key, title, on]) => {
    const label = make("label");
    label.append(check(on, "", now => {
      if (wanted.columns.includes(key)) { wanted.columns = wanted.columns.filter(each => each !== key); offerColumns(); listen(); }
      else wanted.hidden = now ? wanted.hidden.filter(each => each !== key) : [...wanted.hidden, key];
      keep();
    }), " ", title);
    return label;
  }));
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
follow("search", text => { wanted.search = text; keep(); });
follow("status", text => { wanted.status = text; keep(); });
follow("group", key => { wanted.group = key; listen(); keep(); });
follow("column", key => {
  if (key && !wanted.columns.includes(key)) wanted.columns = [...wanted.columns, key];
  document.getElementById("column").value = "";
  offerColumns();
  listen();
  keep();
});
document.querySelector(".filters").addEventListener("submit", event => event.preventDefault());
compare.addEventListener("click", () => {
  location.href = `/compare?${[...chosen].map(key => `run=${encodeURIComponent(key)}`).join("&")}`;
});
more.addEventListener("click", () => { all = true; draw(); });
offerComparison();
offerColumns();
listen();
setTimeout(offerKeys, 500);  // the rows come first
setInterval(offerKeys, 10000);

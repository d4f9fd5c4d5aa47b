"use strict";
// One page of the dashboard: pieces of it come by server-sent events and replace the old ones, nothing is reloaded.
// What the reader has opened, switched off, focused or scrolled stays as it is.
const link = document.getElementById("link");
const known = new Set();

const titleOf = figure => figure.querySelector("figcaption")?.firstChild?.textContent;
const byTitle = (place, title) => [...place.querySelectorAll("figure[data-chart]")].find(f => titleOf(f) === title);

function remember(place) {
  const active = document.activeElement;
  const figure = place.contains(active) ? active.closest("figure[data-chart]") : null;
  return {
    open: [...place.querySelectorAll("details[open] > summary")].map(each => each.textContent),
    off: [...place.querySelectorAll('button[aria-pressed="false"]')].map(each => [titleOf(each.closest("figure")), each.dataset.toggle]),
    scrolled: [...place.querySelectorAll(".scroll, pre")].map(each => [each.scrollLeft, each.scrollTop, each.scrollTop + each.clientHeight >= each.scrollHeight - 4]),
    focused: figure && titleOf(figure),
    toggled: figure && active.dataset.toggle,
  };
}

function restore(place, before) {
  for (const summary of place.querySelectorAll("details > summary"))
    if (before.open.includes(summary.textContent)) summary.parentElement.open = true;
  for (const [title, series] of before.off) byTitle(place, title)?.querySelector(`button[data-toggle="${series}"]`)?.click();
  [...place.querySelectorAll(".scroll, pre")].forEach((each, i) => {
    const [left, top, atEnd] = before.scrolled[i] ?? [0, 0, true];
    each.scrollLeft = left;
    each.scrollTop = atEnd && each.tagName === "PRE" ? each.scrollHeight : top;
  });
  const figure = before.focused && byTitle(place, before.focused);
  if (figure) (before.toggled ? figure.querySelector(`button[data-toggle="${before.toggled}"]`) : figure.querySelector(".area"))?.focus();
}

function put(name, html) {
  const place = document.getElementById(`f-${name}`);
  if (!place) return;
  const before = remember(place);
  place.innerHTML = html;
  for (const figure of place.querySelectorAll("figure[data-chart]")) wire(figure);
  restore(place, before);
}

function raise(alarms) {
  for (const {key, text} of alarms) {
    if (known.has(key)) continue;
    known.add(key);
    if (window.Notification?.permission === "granted") new Notification(document.title, {body: text, tag: key});
  }
  for (const key of known) if (!alarms.some(alarm => alarm.key === key)) known.delete(key);
}

if (document.body.dataset.stream) {
  const source = new EventSource(document.body.dataset.stream);
  source.addEventListener("open", () => { link.textContent = "live"; });
  source.addEventListener("error", () => { link.textContent = "no connection: trying again"; });
  source.addEventListener("fragments", event => {
    const {fragments, alarms} = JSON.parse(event.data);
    for (const [name, html] of Object.entries(fragments)) put(name, html);
    if (alarms) raise(alarms);
    if (document.querySelector("#f-head .pill")?.textContent !== "running") document.querySelector(".acts")?.remove();
  });
}

const notify = document.getElementById("notify");
if (notify && window.Notification?.permission === "default") {
  notify.hidden = false;
  notify.addEventListener("click", async () => { await Notification.requestPermission(); notify.hidden = true; });
}

const stop = document.getElementById("stop");
stop?.addEventListener("click", async () => {
  if (stop.dataset.sure !== "1") {
    stop.dataset.sure = "1";
    stop.textContent = "really stop? click again";
    return;
  }
  stop.disabled = true;
  const answer = await fetch(`/api/stop/${stop.dataset.key}`, {method: "POST"});
  stop.textContent = answer.ok ? "asked: it saves a checkpoint and ends" : (await answer.text()).trim();
});

const form = document.getElementById("what-if");
if (form) {
  const answer = document.getElementById("what-if-answer");
  const chosen = input => input.dataset.values ? input.dataset.values.split("|")[input.value] : input.value;
  const isChanged = input => input.dataset.values ? input.dataset.moved === "1" : input.value !== "";
  let waiting = null, asked = 0;
  const ask = async () => {
    const query = new URLSearchParams();
    for (const input of form.elements) if (input.name && isChanged(input)) query.set(input.name, chosen(input));
    const number = ++asked;
    answer.setAttribute("aria-busy", "true");
    const text = await (await fetch(`/api/what-if/${form.dataset.key}?${query}`)).text();
    if (number !== asked) return;
    answer.innerHTML = text;
    answer.removeAttribute("aria-busy");
  };
  form.addEventListener("input", event => {
    const input = event.target;
    if (input.dataset.values) {
      const text = chosen(input);
      input.dataset.moved = "1";
      input.setAttribute("aria-valuetext", text);
      input.parentElement.querySelector("output").textContent = text;
    }
    clearTimeout(waiting);
    waiting = setTimeout(ask, 200);
  });
  form.addEventListener("submit", event => event.preventDefault());
}

"use strict";
// What happens in the page: colours, charts when they are needed, tables that sort and filter. Charts are Vega's alone.
(() => {
const page = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const PAGE = 60;  // rows of a table that are put into the document at once
const FOREST = 120;  // lines in a forest plot: more cannot be read

function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

// ---- colours

function theme() {
  return root.dataset.theme || (dark.matches ? "dark" : "light");
}

const toggle = document.getElementById("theme");
function showTheme() {
  toggle.textContent = theme() === "dark" ? "Light" : "Dark";
  toggle.setAttribute("aria-label", `Switch to ${theme() === "dark" ? "light" : "dark"} colours`);
}
function remember(value) {
  try { localStorage.setItem("akegnn-theme", value); } catch { /* a page opened from disk may not be allowed to */ }
}
try { const kept = localStorage.getItem("akegnn-theme"); if (kept) root.dataset.theme = kept; } catch { /* as above */ }
toggle.addEventListener("click", () => {
  root.dataset.theme = theme() === "dark" ? "light" : "dark";
  remember(root.dataset.theme);
  showTheme();
  redraw();
});
dark.addEventListener("change", () => { showTheme(); redraw(); });

// ---- data: compact in the file, as Vega takes it here

function values(data) {
  if (data.rows) return data.rows.map((row) => Object.fromEntries(data.columns.map((name, k) => [name, row[k]])));
  const found = [];  // a symmetric matrix, of which only what is above the diagonal is in the file
  let k = 0;
  for (let a = 0; a < data.size; a++) found.push({ a, b: a, r: 100 });
  for (let a = 0; a < data.size; a++) {
    for (let b = a + 1; b < data.size; b++, k++) found.push({ a, b, r: data.upper[k] }, { a: b, b: a, r: data.upper[k] });
  }
  return found;
}

// ---- charts, one after another so that the page stays responsive, those on the screen first

const drawn = new Map();  // element -> { spec, rows, view }
const waiting = new Set();
let working = false;

function plot(element, spec, rows) {
  root.dataset.ready = "no";
  drawn.set(element, { ...drawn.get(element), spec, rows });
  waiting.add(element);
  work();
}

async function draw(element) {
  const chart = drawn.get(element);
  if (!chart || !element.isConnected) return;
  chart.result?.finalize();
  element.classList.toggle("empty", !chart.rows);
  if (!chart.rows) { element.replaceChildren("Nothing is recorded for this choice."); return; }
  const config = structuredClone(page.themes[theme()]);
  config.legend.columns = Math.max(1, Math.floor(element.clientWidth / 150));
  if (element.clientWidth < 420) config.axis.labelLimit = 105;
  const spec = { ...chart.spec, data: { values: chart.rows } };
  const { rows: names, step } = spec.usermeta || {};
  if (step) spec.height = step * new Set(chart.rows.map((row) => names.map((n) => row[n]).join("\n"))).size;
  try {
    chart.result = await vegaEmbed(element, spec, {
      renderer: "svg", config, tooltip: { theme: theme() }, ast: false, logLevel: 1,
      actions: { export: true, source: false, compiled: false, editor: false }, downloadFileName: "akegnn-chart",
    });
    element.dataset.drawn = theme();
  } catch (error) {
    element.replaceChildren("This chart could not be drawn.");
    console.error(error);
  }
}

function near(element) {
  const box = element.getBoundingClientRect();
  return box.bottom > -200 && box.top < innerHeight + 400;
}

async function work() {
  if (working) return;
  working = true;
  while (waiting.size) {
    await new Promise((go) => setTimeout(go));
    const element = [...waiting].find(near) || waiting.values().next().value;
    waiting.delete(element);
    await draw(element);
  }
  working = false;
  root.dataset.ready = "yes";
}

function redraw() {
  root.dataset.ready = "no";
  for (const element of drawn.keys()) element.isConnected ? waiting.add(element) : drawn.delete(element);
  work();
}

function dataTable(rows) {
  const names = Object.keys(rows[0] || {});
  const shown = rows.slice(0, 500);
  const table = make("table", {},
    make("caption", {}, rows.length > shown.length ? `The first ${shown.length} of ${rows.length} rows` : `${rows.length} rows`),
    make("thead", {}, make("tr", {}, ...names.map((n) => make("th", { scope: "col" }, n)))),
    make("tbody", {}, ...shown.map((r) => make("tr", {}, ...names.map((n) => make("td", {}, String(r[n] ?? "")))))));
  return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Data of the chart" }, table);
}

function showChart(figure, choice) {
  const chart = page.charts[figure.dataset.chart];
  const data = Object.keys(chart.choices).length ? chart.choices[choice] : chart.data;
  const rows = data ? values(data) : null;
  plot(figure.querySelector(".plot"), chart.spec, rows);
  const details = figure.querySelector("details.data");
  details.hidden = !rows;
  details.querySelector(".scroll")?.remove();
  details.ontoggle = () => {
    if (details.open && rows && !details.querySelector(".scroll")) details.append(dataTable(rows));
  };
  if (details.open) details.ontoggle();
}

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = page.charts[figure.dataset.chart];
  const select = chart.group && document.querySelector(`select[data-group="${chart.group}"]`);
  showChart(figure, select ? select.value : Object.keys(chart.choices)[0]);
}
for (const select of document.querySelectorAll("select[data-group]")) {
  select.addEventListener("change", () => {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      if (page.charts[figure.dataset.chart].group === select.dataset.group) showChart(figure, select.value);
    }
  });
}

// ---- tables

const number = (digits, sign = false) => (v) =>
  v === null ? "" : (sign && v > 0 ? "+" : "") + v.toFixed(digits).replace("-", "−");
const two = number(2), signed = number(2, true);
const range = (low, high) => ` [${signed(low)}, ${signed(high)}]`;

// The order of a row in the file (see stored.py), by name.
const ORDER = ["row", "column", "line", "n", "mean", "deviation", "low", "high", "difference", "dlow", "dhigh", "pairs", "p",
  "floor", "passes", "parameters", "seconds", "paper", "paperDeviation", "paperDifference", "aside", "cells", "seeds"];

function entry(grid, row, index) {
  const e = Object.fromEntries(ORDER.map((name, k) => [name, row[k]]));
  for (const name of ["row", "column", "line"]) e[name] = grid.words[e[name]];
  e.index = index;
  e.text = `${e.row} ${e.column} ${e.line}`.toLowerCase();
  return e;
}

const COLUMNS = [
  { key: "row", name: "what", cell: (e) => e.row, text: true },
  { key: "column", name: "dataset", cell: (e) => e.column, text: true },
  { key: "line", name: "line", cell: (e) => e.line, text: true },
  { key: "mean", name: "test ± sd", cell: null },
  { key: "n", name: "n", cell: (e) => e.n, minor: true },
  { key: "difference", name: "difference [95 %]", cell: (e) => difference(e) },
  { key: "p", name: "p (Holm)", cell: (e) => (e.p === null ? "" : String(e.p)), minor: true },
  { key: "floor", name: "floor", cell: (e) => number(1)(e.floor), minor: true },
  { key: "passes", name: "passes", cell: (e) => e.passes, minor: true },
  { key: "parameters", name: "parameters", cell: (e) => e.parameters.toLocaleString("en"), minor: true },
  { key: "seconds", name: "seconds", cell: (e) => number(1)(e.seconds), minor: true },
  { key: "paper", name: "paper", cell: (e) => (e.paper === null ? "" : e.paper.toFixed(1) + (e.paperDeviation === null ? "" : ` ± ${e.paperDeviation.toFixed(1)}`)) },
];

function difference(e) {
  if (e.difference === null) return "";
  const sure = e.dlow > 0 ? "up" : e.dhigh < 0 ? "down" : "";
  return make("span", { class: sure, title: e.pairs }, signed(e.difference), make("small", {}, range(e.dlow, e.dhigh)));
}

class Rows {
  constructor(place, grid) {
    this.grid = grid;
    this.name = place.dataset.grid;
    this.entries = grid.rows.map((row, k) => entry(grid, row, k));
    this.used = COLUMNS.filter((c) => this.entries.some((e) => e[c.key] !== null && e[c.key] !== ""));
    this.sort = { key: "index", up: true };
    this.words = [];
    this.exact = {};
    this.shown = PAGE;
    this.open = new Map();
    place.append(...this.build());
    this.update();
    this.forest();
  }

  build() {
    this.count = make("output", { "aria-live": "polite" });
    const search = make("input", { type: "search", placeholder: "gcn cora AKE", autocomplete: "off", oninput: () => {
      this.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      this.update(true);
    } });
    const tools = make("div", { class: "tools", role: "search" }, make("label", {}, "Filter rows", search));
    for (const [key, label] of [["row", "What"], ["column", "Dataset"], ["line", "Line"]]) {
      const there = [...new Set(this.entries.map((e) => e[key]))];
      if (there.length < 2 || there.length > 200) continue;
      const select = make("select", { onchange: () => { this.exact[key] = select.value; this.update(true); } },
        make("option", { value: "" }, "all"), ...there.map((word) => make("option", { value: word }, word)));
      tools.append(make("label", {}, label, select));
    }
    tools.append(this.count);
    this.heads = this.used.map((c) => {
      const press = () => {
        this.sort = { key: c.key, up: this.sort.key === c.key ? !this.sort.up : Boolean(c.text) };
        this.update();
      };
      return make("th", { scope: "col", role: "columnheader", class: `${c.text ? "" : "number"} ${c.minor ? "minor" : ""}`.trim() || null },
        make("button", { type: "button", onclick: press }, c.name));
    });
    // Roles are said because on a phone rows are laid out as cards, and some browsers then forget that this is a table.
    this.body = make("tbody", { role: "rowgroup" });
    const table = make("table", { class: "rows", role: "table" }, make("caption", {}, this.grid.caption),
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...this.heads)), this.body);
    this.more = make("button", { type: "button", class: "more", onclick: () => { this.shown += PAGE; this.show(); } });
    this.plot = make("div", { class: "plot" });
    const about = `Difference of each line to “${this.grid.base}” on the same splits and seeds, with its 95 % interval. ` +
      "Diamonds: the difference of the paper's own numbers. Follows the filter below.";
    this.figure = make("figure", {}, make("figcaption", {}, make("b", {}, "Paired differences"), " " + about), this.plot);
    this.hint = this.figure.querySelector("figcaption").appendChild(make("span"));
    return [this.figure, tools,
      make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": this.grid.caption }, table), this.more];
  }

  chosen() {
    const exact = Object.entries(this.exact).filter(([, word]) => word);
    const found = this.entries.filter((e) => this.words.every((w) => e.text.includes(w)) && exact.every(([k, w]) => e[k] === w));
    const { key, up } = this.sort;
    const empty = (v) => v === null || v === "";
    const side = up ? 1 : -1;
    return found.sort((a, b) => {
      const [x, y] = [a[key], b[key]];
      if (empty(x) || empty(y)) return empty(x) - empty(y) || a.index - b.index;  // what is missing comes last, either way
      return (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y) * side || a.index - b.index;
    });
  }

  update(filtered = false) {
    this.found = this.chosen();
    if (filtered) this.shown = PAGE;
    this.heads.forEach((head, k) => {
      if (this.used[k].key === this.sort.key) head.setAttribute("aria-sort", this.sort.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    this.show();
    if (!filtered) return;
    clearTimeout(this.later);  // not at every letter
    this.later = setTimeout(() => this.forest(), 250);
  }

  show() {
    const rows = this.found.slice(0, this.shown);
    this.body.replaceChildren(...rows.flatMap((e) => this.row(e)));
    const lines = `${this.entries.length.toLocaleString("en")} lines`;
    this.count.textContent = this.found.length === this.entries.length ? lines : `${this.found.length.toLocaleString("en")} of ${lines}`;
    const left = this.found.length - rows.length;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`;
  }

  row(e) {
    const cells = this.used.map((c, k) => {
      const content = c.key === "mean" ? this.button(e) : c.cell(e);
      const kind = `${c.text ? "name" : "number"} ${c.minor ? "minor" : ""}`.trim();
      const given = { class: kind, "data-name": c.text ? null : c.name.split(" [")[0], scope: k === 0 ? "row" : null,
        role: k === 0 ? "rowheader" : "cell" };
      return make(k === 0 ? "th" : "td", given, ...(content === "" ? [] : [content]));
    });
    const line = make("tr", { role: "row", class: e.aside ? "aside" : null }, ...cells);
    return this.open.has(e.index) ? [line, this.open.get(e.index)] : [line];
  }

  button(e) {
    const name = `${this.name}-${e.index}`;
    const open = this.open.has(e.index);
    return make("button", {
      type: "button", class: "seeds", "aria-expanded": String(open), "aria-controls": open ? name : null,
      "aria-label": `${two(e.mean)} plus or minus ${two(e.deviation)}: show the seeds of ${e.row}, ${e.column}, ${e.line}`,
      onclick: (event) => this.toggle(e, name, event.currentTarget),
    }, `${two(e.mean)} ± ${two(e.deviation)}`);
  }

  toggle(e, name, button) {
    const there = this.open.get(e.index);
    button.setAttribute("aria-expanded", String(!there));
    if (there) {
      there.remove();
      this.open.delete(e.index);
      button.removeAttribute("aria-controls");
      return;
    }
    const place = make("div", { class: "plot" });
    const lines = [e, ...this.entries.filter((o) => o !== e && o.line === this.grid.base && o.row === e.row && o.column === e.column)];
    const rows = lines.flatMap((o) => this.seeds(o));
    const about = `${rows.length / lines.length === 1 ? "One run" : "Every run"} of ${lines.map((o) => `“${o.line}”`).join(" and ")}; the upright stroke is the mean.`;
    const figure = make("figure", {}, make("figcaption", {}, make("b", {}, `${e.row}, ${e.column}: ${e.line}`), " " + about), place,
      make("details", { class: "data", ontoggle: (event) => {
        if (event.target.open && event.target.children.length < 2) event.target.append(dataTable(rows));
      } }, make("summary", {}, "Data")));
    const row = make("tr", { role: "row", class: "open", id: name }, make("td", { role: "cell", colspan: this.used.length }, figure));
    button.setAttribute("aria-controls", name);
    button.closest("tr").after(row);
    this.open.set(e.index, row);
    plot(place, { ...this.grid.strip, description: `Seeds of ${e.row}, ${e.column}, ${e.line}. ${about}` }, rows);
  }

  seeds(e) {
    const cells = this.grid.cells[e.cells];
    return e.seeds.map((test, k) => ({ line: e.line, split: cells[k][0], seed: cells[k][1], test: test / 1000 }));
  }

  forest() {
    const usable = this.found.filter((e) => e.difference !== null && !e.aside).sort((a, b) => a.index - b.index);
    const several = { row: new Set(usable.map((e) => e.row)).size > 1, column: new Set(usable.map((e) => e.column)).size > 1 };
    const place = (e) => (several.column && several.row ? `${e.row}, ${e.column}` : several.column ? e.column : e.row);
    const last = usable.length > FOREST ? place(usable[FOREST]) : null;  // no place is cut in two, unless there is one only
    const whole = usable.slice(0, FOREST).filter((e) => place(e) !== last);
    const rows = (whole.length ? whole : usable.slice(0, FOREST)).map((e) => ({
      place: place(e), line: e.line, difference: e.difference, low: e.dlow, high: e.dhigh, pairs: e.pairs,
      paper: e.paperDifference,
    }));
    this.figure.hidden = !rows.length;
    this.hint.textContent = rows.length < usable.length
      ? ` The first ${rows.length} of ${usable.length.toLocaleString("en")} are drawn; filter to see others.` : "";
    if (rows.length) plot(this.plot, { ...this.grid.forest, description: `Paired differences of ${this.grid.caption}.` }, rows);
  }
}

for (const place of document.querySelectorAll("[data-grid]")) new Rows(place, page.grids[place.dataset.grid]);

// ---- where the reader is

const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const watcher = new IntersectionObserver((seen) => {
  for (const s of seen) {
    if (!s.isIntersecting) continue;
    for (const a of links.values()) a.removeAttribute("aria-current");
    links.get(s.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-10% 0px -75% 0px" });
for (const section of document.querySelectorAll("main section")) watcher.observe(section);

showTheme();
if (!drawn.size) root.dataset.ready = "yes";
})();

// The form of a model of tables: one field per column, and the effect of one column on the prediction.

import { Latest, post } from "./api.js";
import { END_TIMES, byId, element, page, say } from "./page.js";
import { Plot, areaPath, bottomAxis, leftAxis, linear, linePath, svg, ticks } from "./plot.js";

const POINTS = 61;
const MOST_LABELS = 6;
const HINT = "Move over the plot, or focus it and press the arrow keys, for the values.";

const line = new Latest({ wait: 150 });
const plot = new Plot(byId("effect"), {
  label: "Effect of one column", draw: drawEffect, read: readEffect, readout: byId("effect-readout"), hint: HINT,
});

// Builds the form of a model; `onInput` runs whenever a cell changes.
export function offerForm({ columns }, onInput) {
  byId("table-form").replaceChildren(...columns.map((column, number) => field(column, number)));
  byId("table-form").oninput = onInput;
  byId("table-form").onsubmit = (event) => event.preventDefault();
  byId("effect-column").replaceChildren(...columns.map(({ name }) => element("option", { value: name }, name)));
  byId("effect-column").onchange = requestEffect;
}

function field(column, number) {
  const id = `cell-${number}`;
  const { kind, low, high, missing } = column;
  const range = low === null ? "" : ` (${low} to ${high})`;
  const label = element("label", { for: id }, column.name, element("span", { class: "hint" }, `${range}${missing ? ", may be empty" : ""}`));
  const input = kind === "boolean" ? choice(id, column) : entry(id, column);
  const parts = [label, input];
  if (kind === "category") {
    input.setAttribute("list", `${id}-list`);
    parts.push(element("datalist", { id: `${id}-list` }, ...column.categories.map((value) => element("option", { value }))));
  }
  return element("div", { class: "cell" }, ...parts);
}

function choice(id, { typical, missing }) {
  const words = [["true", "yes"], ["false", "no"], ...(missing ? [["", "unknown"]] : [])];
  const select = element("select", { id }, ...words.map(([value, word]) => element("option", { value }, word)));
  select.value = String(typical);
  return select;
}

function entry(id, { kind, typical }) {
  const type = { number: "number", date: "date", category: "text" }[kind];
  const input = element("input", { id, type, autocomplete: "off", ...(kind === "number" ? { step: "any" } : {}) });
  input.value = typical ?? "";
  return input;
}

// The row of the form; an empty cell is a missing one.
export function tableRequest() {
  const cells = page.model.columns.map(({ name, kind }, number) => {
    const { value } = byId(`cell-${number}`);
    if (value === "") return [name, null];
    return [name, kind === "number" ? Number(value) : kind === "boolean" ? value === "true" : value];
  });
  return { row: Object.fromEntries(cells) };
}

export function clearEffect() {
  line.cancel();
  plot.set(null);
}

// Asks for the effect of the chosen column on the row of the form.
export function requestEffect() {
  const { name: model } = page.model;
  const column = byId("effect-column").value;
  const body = { model, ...tableRequest(), column, points: POINTS, samples: END_TIMES };
  line.run(
    `${model} ${column}`,
    (signal) => post("api/effect", body, signal),
    (answer) => {
      say("effect-message", null);
      byId("effect-what").textContent = answer.what;
      plot.set({ ...answer, chosen: body.row[column] });
    },
    (error) => {
      plot.set(null);
      say("effect-message", error.message);
    },
  );
}

// data: the answer of /api/effect, and `chosen`, the cell of the form
function drawEffect(width, height, data) {
  const [left, right, top, bottom] = [46, width - 14, 10, height - 22];
  const isNumber = data.kind === "number";
  const isLine = isNumber || data.kind === "date";
  const xs = isNumber ? data.values : data.values.map((_, m) => m);
  const low = Math.min(...data.low);
  const high = Math.max(...data.high);
  const margin = 0.04 * (high - low || 1);
  const ends = isLine ? [xs[0], xs[xs.length - 1]] : [-0.5, xs.length - 0.5];
  const x = linear(ends, [left, right]);
  const y = linear([low - margin, high + margin], [bottom, top]);
  const nodes = [leftAxis(y, left, right, 5)];
  const here = isNumber ? data.chosen : position(data);
  if (here !== null && here >= ends[0] && here <= ends[1]) {
    nodes.push(svg("line", { class: "here", x1: x(here), x2: x(here), y1: top, y2: bottom }));
  }
  if (isLine) {
    nodes.push(svg("path", { class: "band", d: areaPath(xs, data.low, data.high, x, y) }));
    nodes.push(svg("path", { class: "line s0", d: linePath(xs, data.mean, x, y) }));
  } else {
    for (const m of xs) {
      nodes.push(svg("line", { class: "line s0", x1: x(m), x2: x(m), y1: y(data.low[m]), y2: y(data.high[m]) }));
      nodes.push(svg("circle", { class: "mean s0", cx: x(m), cy: y(data.mean[m]), r: 5 }));
    }
  }
  const every = Math.max(1, Math.ceil(xs.length / (width < 480 ? 3 : MOST_LABELS)));
  const marks = isNumber ? ticks(ends, width < 480 ? 4 : 8) : xs.filter((m) => m % every === 0);
  nodes.push(bottomAxis(x, bottom, marks, isNumber ? undefined : (m) => words(data.values[m])));
  return { nodes, x, stops: xs, top, bottom };
}

// The position of the chosen category, truth value or date, between two dates of the curve; null if it is none of them.
function position({ kind, values, chosen }) {
  const found = kind === "date" ? values.findIndex((value) => value >= chosen) : values.indexOf(chosen);
  return chosen === null || found < 0 ? null : found;
}

const words = (value) => (value === true ? "yes" : value === false ? "no" : String(value).slice(0, 14));
const number = (value) => String(Number(value.toPrecision(5)));

function readEffect(at, data) {
  const m = data.kind === "number" ? data.values.indexOf(at) : at;
  const value = data.kind === "number" ? number(data.values[m]) : words(data.values[m]);
  const known = data.familiarity ? `  ·  familiarity ${data.familiarity[m].toFixed(3)}` : "";
  return `${data.column} = ${value}  ·  ${number(data.mean[m])} (${number(data.low[m])} to ${number(data.high[m])})${known}`;
}

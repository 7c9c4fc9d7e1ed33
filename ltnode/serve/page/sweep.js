// The panel of the rotation sweep: a model and, where one is served, its counterpart with or without a latent end-time.

import { Latest, post } from "./api.js";
import { END_TIMES, byId, element, page, say } from "./page.js";
import { Plot, bottomAxis, leftAxis, linear, linePath, svg } from "./plot.js";
import { fixed } from "./results.js";
import { modelTitle } from "./words.js";

const ANGLES = Array.from({ length: 19 }, (_, m) => 10 * m);

let sweep = null; // the last answer
const line = new Latest({ wait: 200, onBusy: (on) => byId("sweep-card").setAttribute("aria-busy", String(on)) });
const plots = ["probability", "entropy"].map((key) => {
  const options = { label: `Angle, ${key}`, draw: drawSweep, read: readSweep, readout: byId("sweep-readout") };
  return new Plot(byId(`sweep-${key}`), options);
});
for (const plot of plots) plot.peers = plots.filter((other) => other !== plot);

export const cancelSweep = () => line.cancel();

export function clearSweep() {
  line.cancel();
  sweep = null;
  for (const plot of plots) plot.set(null);
}

export function requestSweep(subject, input) {
  const other = counterpart(page.model);
  const models = [page.model.name, ...(other ? [other.name] : [])];
  line.run(
    subject,
    (signal) => post("api/sweep", { models, ...input, angles: ANGLES, samples: END_TIMES }, signal),
    (answer) => {
      say("sweep-message", null);
      sweep = answer;
      showSweep();
    },
    (error) => {
      clearSweep();
      say("sweep-message", error.message);
    },
  );
}

// A plain NODE for a model with a latent end-time and vice versa, for the same data.
function counterpart(model) {
  const key = ({ kind, task, data, shape }) => JSON.stringify([kind, task, data, shape]);
  const isPlain = ({ end_time }) => end_time.kind === "fixed";
  const fits = (other) => other !== model && other.end_time.kind !== "none" && isPlain(other) !== isPlain(model);
  return page.models.find((other) => fits(other) && key(other) === key(model)) ?? null;
}

const titleOf = (name) => modelTitle(page.models.find((model) => model.name === name), page.models);
const tone = (name) => (page.models.find((model) => model.name === name)?.end_time.kind === "fixed" ? "plain" : "latent");

// Draws the last answer again, with a mark at the current rotation.
export function showSweep() {
  if (!sweep) return;
  const { curves, angles } = sweep;
  showCaption(...curves);
  const highest = Math.max(0.1, ...curves.flatMap(({ entropy }) => entropy));
  const angle = Number(byId("rotation").value);
  for (const [plot, key, range] of [[plots[0], "probability", [0, 1]], [plots[1], "entropy", [0, 1.08 * highest]]]) {
    // The first curve is drawn last, above the other.
    const lines = curves.map((curve) => ({ tone: tone(curve.model), values: curve[key] })).reverse();
    plot.set({ angles, angle, range, lines });
  }
}

function showCaption(own, other) {
  const { model } = page;
  const key = ({ model: name }) =>
    element("span", { class: "key" }, element("span", { class: `swatch ${tone(name)}`, "aria-hidden": "true" }), titleOf(name));
  const differs = other && other.labels[0] !== own.labels[0] ? ` (${titleOf(other.model)} starts with ${model.classes[other.labels[0]]})` : "";
  const missing =
    model.end_time.kind === "fixed"
      ? " No model with a distribution of end-times is served to compare with this plain NODE."
      : " No plain NODE for the same data is served to compare with.";
  byId("sweep-caption").replaceChildren(
    ...(other ? [key(own), " compared with ", key(other)] : [key(own)]),
    `: how long the class predicted at 0°, ${model.classes[own.labels[0]]}, survives the rotation${differs}.${other ? "" : missing}`,
  );
}

function drawSweep(width, height, data) {
  const left = 34;
  const right = width - 16;
  const top = 8;
  const bottom = height - 20;
  const x = linear([0, 180], [left, right]);
  const y = linear(data.range, [bottom, top]);
  const nodes = [leftAxis(y, left, right, 3), bottomAxis(x, bottom, [0, 45, 90, 135, 180], (angle) => `${angle}°`)];
  if (data.angle > 0) nodes.push(svg("line", { class: "here", x1: x(data.angle), x2: x(data.angle), y1: top, y2: bottom }));
  for (const { tone: name, values } of data.lines) {
    nodes.push(svg("path", { class: `line ${name}`, d: linePath(data.angles, values, x, y) }));
  }
  return { nodes, x, stops: data.angles, top, bottom };
}

function readSweep(angle) {
  const m = sweep.angles.indexOf(angle);
  const parts = sweep.curves.map(
    ({ model, labels, probability, entropy }) =>
      `${titleOf(model)}: ${page.model.classes[labels[m]]}, probability ${fixed(probability[m], 2)}, entropy ${fixed(entropy[m], 2)}`,
  );
  return [`${angle}°`, ...parts].join("  ·  ");
}

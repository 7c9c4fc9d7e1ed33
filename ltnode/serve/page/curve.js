// The panel of a regression model with one input: its curve, and the choice of x.

import { Latest, get } from "./api.js";
import { byId, page, say } from "./page.js";
import { Plot, areaPath, bottomAxis, leftAxis, linear, linePath, svg, ticks, valueAt } from "./plot.js";

const HINT = "Click on the curve, or focus it, move with the arrow keys and press Enter, to choose x.";

let x = null;
let onChoose = null;
const line = new Latest({ wait: 0 });
const plot = new Plot(byId("curve"), {
  label: "x", draw: drawCurve, read: readCurve, readout: byId("curve-readout"), hint: HINT, onPick: chooseX,
});
byId("x").addEventListener("input", () => chooseX(Number(byId("x").value)));
byId("x-value").addEventListener("change", () => {
  const { valueAsNumber: value } = byId("x-value");
  if (Number.isFinite(value)) chooseX(value);
});

export const curveRequest = () => ({ input: [x] });

export function clearCurve() {
  line.cancel();
  plot.set(null);
}

function chooseX(value) {
  x = value;
  byId("x").value = value;
  byId("x-value").value = Number(value.toFixed(3));
  if (plot.data) plot.set({ ...plot.data, chosen: value });
  onChoose();
}

// Asks for the curve of the current model; `callback` runs whenever an x is chosen, and for the first time with the answer.
export function requestCurve(callback) {
  const { name } = page.model;
  onChoose = callback;
  line.run(
    name,
    (signal) => get(`api/curve?model=${encodeURIComponent(name)}&points=200`, signal),
    (answer) => {
      say("curve-message", null);
      const [min, max] = [answer.x[0], answer.x[answer.x.length - 1]];
      for (const id of ["x", "x-value"]) Object.assign(byId(id), { min, max });
      byId("x").step = (max - min) / 400;
      plot.set({ ...answer, chosen: null });
      chooseX(widest(answer));
    },
    (error) => {
      plot.set(null);
      say("curve-message", error.message);
    },
  );
}

// Where the members differ most, within the training points if they are known: the trajectory is most interesting there.
function widest({ x: xs, std, points }) {
  const [low, high] = points ? [Math.min(...points.x), Math.max(...points.x)] : [-Infinity, Infinity];
  const inside = std.map((value, m) => (xs[m] >= low && xs[m] <= high ? value : -1));
  return xs[inside.indexOf(Math.max(...inside))];
}

// data: the answer of /api/curve, and `chosen`, the chosen x or null
function drawCurve(width, height, data) {
  const left = 38;
  const right = width - 12;
  const top = 10;
  const bottom = height - 22;
  const outer = data.std.map((std) => Math.hypot(std, data.noise_std));
  const around = (stds, sign) => data.mean.map((mean, m) => mean + sign * 2 * stds[m]);
  const ys = [...around(outer, -1), ...around(outer, 1), ...(data.points?.y ?? [])];
  const low = Math.min(...ys);
  const high = Math.max(...ys);
  const margin = 0.04 * (high - low || 1);
  const scale = linear([data.x[0], data.x[data.x.length - 1]], [left, right]);
  const y = linear([low - margin, high + margin], [bottom, top]);
  const band = (name, stds) => svg("path", { class: name, d: areaPath(data.x, around(stds, -1), around(stds, 1), scale, y) });
  const path = (name, values) => svg("path", { class: `line ${name}`, d: linePath(data.x, values, scale, y) });
  const nodes = [leftAxis(y, left, right, 5), band("band outer", outer), band("band", data.std)];
  nodes.push(...data.members.map((member) => path("member", member)));
  for (const [m, value] of (data.points?.x ?? []).entries()) {
    nodes.push(svg("circle", { class: "observed", cx: scale(value), cy: y(data.points.y[m]), r: 1.8 }));
  }
  nodes.push(path("s0", data.mean), bottomAxis(scale, bottom, ticks(scale.domain, width < 480 ? 4 : 8)));
  if (data.chosen !== null) {
    const mean = valueAt(data.x, data.mean, data.chosen);
    nodes.push(svg("line", { class: "here", x1: scale(data.chosen), x2: scale(data.chosen), y1: top, y2: bottom }));
    if (mean !== null) nodes.push(svg("circle", { class: "mean s0", cx: scale(data.chosen), cy: y(mean), r: 4.5 }));
  }
  return { nodes, x: scale, stops: data.x, top, bottom };
}

function readCurve(at, data) {
  const m = data.x.indexOf(at);
  const [std, withNoise] = [data.std[m], Math.hypot(data.std[m], data.noise_std)].map((value) => (2 * value).toFixed(3));
  return `x = ${at.toFixed(2)}  ·  mean ${data.mean[m].toFixed(3)}  ·  ±2 std ${std} (with noise ${withNoise})`;
}

// The two further plots: the sweep over angles, and the curve of a regression run.

import { areaPath, bottomAxis, leftAxis, linear, linePath, svg, valueAt } from "./plot.js";

const trim = (value) => String(Number(value.toPrecision(6)));

// data: {angles, lines: [{name, values, tone}], range, angle}; a line has a tone of its own per model
export function drawSweep(width, height, data) {
  const left = 34;
  const right = width - 16;
  const top = 8;
  const bottom = height - 20;
  const x = linear([0, 180], [left, right]);
  const y = linear(data.range, [bottom, top]);
  const axis = bottomAxis(linear([0, 180], [left, right]), bottom, { count: 0 });
  const nodes = [leftAxis(y, left, right, { count: 3, format: trim }), axis];
  axis.replaceChildren(axis.firstChild);
  for (const angle of [0, 45, 90, 135, 180]) {
    axis.append(svg("line", { x1: x(angle), x2: x(angle), y1: bottom, y2: bottom + 4 }));
    axis.append(svg("text", { x: x(angle), y: bottom + 16, "text-anchor": "middle" }, `${angle}°`));
  }
  if (data.angle > 0) nodes.push(svg("line", { class: "here", x1: x(data.angle), x2: x(data.angle), y1: top, y2: bottom }));
  for (const line of data.lines) {
    nodes.push(svg("path", { class: `line ${line.tone}`, d: linePath(data.angles, line.values, x, y) }));
  }
  return { nodes, x, stops: data.angles, top, bottom };
}

// data: the answer of /api/curve, and `chosen`, the x that is looked at
export function drawCurve(width, height, data) {
  const left = 38;
  const right = width - 12;
  const top = 10;
  const bottom = height - 22;
  const outer = data.std.map((std, m) => Math.hypot(std, noiseAt(data, m)));
  const ys = data.mean.flatMap((mean, m) => [mean - 2 * outer[m], mean + 2 * outer[m]]);
  const seen = data.points ? data.points.y : [];
  const low = Math.min(...ys, ...seen);
  const high = Math.max(...ys, ...seen);
  const pad = 0.04 * (high - low || 1);
  const x = linear([data.x[0], data.x[data.x.length - 1]], [left, right]);
  const y = linear([low - pad, high + pad], [bottom, top]);
  const around = (width_, sign) => data.mean.map((mean, m) => mean + sign * 2 * width_[m]);
  const nodes = [leftAxis(y, left, right, { count: 5, format: trim })];
  nodes.push(svg("path", { class: "band outer", d: areaPath(data.x, around(outer, -1), around(outer, 1), x, y) }));
  nodes.push(svg("path", { class: "band", d: areaPath(data.x, around(data.std, -1), around(data.std, 1), x, y) }));
  for (const member of data.members) nodes.push(svg("path", { class: "line member", d: linePath(data.x, member, x, y) }));
  if (data.points) {
    for (const [m, value] of data.points.x.entries()) {
      nodes.push(svg("circle", { class: "observed", cx: x(value), cy: y(data.points.y[m]), r: 1.8 }));
    }
  }
  nodes.push(svg("path", { class: "line s0", d: linePath(data.x, data.mean, x, y) }));
  nodes.push(bottomAxis(x, bottom, { count: width < 480 ? 4 : 8, format: trim }));
  if (data.chosen !== null) {
    const mean = valueAt(data.x, data.mean, data.chosen);
    nodes.push(svg("line", { class: "here", x1: x(data.chosen), x2: x(data.chosen), y1: top, y2: bottom }));
    if (mean !== null) nodes.push(svg("circle", { class: "mean s0", cx: x(data.chosen), cy: y(mean), r: 4.5 }));
  }
  return { nodes, x, stops: data.x, top, bottom };
}

export function readCurve(at, data) {
  const m = data.x.indexOf(at);
  return `x = ${at.toFixed(2)}  ·  mean ${data.mean[m].toFixed(3)}  ·  ±2 std ${(2 * data.std[m]).toFixed(3)} (with noise ${(
    2 * Math.hypot(data.std[m], noiseAt(data, m))
  ).toFixed(3)})`;
}

const noiseAt = (data, m) => (Array.isArray(data.noise_std) ? data.noise_std[m] : (data.noise_std ?? 0));

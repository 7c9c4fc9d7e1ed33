// The main plot: what the network would answer if the ODE stopped at t, over the posterior of the end-time on the same axis.

import { areaPath, bottomAxis, leftAxis, linear, linePath, spread, svg, valueAt } from "./plot.js";

const shorten = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

// data: {t, series: [{name, values, slot}], average: [{name, slot, value}], range, posterior, times, window, unit, total}
// slot 0..3 is a colour, null is muted.
export function drawTrajectory(width, height, data) {
  const narrow = width < 480;
  const left = 38;
  const names = data.average.map((entry) => shorten(entry.name, narrow ? 7 : 11));
  const right = width - 64 - 7.4 * Math.max(1, ...names.map((name) => name.length));
  const top = 22;
  const bottom = height - 22;
  const share = data.posterior ? (bottom - top) * 0.25 : 0;
  const floor = bottom - share - (data.posterior ? 12 : 0);
  const end = Math.max(data.t[data.t.length - 1], ...data.times);
  const x = linear([0, end], [left, right]);
  const y = linear(data.range, [floor, top]);
  const nodes = [leftAxis(y, left, right, { count: 4, format: (v) => trim(v) })];

  if (data.window && end > data.window * 1.001) {
    nodes.push(svg("rect", { class: "beyond", x: x(data.window), y: top, width: x(end) - x(data.window), height: bottom - top }));
    nodes.push(svg("text", { class: "tiny", x: right - 5, y: bottom - share + 10, "text-anchor": "end" }, narrow ? "beyond training" : "beyond the training window"));
  }

  if (data.posterior) {
    const shown = clip(data.posterior, end);
    const q = linear([0, Math.max(1e-9, ...shown.density) * 1.04], [bottom, bottom - share]);
    const zero = shown.t.map(() => 0);
    nodes.push(svg("path", { class: "q-area", d: areaPath(shown.t, zero, shown.density, x, q) }));
    nodes.push(svg("path", { class: "q-line", d: linePath(shown.t, shown.density, x, q) }));
    nodes.push(svg("text", { class: "q-name", x: left - 7, y: bottom - 4, "text-anchor": "end" }, "q(T)"));
  }

  const times = svg("g", { class: "times" });
  for (const time of data.times) {
    times.append(svg("line", { class: "stem", x1: x(time), x2: x(time), y1: top, y2: bottom }));
    times.append(svg("line", { class: "tick", x1: x(time), x2: x(time), y1: bottom - 7, y2: bottom }));
  }
  nodes.push(times, bottomAxis(x, bottom, { count: narrow ? 5 : 6, format: trim }));
  nodes.push(svg("text", { class: "tiny", x: right + 18, y: bottom + 17 }, "time t"));

  const muted = data.series.filter((series) => series.slot === null);
  const told = data.series.filter((series) => series.slot !== null);
  for (const series of muted) nodes.push(svg("path", { class: "line muted", d: linePath(data.t, series.values, x, y) }));
  for (const series of [...told].reverse()) {
    nodes.push(svg("path", { class: `line s${series.slot}`, d: linePath(data.t, series.values, x, y) }));
    for (const time of data.times) {
      const value = valueAt(data.t, series.values, time);
      if (value !== null) nodes.push(svg("circle", { class: `dot s${series.slot}`, cx: x(time), cy: y(value), r: 2.6 }));
    }
  }

  nodes.push(svg("text", { class: "tiny", x: 2, y: 11 }, data.unit), svg("text", { class: "tiny", x: width, y: 11, "text-anchor": "end" }, data.total));
  // The gutter: the average over the end-times, at its height.
  const places = spread(data.average.map((entry) => y(entry.value)), 17, top + 4, floor - 2);
  for (const [m, entry] of data.average.entries()) {
    const spot = y(entry.value);
    nodes.push(svg("path", { class: `leader s${entry.slot}`, d: `M${right + 9} ${spot}L${right + 19} ${places[m]}` }));
    nodes.push(svg("circle", { class: `mean s${entry.slot}`, cx: right + 6, cy: spot, r: 4 }));
    const label = svg("text", { class: "label", x: right + 22, y: places[m] + 4 });
    label.append(svg("tspan", { class: "label-name" }, names[m]), ` ${entry.text}`);
    nodes.push(label);
  }
  return { nodes, x, stops: data.t, top, bottom };
}

export function readTrajectory(time, data) {
  const m = data.t.indexOf(time);
  const parts = [`t = ${time.toFixed(2)}`];
  const density = data.posterior ? valueAt(data.posterior.t, data.posterior.density, time) : null;
  if (density !== null) parts.push(`q(t) ${density.toFixed(2)}`);
  for (const series of data.series.filter((entry) => entry.slot !== null)) {
    parts.push(`${series.name} ${series.values[m].toFixed(3)}`);
  }
  return parts.join("  ·  ");
}

const trim = (value) => String(Number(value.toPrecision(6)));

// The part of a density up to the end of the axis.
function clip({ t, density }, end) {
  const keep = t.map((value) => value <= end + 1e-9);
  const inside = { t: t.filter((_, m) => keep[m]), density: density.filter((_, m) => keep[m]) };
  const edge = valueAt(t, density, end);
  if (edge !== null && inside.t[inside.t.length - 1] < end) {
    inside.t.push(end);
    inside.density.push(edge);
  }
  return inside;
}

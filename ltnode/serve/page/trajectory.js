// The main plot: the answer that the network would give if the ODE stopped at t, above the posterior of the end-time.

import { areaPath, bottomAxis, leftAxis, linear, linePath, spread, svg, ticks, valueAt } from "./plot.js";

const shorten = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

const shortName = ({ name }, width) => shorten(name, width < 480 ? 7 : 11);

// Right end of the time axis: the names of the averages are to the right of it.
export const rightEdge = (width, average) => width - 64 - 7.4 * Math.max(1, ...average.map((entry) => shortName(entry, width).length));

// data: {t, series: [{name, values, slot}], average: [{name, slot, value, text}], range, posterior, times, window, unit, total}
// A slot 0..3 is a colour; null draws the series muted.
export function drawTrajectory(width, height, data) {
  const narrow = width < 480;
  const left = 38;
  const names = data.average.map((entry) => shortName(entry, width));
  const right = rightEdge(width, data.average);
  const top = 22;
  const bottom = height - 22;
  const share = data.posterior ? (bottom - top) * 0.25 : 0;
  const floor = bottom - share - (data.posterior ? 12 : 0);
  const end = data.t[data.t.length - 1]; // The server chooses it such that all end-times and the posterior fit.
  const x = linear([0, end], [left, right]);
  const y = linear(data.range, [floor, top]);
  const nodes = [leftAxis(y, left, right, 4)];

  if (data.window && end > data.window * 1.001) {
    const label = narrow ? "beyond training" : "beyond the training window";
    nodes.push(svg("rect", { class: "beyond", x: x(data.window), y: top, width: x(end) - x(data.window), height: bottom - top }));
    nodes.push(svg("text", { class: "tiny", x: right - 5, y: bottom - share + 10, "text-anchor": "end" }, label));
  }
  if (data.posterior) nodes.push(...drawPosterior(data.posterior, x, left, bottom, share));
  nodes.push(drawTimes(data.times, x, top, bottom), bottomAxis(x, bottom, ticks([0, end], narrow ? 5 : 6)));
  nodes.push(svg("text", { class: "tiny", x: right + 18, y: bottom + 17 }, "time t"));
  nodes.push(...drawSeries(data, x, y));
  nodes.push(svg("text", { class: "tiny", x: 2, y: 11 }, data.unit));
  nodes.push(svg("text", { class: "tiny", x: width, y: 11, "text-anchor": "end" }, data.total));
  const places = spread(data.average.map((entry) => y(entry.value)), 17, top + 4, floor - 2);
  for (const [m, entry] of data.average.entries()) nodes.push(...drawAverage(entry, names[m], right, y(entry.value), places[m]));
  return { nodes, x, stops: data.t, top, bottom };
}

function drawPosterior({ t, density }, x, left, bottom, height) {
  const q = linear([0, Math.max(1e-9, ...density) * 1.04], [bottom, bottom - height]);
  return [
    svg("path", { class: "q-area", d: areaPath(t, t.map(() => 0), density, x, q) }),
    svg("path", { class: "q-line", d: linePath(t, density, x, q) }),
    svg("text", { class: "q-name", x: left - 7, y: bottom - 4, "text-anchor": "end" }, "q(T)"),
  ];
}

function drawTimes(times, x, top, bottom) {
  const group = svg("g", { class: "times" });
  for (const time of times) {
    group.append(svg("line", { class: "stem", x1: x(time), x2: x(time), y1: top, y2: bottom }));
    group.append(svg("line", { class: "tick", x1: x(time), x2: x(time), y1: bottom - 7, y2: bottom }));
  }
  return group;
}

// The leading series, with a dot at each end-time, cover the muted ones.
function drawSeries({ t, times, series }, x, y) {
  const path = (tone, { values }) => svg("path", { class: `line ${tone}`, d: linePath(t, values, x, y) });
  const nodes = series.filter(({ slot }) => slot === null).map((entry) => path("muted", entry));
  for (const entry of series.filter(({ slot }) => slot !== null).reverse()) {
    nodes.push(path(`s${entry.slot}`, entry));
    for (const time of times) {
      const value = valueAt(t, entry.values, time);
      if (value !== null) nodes.push(svg("circle", { class: `dot s${entry.slot}`, cx: x(time), cy: y(value), r: 2.6 }));
    }
  }
  return nodes;
}

// The average over the end-times, to the right of the plot and at its height.
function drawAverage({ slot, text }, name, right, height, place) {
  return [
    svg("path", { class: `leader s${slot}`, d: `M${right + 9} ${height}L${right + 19} ${place}` }),
    svg("circle", { class: `mean s${slot}`, cx: right + 6, cy: height, r: 4 }),
    svg("text", { class: "label", x: right + 22, y: place + 4 }, svg("tspan", { class: "label-name" }, name), ` ${text}`),
  ];
}

export function readTrajectory(time, data) {
  const m = data.t.indexOf(time);
  const parts = [`t = ${time.toFixed(2)}`];
  const density = data.posterior ? valueAt(data.posterior.t, data.posterior.density, time) : null;
  if (density !== null) parts.push(`q(t) ${density.toFixed(2)}`);
  for (const { name, slot, values } of data.series) if (slot !== null) parts.push(`${name} ${values[m].toFixed(3)}`);
  return parts.join("  ·  ");
}

// Plots as inline SVG: scales, axes, lines, and a cursor that follows the mouse, a finger or the arrow keys.
// The style sheet sets the colours by class, so that a change of the theme needs no new drawing.

import { fill } from "./page.js";

const NAMESPACE = "http://www.w3.org/2000/svg";

export const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(NAMESPACE, name), attributes, children);

export function linear([a, b], [p, q]) {
  const slope = (q - p) / (b - a || 1);
  const scale = (value) => p + (value - a) * slope;
  scale.invert = (pixel) => a + (pixel - p) / (slope || 1);
  scale.domain = [a, b];
  scale.range = [p, q];
  return scale;
}

// Round numbers in the domain, about `count` of them.
export function ticks([a, b], count) {
  const rough = (b - a) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const values = [];
  for (let k = Math.ceil(a / step - 1e-9); k * step <= b + 1e-9 * step; k += 1) values.push(Number((k * step).toPrecision(12)));
  return values;
}

export const linePath = (xs, ys, x, y) => xs.map((value, m) => `${m ? "L" : "M"}${x(value).toFixed(2)} ${y(ys[m]).toFixed(2)}`).join("");

export function areaPath(xs, low, high, x, y) {
  const back = xs.map((value, m) => `L${x(value).toFixed(2)} ${y(low[m]).toFixed(2)}`).reverse();
  return `${linePath(xs, high, x, y)}${back.join("")}Z`;
}

// A short number: at most six digits, thousands and millions as k and M.
export function trim(value) {
  const [unit, letter] = Math.abs(value) >= 1e6 ? [1e6, "M"] : Math.abs(value) >= 1e4 ? [1e3, "k"] : [1, ""];
  return `${Number((value / unit).toPrecision(letter ? 4 : 6))}${letter}`;
}

export function bottomAxis(x, pixel, values, format = trim) {
  const [left, right] = x.range;
  const axis = svg("g", { class: "axis" }, svg("line", { x1: left, x2: right, y1: pixel, y2: pixel }));
  for (const value of values) {
    axis.append(svg("line", { x1: x(value), x2: x(value), y1: pixel, y2: pixel + 4 }));
    axis.append(svg("text", { x: x(value), y: pixel + 17, "text-anchor": "middle" }, format(value)));
  }
  return axis;
}

export function leftAxis(y, left, right, count) {
  const axis = svg("g", { class: "axis" });
  for (const value of ticks(y.domain, count)) {
    axis.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    axis.append(svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, trim(value)));
  }
  return axis;
}

// Moves labels apart until they are `gap` from each other, and keeps them between top and bottom.
export function spread(positions, gap, top, bottom) {
  const order = positions.map((_, m) => m).sort((a, b) => positions[a] - positions[b]);
  const placed = [];
  let floor = top;
  for (const m of order) {
    placed[m] = Math.max(positions[m], floor);
    floor = placed[m] + gap;
  }
  let ceiling = bottom;
  for (const m of order.reverse()) {
    placed[m] = Math.min(placed[m], ceiling);
    ceiling = placed[m] - gap;
  }
  return placed;
}

// Linear interpolation on a sorted grid; null outside the grid.
export function valueAt(xs, ys, x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  const m = xs.findIndex((value) => value >= x);
  if (m <= 0) return ys[0];
  const share = (x - xs[m - 1]) / (xs[m] - xs[m - 1] || 1);
  return ys[m - 1] + share * (ys[m] - ys[m - 1]);
}

export class Plot {
  // draw(width, height, data) -> {nodes, x, stops, top, bottom}: the drawing, its x scale, and the stops of the cursor.
  // read(stop, data) -> the values at a stop as a text, which `readout` shows and screen readers speak.
  constructor(host, { label, draw, read, readout, hint = "", onPick = null }) {
    Object.assign(this, { host, draw, read, readout, hint, onPick, data: null, at: null, stops: [], peers: [] });
    this.root = svg("svg", { role: "slider", tabindex: "0", "aria-label": label, "aria-orientation": "horizontal" });
    this.body = svg("g");
    this.cursor = svg("g", { class: "cursor" });
    this.root.append(this.body, this.cursor);
    host.append(this.root);
    new ResizeObserver(() => this.render()).observe(host);
    this.root.addEventListener("pointermove", (event) => this.follow(event));
    this.root.addEventListener("pointerdown", (event) => {
      this.follow(event);
      if (this.at !== null) this.onPick?.(this.at);
    });
    this.root.addEventListener("pointerleave", () => this.show(null));
    this.root.addEventListener("blur", () => this.show(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.show(null);
  }

  set(data) {
    this.data = data;
    this.render();
  }

  render() {
    const { width, height } = this.host.getBoundingClientRect();
    this.body.replaceChildren();
    if (!this.data || width < 60) {
      Object.assign(this, { x: null, stops: [] });
      this.show(null);
      return;
    }
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const { nodes, ...drawn } = this.draw(width, height, this.data);
    Object.assign(this, drawn);
    this.body.append(...nodes);
    this.root.setAttribute("aria-valuemin", this.stops[0]);
    this.root.setAttribute("aria-valuemax", this.stops[this.stops.length - 1]);
    this.show(this.at);
  }

  follow(event) {
    if (!this.x) return;
    const value = this.x.invert(event.clientX - this.root.getBoundingClientRect().left);
    this.show(this.stops.reduce((best, stop) => (Math.abs(stop - value) < Math.abs(best - value) ? stop : best)));
  }

  key(event) {
    if (!this.stops.length) return;
    const last = this.stops.length - 1;
    const now = this.at === null ? -1 : this.stops.indexOf(this.at);
    const back = now < 0 ? last : now - 1;
    const moves = {
      ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: back, ArrowDown: back, PageUp: now + 10, PageDown: now - 10, Home: 0, End: last,
    };
    if (event.key === "Escape") this.show(null);
    else if (event.key === "Enter" && this.at !== null) this.onPick?.(this.at);
    else if (event.key in moves) this.show(this.stops[Math.min(last, Math.max(0, moves[event.key]))]);
    else return;
    event.preventDefault();
  }

  show(at, together = true) {
    this.at = at !== null && this.stops.length ? at : null;
    this.cursor.replaceChildren();
    const shown = this.at !== null && this.x;
    if (shown) this.cursor.append(svg("line", { x1: this.x(this.at), x2: this.x(this.at), y1: this.top, y2: this.bottom }));
    const text = shown ? this.read(this.at, this.data) : this.hint;
    this.root.setAttribute("aria-valuenow", shown ? this.at : (this.stops[0] ?? 0));
    this.root.setAttribute("aria-valuetext", text);
    this.readout.textContent = text;
    if (together) for (const peer of this.peers) peer.show(this.at, false);
  }
}

// Plots as inline SVG: scales, axes, lines, and a cursor that mouse, finger and arrow keys move alike.
// Colours come from the style sheet by class, so that a change of theme needs no new drawing.

const NAMESPACE = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function linear([a, b], [p, q]) {
  const slope = (q - p) / (b - a || 1);
  const scale = (value) => p + (value - a) * slope;
  scale.invert = (pixel) => a + (pixel - p) / (slope || 1);
  scale.domain = [a, b];
  scale.range = [p, q];
  return scale;
}

// Round numbers, about `count` of them, that cover the domain.
export function ticks([a, b], count) {
  const rough = (b - a) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(a / step - 1e-9); k * step <= b + 1e-9 * step; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found;
}

export const linePath = (xs, ys, x, y) => xs.map((value, m) => `${m ? "L" : "M"}${x(value).toFixed(2)} ${y(ys[m]).toFixed(2)}`).join("");

export function areaPath(xs, low, high, x, y) {
  const back = xs.map((value, m) => `L${x(value).toFixed(2)} ${y(low[m]).toFixed(2)}`).reverse();
  return `${linePath(xs, high, x, y)}${back.join("")}Z`;
}

export function bottomAxis(x, pixel, { count = 6, format = String, title = "" } = {}) {
  const [left, right] = x.range;
  const axis = svg("g", { class: "axis" });
  axis.append(svg("line", { x1: left, x2: right, y1: pixel, y2: pixel }));
  for (const value of ticks(x.domain, count)) {
    axis.append(svg("line", { x1: x(value), x2: x(value), y1: pixel, y2: pixel + 4 }));
    axis.append(svg("text", { x: x(value), y: pixel + 17, "text-anchor": "middle" }, format(value)));
  }
  if (title) axis.append(svg("text", { x: right, y: pixel - 6, "text-anchor": "end", class: "name" }, title));
  return axis;
}

export function leftAxis(y, left, right, { count = 4, format = String } = {}) {
  const axis = svg("g", { class: "axis" });
  for (const value of ticks(y.domain, count)) {
    axis.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    axis.append(svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  return axis;
}

// Labels at their places or as near as a line height allows, between top and bottom.
export function spread(wanted, gap, top, bottom) {
  const order = wanted.map((_, m) => m).sort((a, b) => wanted[a] - wanted[b]);
  const placed = [];
  let floor = top;
  for (const m of order) {
    placed[m] = Math.max(wanted[m], floor);
    floor = placed[m] + gap;
  }
  let ceiling = bottom;
  for (const m of order.reverse()) {
    placed[m] = Math.min(placed[m], ceiling);
    ceiling = placed[m] - gap;
  }
  return placed;
}

// Linear interpolation in a sorted grid; null outside of it.
export function valueAt(xs, ys, x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  let m = xs.findIndex((value) => value >= x);
  if (m <= 0) return ys[0];
  const share = (x - xs[m - 1]) / (xs[m] - xs[m - 1] || 1);
  return ys[m - 1] + share * (ys[m] - ys[m - 1]);
}

export class Plot {
  // draw(width, height, data) -> {nodes, x, stops, top, bottom}: what to show, and where the cursor may stand;
  // read(stop, data) -> what to say there (a string), shown in `readout` and spoken.
  constructor(host, { label, draw, read, readout, hint = "", mark = null, onPick = null }) {
    Object.assign(this, { host, draw, read, readout, hint, mark, onPick, data: null, at: null, stops: [], peers: [] });
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
    const drawn = this.draw(width, height, this.data);
    Object.assign(this, { x: drawn.x, stops: drawn.stops, top: drawn.top, bottom: drawn.bottom });
    this.body.append(...drawn.nodes);
    this.root.setAttribute("aria-valuemin", this.stops[0]);
    this.root.setAttribute("aria-valuemax", this.stops[this.stops.length - 1]);
    this.show(this.at);
  }

  follow(event) {
    if (!this.x) return;
    const value = this.x.invert(event.clientX - this.root.getBoundingClientRect().left);
    let nearest = this.stops[0];
    for (const stop of this.stops) if (Math.abs(stop - value) < Math.abs(nearest - value)) nearest = stop;
    this.show(nearest);
  }

  key(event) {
    if (!this.stops.length) return;
    const last = this.stops.length - 1;
    const now = this.at === null ? -1 : this.stops.indexOf(this.at);
    const moves = {
      ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now < 0 ? last : now - 1, ArrowDown: now < 0 ? last : now - 1,
      PageUp: now + 10, PageDown: now - 10, Home: 0, End: last,
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
    if (this.at !== null && this.x) {
      const place = this.x(this.at);
      this.cursor.append(svg("line", { x1: place, x2: place, y1: this.top, y2: this.bottom }));
      const words = this.read(this.at, this.data);
      this.root.setAttribute("aria-valuenow", this.at);
      this.root.setAttribute("aria-valuetext", words);
      if (this.readout) this.readout.textContent = words;
    } else {
      this.root.setAttribute("aria-valuenow", this.stops[0] ?? 0);
      this.root.setAttribute("aria-valuetext", this.hint);
      if (this.readout) this.readout.textContent = this.hint;
    }
    if (together) for (const peer of this.peers) peer.show(this.at, false);
  }
}

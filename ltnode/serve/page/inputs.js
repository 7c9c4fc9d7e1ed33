// Where an image comes from: a sample, the drawing pad, a file. Each hands over what goes into a request.

import { element } from "./results.js";

const LARGEST_FILE = 6_000_000; // bytes; as base64 it still fits into the server's default limit

export const base64 = (bytes) => {
  let text = "";
  for (let m = 0; m < bytes.length; m += 0x8000) text += String.fromCharCode(...bytes.subarray(m, m + 0x8000));
  return btoa(text);
};

const newest = new WeakMap();

// A PNG in base64 onto a canvas. An <img> with a data: address would need a weaker content security policy.
export async function showPicture(canvas, encoded) {
  newest.set(canvas, encoded);
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  if (newest.get(canvas) !== encoded) return; // another one was asked for meanwhile
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
}

export class Samples {
  constructor(host, onChoose) {
    Object.assign(this, { host, onChoose, chosen: null });
  }

  offer(samples, preferred) {
    this.samples = samples;
    this.host.replaceChildren(
      ...samples.map((sample) => {
        const picture = element("img", { src: `api/samples/${encodeURIComponent(sample.id)}.png`, alt: "", width: 48, height: 48, loading: "lazy" });
        const button = element("button", { type: "button", class: "thumb", "aria-label": sample.title, title: sample.title, "data-sample": sample.id }, picture);
        button.addEventListener("click", () => {
          this.mark(sample);
          this.onChoose(sample);
        });
        return button;
      }),
    );
    this.mark(samples.find((sample) => sample.id === preferred) ?? first(samples));
  }

  mark(sample) {
    this.chosen = sample;
    for (const button of this.host.children) button.setAttribute("aria-pressed", String(button.dataset.sample === sample?.id));
  }

  get request() {
    return this.chosen ? { sample: this.chosen.id } : null;
  }
}

// Begin with a sample that has no right answer: there the uncertainty shows.
const first = (samples) => samples.find((sample) => sample.label === null) ?? samples[0] ?? null;

export class Pad {
  constructor(canvas, onDraw) {
    Object.assign(this, { canvas, onDraw, strokes: [], stroke: null, pen: [canvas.width / 2, canvas.height / 2], down: false });
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.begin(this.place(event));
      event.preventDefault();
      canvas.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.stroke || this.down) return;
      for (const part of event.getCoalescedEvents?.().length ? event.getCoalescedEvents() : [event]) this.stroke.push(this.place(part));
      this.paint();
      this.onDraw();
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, () => {
        if (!this.down) this.stroke = null;
      });
    }
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.paint());
    canvas.addEventListener("blur", () => {
      this.down = false;
      this.stroke = null;
      this.paint();
    });
    this.paint();
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.canvas.width, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }

  begin(point) {
    this.stroke = [point];
    this.strokes.push(this.stroke);
    this.pen = point;
    this.paint();
    this.onDraw();
  }

  key(event) {
    const step = this.canvas.width / (event.shiftKey ? 70 : 28);
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key in moves) {
      const edge = this.canvas.width;
      this.pen = this.pen.map((value, axis) => Math.min(edge, Math.max(0, value + moves[event.key][axis])));
      if (this.down) {
        this.stroke.push([...this.pen]);
        this.onDraw();
      }
      this.paint();
    } else if (event.key === " ") {
      this.down = !this.down;
      if (this.down) this.begin([...this.pen]);
      else this.stroke = null;
      this.paint();
    } else if (event.key === "Delete" || event.key === "Backspace") this.clear();
    else return;
    event.preventDefault();
  }

  undo() {
    this.strokes.pop();
    this.paint();
    this.onDraw();
  }

  clear() {
    Object.assign(this, { strokes: [], stroke: null, down: false });
    this.paint();
    this.onDraw();
  }

  get empty() {
    return this.strokes.length === 0;
  }

  paint() {
    this.ink(this.context, this.canvas.width);
    if (document.activeElement === this.canvas && this.canvas.matches(":focus-visible")) {
      const [x, y] = this.pen;
      this.context.beginPath();
      this.context.arc(x, y, 9, 0, 2 * Math.PI);
      this.context.lineWidth = 2;
      this.context.strokeStyle = this.down ? "#f0863a" : "#56b4e9";
      this.context.stroke();
    }
  }

  ink(context, size) {
    context.fillStyle = "#000";
    context.fillRect(0, 0, size, size);
    context.lineWidth = size / 13;
    context.lineCap = context.lineJoin = "round";
    context.strokeStyle = "#fff";
    for (const stroke of this.strokes) {
      context.beginPath();
      context.moveTo(...stroke[0]);
      for (const point of stroke.length > 1 ? stroke.slice(1) : stroke) context.lineTo(...point);
      context.stroke();
    }
  }

  // As MNIST lays its digits out: the larger side fills 20/28 of the image, and the centre of mass sits at the middle.
  pixels([, rows, columns]) {
    const size = this.canvas.width;
    const large = new OffscreenCanvas(size, size).getContext("2d");
    this.ink(large, size);
    const source = large.getImageData(0, 0, size, size).data;
    const box = extent(source, size);
    const scale = ((20 / 28) * Math.min(rows, columns)) / Math.max(box.width, box.height, size / 10);
    const small = new OffscreenCanvas(columns, rows).getContext("2d", { willReadFrequently: true });
    small.imageSmoothingQuality = "high";
    small.fillRect(0, 0, columns, rows);
    small.translate(columns / 2 - scale * box.x, rows / 2 - scale * box.y);
    small.scale(scale, scale);
    small.drawImage(large.canvas, 0, 0);
    const data = small.getImageData(0, 0, columns, rows).data;
    return Array.from({ length: rows }, (_, m) => Array.from({ length: columns }, (_, n) => Number((data[4 * (m * columns + n)] / 255).toFixed(4))));
  }

  request(shape) {
    return this.empty ? null : { input: [this.pixels(shape)] };
  }
}

// Bounding box and centre of mass of what is not black.
function extent(data, size) {
  let [left, right, top, bottom, mass, x, y] = [size, 0, size, 0, 0, 0, 0];
  for (let m = 0; m < size; m += 1) {
    for (let n = 0; n < size; n += 1) {
      const value = data[4 * (m * size + n)];
      if (!value) continue;
      [left, right, top, bottom] = [Math.min(left, n), Math.max(right, n), Math.min(top, m), Math.max(bottom, m)];
      mass += value;
      x += value * (n + 0.5);
      y += value * (m + 0.5);
    }
  }
  return { width: right - left + 1, height: bottom - top + 1, x: mass ? x / mass : size / 2, y: mass ? y / mass : size / 2 };
}

export class Upload {
  constructor({ input, drop, name }, onChoose, onRefuse) {
    Object.assign(this, { name, onChoose, onRefuse, encoded: null, count: 0 });
    input.addEventListener("change", () => {
      this.take(input.files[0]);
      input.value = ""; // the same file again is a choice, too
    });
    drop.addEventListener("dragover", (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      this.take(event.dataTransfer.files[0]);
    });
  }

  async take(file) {
    if (!file) return;
    this.count += 1;
    this.name.textContent = file.name;
    if (file.size > LARGEST_FILE) {
      this.encoded = null;
      this.onRefuse(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; the page sends at most ${LARGEST_FILE / 1e6} MB. Reduce it first.`);
      return;
    }
    this.encoded = base64(new Uint8Array(await file.arrayBuffer()));
    this.onChoose();
  }

  get request() {
    return this.encoded === null ? null : { image: this.encoded };
  }
}

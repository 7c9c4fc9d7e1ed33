// The drawing pad, for the mouse, a finger or the keyboard.

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
      const events = event.getCoalescedEvents?.() ?? [];
      for (const part of events.length ? events : [event]) this.stroke.push(this.place(part));
      this.changed();
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, () => {
        if (!this.down) this.stroke = null;
      });
    }
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.paint());
    canvas.addEventListener("blur", () => {
      Object.assign(this, { stroke: null, down: false });
      this.paint();
    });
    this.paint();
  }

  place(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    return [((event.clientX - left) / width) * this.canvas.width, ((event.clientY - top) / height) * this.canvas.height];
  }

  begin(point) {
    this.stroke = [point];
    this.strokes.push(this.stroke);
    this.pen = point;
    this.changed();
  }

  changed() {
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
    this.changed();
  }

  clear() {
    Object.assign(this, { strokes: [], stroke: null, down: false });
    this.changed();
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

  // The drawing in the layout of MNIST: its larger side fills 20/28 of the image, and its centre of mass is in the middle.
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
    const value = (m, n) => Number((data[4 * (m * columns + n)] / 255).toFixed(4));
    return Array.from({ length: rows }, (_, m) => Array.from({ length: columns }, (_, n) => value(m, n)));
  }

  request(shape) {
    return this.strokes.length === 0 ? null : { input: [this.pixels(shape)] };
  }
}

// Size of the bounding box and centre of mass of the pixels that are not black.
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

// The input of an image model: a sample, a drawing or a file, and how it is changed.

import { byId, element } from "./page.js";
import { Pad } from "./pad.js";

const LARGEST_FILE = 6_000_000; // bytes; in base64 it still fits into the default limit of the server
const SOURCES = ["samples", "draw", "upload"];
const CHANGES = ["rotation", "noise", "epsilon"];

export function base64(bytes) {
  let text = "";
  for (let m = 0; m < bytes.length; m += 0x8000) text += String.fromCharCode(...bytes.subarray(m, m + 0x8000));
  return btoa(text);
}

let newest = null;

// Draws a PNG in base64 on a canvas. An <img> with a data: address would need a weaker content security policy.
export async function showPicture(canvas, encoded) {
  newest = encoded;
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  if (newest !== encoded) return; // A newer picture has been requested in the meantime.
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
}

class Samples {
  constructor(host, onChoose) {
    Object.assign(this, { host, onChoose, chosen: null });
  }

  // Offers the samples of a model and keeps the chosen one if it is among them. Otherwise we start with noise for a model that
  // can call it unfamiliar, and with another sample without a correct answer for others, which shows the uncertainty.
  offer(samples, knowsFamiliar) {
    this.host.replaceChildren(...samples.map((sample) => this.button(sample)));
    const kept = samples.find(({ id }) => id === this.chosen?.id);
    const noise = knowsFamiliar ? samples.find(({ id }) => id.startsWith("noise")) : null;
    this.mark(kept ?? noise ?? samples.find(({ label }) => label === null) ?? samples[0] ?? null);
  }

  button(sample) {
    const { id, title } = sample;
    const picture = element("img", { src: `api/samples/${encodeURIComponent(id)}.png`, alt: "", width: 48, height: 48, loading: "lazy" });
    const button = element("button", { type: "button", class: "thumb", "aria-label": title, title, "data-sample": id }, picture);
    button.addEventListener("click", () => {
      this.mark(sample);
      this.onChoose();
    });
    return button;
  }

  mark(sample) {
    this.chosen = sample;
    for (const button of this.host.children) button.setAttribute("aria-pressed", String(button.dataset.sample === sample?.id));
  }

  request() {
    return this.chosen ? { sample: this.chosen.id } : null;
  }
}

class Upload {
  constructor({ input, drop, name }, onChoose, onRefuse) {
    Object.assign(this, { name, onChoose, onRefuse, encoded: null, count: 0 });
    input.addEventListener("change", () => {
      this.take(input.files[0]);
      input.value = ""; // so that the same file can be chosen again
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
      const size = (file.size / 1e6).toFixed(1);
      this.onRefuse(`${file.name} has ${size} MB, but the page sends at most ${LARGEST_FILE / 1e6} MB: reduce the image first.`);
      return;
    }
    this.encoded = base64(new Uint8Array(await file.arrayBuffer()));
    this.onChoose();
  }

  request() {
    return this.encoded === null ? null : { image: this.encoded };
  }
}

export class ImageInputs {
  // onInput({wait}) runs when the image changes, onChange({wait}) when only its rotation, noise or attack do,
  // onRefuse(reason) when a file is too large to be sent.
  constructor({ onInput, onChange, onRefuse }) {
    const atOnce = () => onInput({ wait: 0 });
    this.source = "samples";
    this.sources = {
      samples: new Samples(byId("samples"), atOnce),
      draw: new Pad(byId("pad"), () => onInput({})),
      upload: new Upload({ input: byId("file"), drop: byId("drop"), name: byId("file-name") }, atOnce, onRefuse),
    };
    byId("undo").addEventListener("click", () => this.sources.draw.undo());
    byId("clear").addEventListener("click", () => this.sources.draw.clear());
    for (const radio of document.getElementsByName("source")) {
      radio.addEventListener("change", () => {
        this.choose(radio.value);
        atOnce();
      });
    }
    for (const name of CHANGES) {
      const slider = byId(name);
      const field = byId(`${name}-value`);
      const update = (value) => {
        slider.value = value;
        field.value = slider.value;
      };
      const follow = (source) => () => {
        update(source.value || 0);
        onChange({});
      };
      slider.addEventListener("input", follow(slider));
      field.addEventListener("change", follow(field));
      byId("reset").addEventListener("click", () => update(0));
    }
    byId("reset").addEventListener("click", () => onChange({ wait: 0 }));
  }

  choose(source) {
    this.source = source;
    for (const radio of document.getElementsByName("source")) radio.checked = radio.value === source;
    for (const name of SOURCES) byId(`source-${name}`).hidden = name !== source;
  }

  offer(model) {
    const drawable = model.shape[0] === 1;
    const draw = document.querySelector('input[name="source"][value="draw"]');
    draw.disabled = !drawable;
    draw.parentElement.title = drawable ? "" : "Drawing is for models of grey images";
    this.sources.samples.offer(model.samples, model.familiarity && !model.familiarity.problem);
    byId("no-samples").hidden = model.samples.length > 0;
    if (this.source === "draw" && !drawable) this.choose("samples");
  }

  request(model) {
    return this.sources[this.source].request(model.shape);
  }

  get change() {
    return Object.fromEntries(CHANGES.map((name) => [name, Number(byId(name).value)]));
  }

  // Differs between two images, but not between two states of one drawing.
  get subject() {
    const { samples, upload } = this.sources;
    return [this.source, this.source === "samples" ? samples.chosen?.id : upload.count];
  }
}

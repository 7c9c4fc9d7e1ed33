// The page: which model, which input, what the server says about it.

import { ApiError, Latest, get, post, tokenInAddress } from "./api.js";
import { drawCurve, drawSweep, readCurve } from "./curves.js";
import { Pad, Samples, Upload, showPicture } from "./inputs.js";
import { Plot } from "./plot.js";
import { Colours, element, fixed, showBars, showEntropy, showFacts, showFlags, showVerdict } from "./results.js";
import { drawTrajectory, readTrajectory } from "./trajectory.js";
import { about, captions, sentence } from "./words.js";

const POINTS = 161;
const END_TIMES = 10;
const ANGLES = Array.from({ length: 19 }, (_, m) => 10 * m);
const CHANGES = ["rotation", "noise", "epsilon"];

const byId = (id) => document.getElementById(id);
const state = { models: [], model: null, source: "samples", x: null, subject: null, sweep: null, sweepWanted: false };
const colours = new Colours();

const say = (id, words) => {
  const host = byId(id);
  host.hidden = !words;
  host.textContent = words ? sentence(words, state.models) : "";
};

// ---- plots

const hint = "Move over the plot, or focus it and press the arrow keys, for the values at t.";
const trajectory = new Plot(byId("trajectory"), {
  label: "Time t", draw: drawTrajectory, read: readTrajectory, readout: byId("trajectory-readout"), hint,
});
const curve = new Plot(byId("curve"), {
  label: "x", draw: drawCurve, read: readCurve, readout: byId("curve-readout"), hint: "Press on the curve, or focus it, move with the arrow keys and press Enter, to choose x.", onPick: (x) => chooseX(x),
});
const sweepPlot = (id, label, key) =>
  new Plot(byId(id), { label, draw: drawSweep, readout: byId("sweep-readout"), hint: "", read: (angle) => readSweep(angle, key) });
const sweeps = { probability: sweepPlot("sweep-probability", "Angle, probability", "probability"), entropy: sweepPlot("sweep-entropy", "Angle, entropy", "entropy") };
sweeps.probability.peers = [sweeps.entropy];
sweeps.entropy.peers = [sweeps.probability];

// ---- requests: one line each, of which only the newest counts

const busy = (on) => {
  byId("result").classList.toggle("busy", on);
  byId("result").setAttribute("aria-busy", String(on));
};
const lines = {
  trajectory: new Latest({ wait: 60, onBusy: busy }),
  sweep: new Latest({ wait: 200, onBusy: (on) => byId("sweep-card").setAttribute("aria-busy", String(on)) }),
  curve: new Latest({ wait: 0 }),
};

const changes = () => Object.fromEntries(CHANGES.map((name) => [name, Number(byId(name).value)]));

function input() {
  const { model, source } = state;
  if (model.kind === "vector") return isScalar(model) ? { input: [state.x] } : { input: numbers() };
  if (source === "draw") return pad.request(model.shape);
  if (source === "upload") return upload.request;
  return samples.request;
}

function refresh({ sweep = true, wait } = {}) {
  const { model } = state;
  const given = input();
  say("input-message", null);
  if (!given || given.input?.some?.((value) => value === null)) {
    lines.trajectory.cancel();
    lines.sweep.cancel();
    waiting();
    return;
  }
  const image = model.kind === "image";
  const body = { model: model.name, ...given, points: POINTS, samples: END_TIMES, ...(image ? { change: changes() } : {}) };
  const subject = JSON.stringify([model.name, state.source, given.sample, upload.count]);
  if (sweep) lines.sweep.cancel();
  state.sweepWanted ||= sweep && image && model.task === "classification";
  lines.trajectory.run(
    subject,
    (signal) => post("api/trajectory", body, signal).catch((error) => withoutTrajectory(error, body, signal)),
    (answer) => {
      if (state.subject !== subject) colours.slots.clear();
      state.subject = subject;
      show(answer);
      // The larger question waits for the smaller one, and for a hand that is still drawing.
      if (state.sweepWanted && !lines.trajectory.next) requestSweep(subject, given);
      else moveSweepMark();
    },
    refused,
    wait,
  );
}

// Models without an end-time have no trajectory, but they do predict.
async function withoutTrajectory(error, body, signal) {
  if (!(error instanceof ApiError) || state.model.end_time.kind !== "none") throw error;
  const { model, input: array, image, sample } = body;
  const given = array ? { inputs: [array] } : { images: [image ?? (await samplePicture(sample, signal))] };
  const answer = await post("api/predict", { model, samples: END_TIMES, ...given }, signal);
  return { ...answer, prediction: answer.predictions[0], times: [], reason: error.message };
}

async function samplePicture(id, signal) {
  const { base64 } = await import("./inputs.js");
  const response = await fetch(`api/samples/${encodeURIComponent(id)}.png`, { signal });
  return base64(new Uint8Array(await response.arrayBuffer()));
}

// ---- answers

function show(answer) {
  const { model } = state;
  const row = answer.prediction;
  showVerdict(byId("verdict"), row, model);
  showFacts(byId("facts"), answer, model);
  byId("notes").replaceChildren(...(answer.notes ?? []).map((note) => element("li", {}, note)));
  if (answer.image) showPicture(byId("seen"), answer.image);
  if (row.task === "classification") {
    const leading = colours.update(row.probs);
    showBars(byId("bars"), row, model, colours);
    showEntropy(byId("entropy"), row, model);
    showFlags(byId("flags"), row, model);
    if (answer.probs) {
      plotTrajectory(answer, {
        range: [0, 1],
        unit: "probability",
        series: model.classes.map((name, label) => ({ name, slot: colours.of(label), values: answer.probs.map((at) => at[label]) })),
        average: leading.map((label) => ({ name: model.classes[label], slot: colours.of(label), value: row.probs[label], text: fixed(row.probs[label], 2) })),
      });
    }
  } else if (answer.means) {
    const low = Math.min(...answer.means, row.mean);
    const high = Math.max(...answer.means, row.mean);
    const pad_ = 0.08 * (high - low || 1);
    plotTrajectory(answer, {
      range: [low - pad_, high + pad_],
      unit: "mean",
      series: [{ name: "mean", slot: 0, values: answer.means }],
      average: [{ name: "mean", slot: 0, value: row.mean, text: fixed(row.mean, 2) }],
    });
  }
  byId("trajectory").hidden = Boolean(answer.reason);
  byId("trajectory-readout").hidden = Boolean(answer.reason);
  say("trajectory-message", answer.reason);
  byId("result").classList.remove("empty");
}

function plotTrajectory(answer, parts) {
  const window_ = state.model.end_time.window;
  trajectory.set({ t: answer.t, posterior: answer.posterior, times: answer.times, window: window_ ? window_[1] : null, total: state.model.end_time.kind === "fixed" ? "answer" : "average", ...parts });
}

function refused(error) {
  say("input-message", error.message);
  lines.sweep.cancel();
  waiting();
}

// No answer to show: the numbers of another input must not stand beside this one.
function waiting() {
  byId("result").classList.add("empty");
  byId("notes").replaceChildren();
  const words = { draw: "Draw something on the pad.", upload: "Choose or drop an image." }[state.source] ?? "Choose an input.";
  const failed = !byId("input-message").hidden;
  byId("verdict").replaceChildren(element("p", { class: "second" }, failed ? "No prediction for this input." : words));
  byId("facts").replaceChildren();
  byId("seen").width = byId("seen").width; // clears it
}

// ---- the sweep

function partner(model) {
  const same = state.models.filter((other) => other !== model && other.kind === "image" && other.task === model.task && other.data === model.data && String(other.shape) === String(model.shape));
  const wanted = (other) => (model.end_time.kind === "fixed" ? other.end_time.kind !== "fixed" && other.end_time.kind !== "none" : other.end_time.kind === "fixed");
  return same.find(wanted) ?? null;
}

function requestSweep(subject, given) {
  const { model } = state;
  state.sweepWanted = false;
  const other = partner(model);
  const names = [model.name, ...(other ? [other.name] : [])];
  lines.sweep.run(
    subject,
    (signal) => post("api/sweep", { models: names, ...given, angles: ANGLES, samples: END_TIMES }, signal),
    (answer) => {
      say("sweep-message", null);
      state.sweep = answer;
      showSweep();
    },
    (error) => {
      state.sweep = null;
      for (const plot of Object.values(sweeps)) plot.set(null);
      say("sweep-message", error.message);
    },
  );
}

const tone = (name) => (state.models.find((model) => model.name === name)?.end_time.kind === "fixed" ? "plain" : "latent");

function showSweep() {
  const { model, sweep } = state;
  const [own, other] = sweep.curves;
  const label = model.classes[own.labels[0]];
  const key = (entry) => element("span", { class: "key" }, element("span", { class: `swatch ${tone(entry.model)}`, "aria-hidden": "true" }), entry.model);
  const apart = other && other.labels[0] !== own.labels[0] ? ` (${other.model} begins with ${model.classes[other.labels[0]]})` : "";
  const alone = model.end_time.kind === "fixed" ? " No model with a distribution of end-times is served beside this plain NODE." : " No plain NODE of the same data is served beside it.";
  byId("sweep-caption").replaceChildren(
    ...(other ? [key(own), " beside ", key(other)] : [key(own)]),
    `: how long the class seen at 0°, ${label}, survives${apart}.${other ? "" : alone}`,
  );
  const highest = Math.max(0.1, ...sweep.curves.flatMap((entry) => entry.entropy));
  const angle = Number(byId("rotation").value);
  const data = (key_, range) => ({ angles: sweep.angles, angle, range, lines: sweep.curves.map((entry) => ({ name: entry.model, tone: tone(entry.model), values: entry[key_] })).reverse() });
  sweeps.probability.set(data("probability", [0, 1]));
  sweeps.entropy.set(data("entropy", [0, 1.08 * highest]));
}

function moveSweepMark() {
  if (state.sweep) showSweep();
}

function readSweep(angle, key) {
  const { model, sweep } = state;
  const m = sweep.angles.indexOf(angle);
  return `${angle}°  ·  ${sweep.curves.map((entry) => `${entry.model}: ${model.classes[entry.labels[m]]}, probability ${fixed(entry.probability[m], 2)}, entropy ${fixed(entry.entropy[m], 2)}`).join("  ·  ")}`;
}

// ---- regression and other vectors

const isScalar = (model) => model.kind === "vector" && model.shape[0] === 1;

function chooseX(x) {
  state.x = x;
  byId("x").value = x;
  byId("x-value").value = Number(x.toFixed(3));
  if (curve.data) curve.set({ ...curve.data, chosen: x });
  refresh();
}

function requestCurve() {
  const { model } = state;
  lines.curve.run(
    model.name,
    (signal) => get(`api/curve?model=${encodeURIComponent(model.name)}&points=200`, signal),
    (answer) => {
      say("curve-message", null);
      const [low, high] = [answer.x[0], answer.x[answer.x.length - 1]];
      for (const id of ["x", "x-value"]) Object.assign(byId(id), { min: low, max: high });
      byId("x").step = (high - low) / 400;
      curve.set({ ...answer, chosen: null });
      chooseX(widest(answer));
    },
    (error) => {
      curve.set(null);
      say("curve-message", error.message);
    },
  );
}

// Where the members part most, between the training points if they are known: there the trajectory has something to tell.
function widest({ x, std, points }) {
  const [low, high] = points ? [Math.min(...points.x), Math.max(...points.x)] : [-Infinity, Infinity];
  const inside = std.map((value, m) => (x[m] >= low && x[m] <= high ? value : -1));
  return x[inside.indexOf(Math.max(...inside))];
}

function numbers() {
  const words = byId("numbers").value.split(/[\s,;]+/).filter(Boolean);
  return words.map((word) => (Number.isFinite(Number(word)) ? Number(word) : null));
}

byId("numbers-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = state.model.shape.reduce((product, n) => product * n, 1);
  const given = numbers();
  if (given.includes(null)) say("input-message", "Only numbers, please, separated by commas or spaces.");
  else if (given.length !== wanted) say("input-message", `This model takes ${wanted} numbers; ${given.length} were given.`);
  else refresh();
});
byId("x").addEventListener("input", () => chooseX(Number(byId("x").value)));
byId("x-value").addEventListener("change", () => Number.isFinite(byId("x-value").valueAsNumber) && chooseX(byId("x-value").valueAsNumber));

// ---- image inputs

const samples = new Samples(byId("samples"), () => refresh({ wait: 0 }));
const pad = new Pad(byId("pad"), () => refresh());
const upload = new Upload(
  { input: byId("file"), drop: byId("drop"), name: byId("file-name") },
  () => refresh({ wait: 0 }),
  (reason) => {
    lines.trajectory.cancel();
    lines.sweep.cancel();
    say("input-message", reason);
    waiting();
  },
);
byId("undo").addEventListener("click", () => pad.undo());
byId("clear").addEventListener("click", () => pad.clear());

function chooseSource(source) {
  state.source = source;
  for (const radio of document.getElementsByName("source")) radio.checked = radio.value === source;
  for (const name of ["samples", "draw", "upload"]) byId(`source-${name}`).hidden = name !== source;
}
for (const radio of document.getElementsByName("source")) {
  radio.addEventListener("change", () => {
    chooseSource(radio.value);
    refresh({ wait: 0 });
  });
}

function change(name, value) {
  byId(name).value = value;
  byId(`${name}-value`).value = byId(name).value;
}
for (const name of CHANGES) {
  byId(name).addEventListener("input", () => {
    change(name, byId(name).value);
    refresh({ sweep: false });
  });
  byId(`${name}-value`).addEventListener("change", () => {
    change(name, byId(`${name}-value`).value || 0);
    refresh({ sweep: false });
  });
}
byId("reset").addEventListener("click", () => {
  for (const name of CHANGES) change(name, 0);
  refresh({ sweep: false, wait: 0 });
});

// ---- the model

function chooseModel(name) {
  const model = state.models.find((entry) => entry.name === name) ?? state.models[0];
  for (const line of Object.values(lines)) line.cancel();
  Object.assign(state, { model, sweep: null, sweepWanted: false });
  byId("model").value = model.name;
  byId("about").textContent = about(model);
  for (const [panel, words] of Object.entries(captions(model))) byId(`${panel}-caption`).textContent = words;

  const image = model.kind === "image";
  const classes = model.task === "classification";
  byId("image-input").hidden = !image;
  byId("vector-input").hidden = image;
  byId("scalar-input").hidden = byId("curve-card").hidden = !isScalar(model) || classes;
  byId("numbers-form").hidden = isScalar(model) && !classes;
  byId("class-row").hidden = byId("entropy-card").hidden = !classes;
  byId("answer-row").className = classes ? "pair" : isScalar(model) ? "pair regression" : "pair alone";
  byId("class-row").classList.toggle("alone", !image);
  byId("sweep-card").hidden = !image;
  trajectory.set(null);
  curve.set(null);
  for (const plot of Object.values(sweeps)) plot.set(null);
  say("trajectory-message", null);

  if (image) {
    const drawable = model.shape[0] === 1;
    const draw = document.querySelector('input[name="source"][value="draw"]');
    draw.disabled = !drawable;
    draw.parentElement.title = drawable ? "" : "Drawing is for models of gray images";
    samples.offer(model.samples, samples.chosen?.id);
    byId("no-samples").hidden = model.samples.length > 0;
    if (state.source === "draw" && !drawable) chooseSource("samples");
    refresh({ wait: 0 });
  } else if (isScalar(model) && !classes) {
    waiting();
    requestCurve();
  } else {
    byId("numbers-label").textContent = `${model.shape[0]} numbers, raw, separated by commas or spaces`;
    byId("numbers").value = Array(model.shape[0]).fill(0).join(", ");
    refresh({ wait: 0 });
  }
}

byId("model").addEventListener("change", () => chooseModel(byId("model").value));

function start(models) {
  if (!models.length) {
    say("fatal", "No model is served: start the server with at least one run, `ltnode serve RUN`.");
    return;
  }
  state.models = models;
  byId("model").replaceChildren(...models.map((model) => element("option", { value: model.name }, model.name)));
  byId("model").disabled = false;
  byId("main").hidden = false;
  const latent = models.find((model) => !["fixed", "none"].includes(model.end_time.kind));
  chooseModel((latent ?? models[0]).name);
}

get("api/models")
  .then(({ models }) => start(models))
  .catch((error) => {
    if (!(error instanceof ApiError)) throw error;
    say("fatal", error.status === 401 ? `${error.message}. In a browser: open this page as /#token=TOKEN` : error.message);
  });
window.addEventListener("hashchange", () => tokenInAddress() && location.reload());

// The panels of the prediction: asks the server about the current input and shows the answer.

import { Latest, post } from "./api.js";
import { base64, showPicture } from "./image_inputs.js";
import { END_TIMES, byId, element, page, say } from "./page.js";
import { Plot, trim } from "./plot.js";
import { Colours, fixed, showBars, showEntropy, showFacts, showFlags, showVerdict } from "./results.js";
import { offerExplanation, profilePlot, showProfile } from "./profile.js";
import { drawTrajectory, readTrajectory } from "./trajectory.js";

const POINTS = 161;
const HINT = "Move over the plot, or focus it and press the arrow keys, for the values at t.";

let shownSubject = null;
const colours = new Colours();
const line = new Latest({
  wait: 60,
  onBusy: (on) => {
    byId("result").classList.toggle("busy", on);
    byId("result").setAttribute("aria-busy", String(on));
  },
});
const plot = new Plot(byId("trajectory"), {
  label: "Time t", draw: drawTrajectory, read: readTrajectory, readout: byId("trajectory-readout"), hint: HINT,
});

plot.peers = [profilePlot];
profilePlot.peers = [plot];

export const isPredictionPending = () => line.next !== null;

// Asks about an input; `change` is null for vectors. A class keeps its colour as long as the subject stays the same.
export function requestPrediction({ subject, input, change, wait }, onShown, onError) {
  const { name: model, end_time: { kind } } = page.model;
  const body = { model, ...input, points: POINTS, samples: END_TIMES, ...(change ? { change } : {}) };
  line.run(
    subject,
    (signal) => (kind === "none" ? predictOnly(model, input, signal) : post("api/trajectory", body, signal)),
    (answer) => {
      if (shownSubject !== subject) colours.slots.clear();
      shownSubject = subject;
      show(answer);
      offerExplanation({ ...input, ...(change ? { change } : {}) }, answer.prediction.unfamiliar);
      onShown();
    },
    onError,
    wait,
  );
}

// A model without an end-time has no trajectory, but it can predict.
async function predictOnly(model, { input, row, image, sample }, signal) {
  const inputs = input ? { inputs: [input] } : row ? { rows: [row] } : { images: [image ?? (await samplePicture(sample, signal))] };
  const answer = await post("api/predict", { model, samples: END_TIMES, ...inputs }, signal);
  return { ...answer, prediction: answer.predictions[0], times: [], profile: null, reason: "this model has no end-time, and therefore no trajectory" };
}

async function samplePicture(id, signal) {
  const response = await fetch(`api/samples/${encodeURIComponent(id)}.png`, { signal });
  return base64(new Uint8Array(await response.arrayBuffer()));
}

function show(answer) {
  const { model } = page;
  const row = answer.prediction;
  showVerdict(byId("verdict"), row, model);
  showFacts(byId("facts"), answer, model);
  byId("notes").replaceChildren(...answer.notes.map((note) => element("li", {}, note)));
  if (answer.image) showPicture(byId("seen"), answer.image);
  if (row.task === "classification") {
    const leading = colours.update(row);
    showBars(byId("bars"), row, model, colours);
    showEntropy(byId("entropy"), row, model);
    showFlags(row, model);
    if (answer.probs) plotTrajectory(answer, classSeries(answer, leading));
  } else if (answer.means) {
    plotTrajectory(answer, meanSeries(answer));
  }
  for (const id of ["trajectory", "trajectory-readout"]) byId(id).hidden = Boolean(answer.reason);
  if (answer.reason) showProfile(null);
  say("trajectory-message", answer.reason);
  byId("result").classList.remove("empty");
}

function classSeries({ probs, prediction }, leading) {
  const { classes } = page.model;
  const average = (label) => {
    const value = prediction.probs[label];
    return { name: classes[label], slot: colours.of(label), value, text: fixed(value, 2) };
  };
  const series = classes.map((name, label) => ({ name, slot: colours.of(label), values: probs.map((at) => at[label]) }));
  return { range: [0, 1], unit: "probability", series, average: leading.map(average) };
}

function meanSeries({ means, prediction: { mean } }) {
  const low = Math.min(...means, mean);
  const high = Math.max(...means, mean);
  const margin = 0.08 * (high - low || 1);
  const average = [{ name: "mean", slot: 0, value: mean, text: Math.abs(mean) < 1000 ? fixed(mean, 2) : trim(mean) }];
  return { range: [low - margin, high + margin], unit: "mean", series: [{ name: "mean", slot: 0, values: means }], average };
}

function plotTrajectory({ t, posterior, times, profile, prediction: { unfamiliar } }, series) {
  showProfile({ t, profile, unfamiliar, average: series.average });
  const { kind, window: trained } = page.model.end_time;
  plot.set({ t, posterior, times, window: trained ? trained[1] : null, total: kind === "fixed" ? "answer" : "average", ...series });
}

// Without an answer, the numbers of another input must not stay on the page.
export function clearPrediction(words) {
  line.cancel();
  byId("result").classList.add("empty");
  byId("notes").replaceChildren();
  byId("verdict").replaceChildren(element("p", { class: "second" }, words));
  byId("facts").replaceChildren();
  byId("seen").width = byId("seen").width; // Setting the width clears a canvas.
}

export function clearTrajectory() {
  plot.set(null);
  showProfile(null);
  say("trajectory-message", null);
}

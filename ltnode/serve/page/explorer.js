// The page: which model is shown, and what happens when its input changes.

import { ApiError, get, tokenInAddress } from "./api.js";
import { clearCurve, curveRequest, requestCurve } from "./curve.js";
import { ImageInputs } from "./image_inputs.js";
import { byId, element, page, say } from "./page.js";
import { clearPrediction, clearTrajectory, isPredictionPending, requestPrediction } from "./prediction.js";
import { cancelSweep, clearSweep, requestSweep, showSweep } from "./sweep.js";
import { clearEffect, offerForm, requestEffect, tableRequest } from "./table_inputs.js";
import { about, captions, modelTitle } from "./words.js";

const PROMPTS = { draw: "Draw something on the pad.", upload: "Choose or drop an image." };

let sweepIsDue = false; // The image has changed since the last sweep.
const images = new ImageInputs({
  onInput: ({ wait }) => refresh({ wait }),
  onChange: ({ wait }) => refresh({ wait, sweep: false }),
  onRefuse: (reason) => refuse({ message: reason }),
});

const hasCurve = ({ task, kind, shape }) => task === "regression" && kind === "vector" && shape[0] === 1;

function currentInput(model) {
  if (model.kind === "image") return images.request(model);
  if (model.kind === "table") return tableRequest();
  if (hasCurve(model)) return curveRequest();
  const values = numbers();
  return values.includes(null) ? null : { input: values };
}

function refresh({ sweep = true, wait } = {}) {
  const { model } = page;
  const input = currentInput(model);
  const isImage = model.kind === "image";
  say("input-message", null);
  if (!input) {
    cancelSweep();
    clearPrediction((isImage && PROMPTS[images.source]) || "Choose an input.");
    return;
  }
  if (sweep) cancelSweep();
  sweepIsDue ||= sweep && isImage && model.task === "classification";
  const subject = JSON.stringify([model.name, ...images.subject]);
  const onShown = () => {
    // The sweep is the larger request: it waits for the prediction, and until the user stops drawing.
    if (!sweepIsDue || isPredictionPending()) {
      showSweep();
      return;
    }
    sweepIsDue = false;
    requestSweep(subject, input);
  };
  if (model.kind === "table") requestEffect();
  requestPrediction({ subject, input, change: isImage ? images.change : null, wait }, onShown, refuse);
}

function refuse({ message }) {
  say("input-message", message);
  cancelSweep();
  clearEffect();
  clearPrediction("No prediction for this input.");
}

function numbers() {
  const words = byId("numbers").value.split(/[\s,;]+/).filter(Boolean);
  return words.map((word) => (Number.isFinite(Number(word)) ? Number(word) : null));
}

byId("numbers-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const [expected] = page.model.shape;
  const values = numbers();
  if (values.includes(null)) say("input-message", "Only numbers are allowed, separated by commas or spaces.");
  else if (values.length !== expected) say("input-message", `This model takes ${expected} numbers, not ${values.length}.`);
  else refresh();
});

function chooseModel(name) {
  const model = page.models.find((entry) => entry.name === name) ?? page.models[0];
  page.model = model;
  sweepIsDue = false;
  byId("model").value = model.name;
  byId("about").textContent = about(model);
  for (const [panel, words] of Object.entries(captions(model))) byId(`${panel}-caption`).textContent = words;
  showPanels(model);
  clearTrajectory();
  clearCurve();
  clearEffect();
  clearSweep();
  if (hasCurve(model)) {
    clearPrediction("Choose an input.");
    requestCurve(refresh);
    return;
  }
  if (model.kind === "image") {
    images.offer(model);
  } else if (model.kind === "table") {
    offerForm(model, () => refresh());
  } else {
    byId("numbers-label").textContent = `${model.shape[0]} raw numbers, separated by commas or spaces`;
    byId("numbers").value = Array(model.shape[0]).fill(0).join(", ");
  }
  refresh({ wait: 0 });
}

function showPanels(model) {
  const isImage = model.kind === "image";
  const isClassifier = model.task === "classification";
  byId("image-input").hidden = !isImage;
  byId("vector-input").hidden = model.kind !== "vector";
  byId("table-input").hidden = byId("effect-card").hidden = model.kind !== "table";
  byId("scalar-input").hidden = byId("curve-card").hidden = !hasCurve(model);
  byId("numbers-form").hidden = hasCurve(model);
  byId("class-row").hidden = byId("entropy-card").hidden = !isClassifier;
  byId("answer-row").className = isClassifier ? "pair" : hasCurve(model) ? "pair regression" : "pair alone";
  byId("class-row").classList.toggle("alone", !isImage);
  byId("sweep-card").hidden = !isImage;
}

byId("model").addEventListener("change", () => chooseModel(byId("model").value));

function start(models) {
  if (!models.length) {
    say("fatal", "No model is served: start the server with at least one run, `ltnode serve RUN`.");
    return;
  }
  page.models = models;
  byId("model").replaceChildren(...models.map((model) => element("option", { value: model.name }, modelTitle(model, models))));
  byId("model").disabled = false;
  byId("main").hidden = false;
  // We open with a model that can call an image unfamiliar, if there is one, and let it see noise.
  const latent = models.filter((model) => !["fixed", "none"].includes(model.end_time.kind));
  const knows = latent.filter(({ kind, familiarity }) => kind === "image" && familiarity && !familiarity.problem);
  const coloured = knows.find(({ shape, end_time: { kind } }) => shape[0] === 3 && kind === "gamma");
  chooseModel((coloured ?? knows[0] ?? latent[0] ?? models[0]).name);
}

get("api/models")
  .then(({ models }) => start(models))
  .catch((error) => {
    if (!(error instanceof ApiError)) throw error;
    say("fatal", error.status === 401 ? `${error.message}. In a browser: open this page as /#token=TOKEN` : error.message);
  });
window.addEventListener("hashchange", () => tokenInAddress() && location.reload());

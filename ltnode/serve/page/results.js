// The answer as text, bars and flags.

import { byId, element } from "./page.js";

const SLOTS = 4; // the number of colours
const MOST_BARS = 12;

// Numbers of 1000 and more, such as prices, have six digits in total.
export const fixed = (value, digits = 3) =>
  Math.abs(value) >= 1000 ? String(Number(value.toPrecision(6))) : (Math.abs(value) < 0.5 * 10 ** -digits ? 0 : value).toFixed(digits);
const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 2 : 1)} %`;
const roundPercent = (share) => `${Number((100 * share).toPrecision(4))} %`;
const byProbability = ({ probs }) => probs.map((_, label) => label).sort((a, b) => probs[b] - probs[a]);

// Colours of the leading classes. A class keeps its colour while it leads, so that moving a slider does not swap colours.
export class Colours {
  slots = new Map();

  update(row) {
    const leading = byProbability(row).slice(0, SLOTS).filter((label, rank) => rank < SLOTS - 1 || row.probs[label] >= 0.005);
    for (const label of [...this.slots.keys()]) if (!leading.includes(label)) this.slots.delete(label);
    const free = [...Array(SLOTS).keys()].filter((slot) => ![...this.slots.values()].includes(slot));
    for (const label of leading) if (!this.slots.has(label)) this.slots.set(label, free.shift());
    return leading;
  }

  of(label) {
    return this.slots.get(label) ?? null;
  }
}

const badge = (bad, mark, words) =>
  element("span", { class: `badge ${bad ? "warn" : "good"}` }, element("span", { "aria-hidden": "true" }, `${mark} `), words);

// How far an input is, in words: its rank among the held-out examples.
export function familiarityWords({ familiarity }, { familiarity: { n_calibration: n } }) {
  const closer = n + 1 - Math.round(familiarity * (n + 1));
  if (closer === n) return `farther from the training data than all ${n} held-out examples`;
  return `farther from the training data than ${closer} of ${n} held-out examples`;
}

const familiarityBadge = ({ unfamiliar }) => (unfamiliar ? badge(true, "▲", "Unfamiliar") : badge(false, "●", "Familiar"));

export function showVerdict(host, row, model) {
  const badges = element("p", { class: "badges" });
  if (row.unfamiliar !== null) badges.append(familiarityBadge(row));
  if (row.task === "regression") {
    const [low, high] = row.interval.map((end) => fixed(end));
    const interval = element("p", { class: "second" }, `between ${low} and ${high} with probability 90\u00a0%`);
    host.replaceChildren(element("p", { class: "big" }, fixed(row.mean)), element("div", {}, interval, badges));
    return;
  }
  const [, second] = byProbability(row);
  if (row.abstain !== null) badges.append(row.abstain ? badge(true, "◆", "Abstains") : badge(false, "✓", "Answers"));
  const probability = element("p", { class: "second" }, element("strong", { id: "probability" }, percent(row.probability)));
  if (second !== undefined) probability.append(`, then ${model.classes[second]} at ${percent(row.probs[second])}`);
  const name = element("p", { class: row.name.length > 12 ? "big long" : "big" }, row.name);
  const warning = element("p", { class: "second", id: "warning" }, "Unlike the training data: the answer may mean nothing.");
  host.replaceChildren(name, element("div", {}, probability, badges, ...(row.unfamiliar ? [warning] : [])));
}

export function showFacts(host, { prediction: row, evaluations, times }, model) {
  const facts = [];
  if (row.task === "regression") {
    facts.push(["model std", fixed(row.std), "spread over the end-times"], ["noise std", fixed(row.noise_std), "of the observations"]);
  } else {
    facts.push(["entropy", fixed(row.entropy), `nats, at most ${fixed(Math.log(model.classes.length), 2)}`]);
  }
  if (row.familiarity !== null) {
    const { false_alarm_rate: rate } = model.familiarity;
    const value = row.familiarity < 0.001 ? row.familiarity.toExponential(0) : fixed(row.familiarity);
    facts.push(["familiarity", value, `unfamiliar up to ${rate}`]);
  }
  if (row.end_time) {
    const [low, median, high] = row.end_time.map((time) => time.toFixed(2));
    facts.push(["end-time T", median, low === high ? "fixed" : `median; 90 % in ${low} to ${high}`]);
  }
  const count = new Set(times).size;
  facts.push(["evaluations", String(evaluations), count > 1 ? `of the field, for all ${count} end-times` : "of the field"]);
  const entry = ([name, value, note]) =>
    element("div", {}, element("dt", {}, name), element("dd", { "data-fact": name }, value), element("dd", { class: "unit" }, note));
  host.replaceChildren(...facts.map(entry));
}

export function showBars(host, row, { classes }, colours) {
  const all = classes.map((_, label) => label);
  const shown = all.length > MOST_BARS ? byProbability(row).slice(0, MOST_BARS) : all;
  const list = element("ul", { class: "bar-list" });
  for (const label of shown) {
    const slot = colours.of(label);
    const bar = element("span", { class: `bar ${slot === null ? "muted" : `s${slot}`}` });
    bar.style.width = `${100 * row.probs[label]}%`;
    const name = element("span", { class: "bar-name" }, classes[label]);
    const value = element("span", { class: "bar-value", "data-class": label }, fixed(row.probs[label]));
    const track = element("span", { class: "bar-track", "aria-hidden": "true" }, bar);
    list.append(element("li", { class: label === row.label ? "first" : "" }, name, track, value));
  }
  host.replaceChildren(list);
  if (all.length > shown.length) {
    const rest = shown.reduce((left, label) => left - row.probs[label], 1);
    host.append(element("p", { class: "hint" }, `${all.length - shown.length} other classes share ${fixed(rest)}.`));
  }
}

export function showEntropy(host, row, { classes, operating_point: point }) {
  const most = Math.log(classes.length);
  const threshold = point?.entropy_threshold ?? Infinity;
  const width = (value) => `${Math.min(100, (100 * Math.max(0, value)) / most)}%`;
  for (const part of ["aleatoric", "epistemic"]) host.querySelector(`.stack .${part}`).style.width = width(row[part]);
  for (const cell of host.querySelectorAll("[data-part]")) cell.textContent = fixed(row[cell.dataset.part]);
  host.style.setProperty("--threshold", width(threshold));
  host.querySelector(".threshold").hidden = threshold > most;
  host.querySelector(".limit").hidden = threshold >= most / 2;
  byId("most-entropy").textContent = `${most.toFixed(2)} nats: a guess`;
}

export function showFlags(row, { operating_point: point, familiarity: known }) {
  const flag = (id, verdict, text) => byId(id).replaceChildren(element("strong", {}, `${verdict}. `), text);
  byId("no-point").hidden = Boolean(point);
  byId("flag-abstain").hidden = byId("chosen").hidden = !point;
  if (!known) flag("flag-unfamiliar", "Familiarity unknown", "This model was trained without a measure of distance.");
  else if (row.unfamiliar === null) flag("flag-unfamiliar", "Familiarity unknown", "Nothing was held out to compare distances with.");
  else {
    const words = `It is ${familiarityWords(row, { familiarity: known })}`;
    const rate = `at most ${roundPercent(known.false_alarm_rate)} of inputs like those`;
    if (row.unfamiliar) flag("flag-unfamiliar", "Unfamiliar", `${words}; ${rate} would be flagged.`);
    else flag("flag-unfamiliar", "Familiar", `${words}.${known.problem ? ` But ${known.problem}.` : ""}`);
  }
  if (!point) return;
  const covered = `${roundPercent(point.coverage)} of held-out inputs`;
  const entropy = `Entropy ${fixed(row.entropy)}`;
  const entropyLimit = `the limit ${fixed(point.entropy_threshold)}`;
  if (row.abstain) flag("flag-abstain", "Abstains", `${entropy} exceeds ${entropyLimit}, which ${covered} do not exceed.`);
  else flag("flag-abstain", "Answers", `${entropy} is within ${entropyLimit}, as for ${covered}.`);
  const [all, answered] = [point.accuracy, point.accuracy_kept].map(percent);
  byId("thresholds").textContent = `On ${point.data}. ${all} of all predictions are correct, and ${answered} of those without an abstention.`;
}

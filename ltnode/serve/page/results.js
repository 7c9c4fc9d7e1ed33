// The answer in words, bars and flags.

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export const fixed = (value, digits = 3) => (Math.abs(value) < 0.5 * 10 ** -digits ? 0 : value).toFixed(digits);
const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 2 : 1)} %`;
const share = (value) => `${Number((100 * value).toPrecision(4))} %`;

const SLOTS = 4;

// Colours of the leading classes. A class keeps its colour while it stays in the lead, so that moving a slider does not shuffle them.
export class Colours {
  constructor() {
    this.slots = new Map();
  }

  update(probs) {
    const order = probs.map((_, label) => label).sort((a, b) => probs[b] - probs[a]);
    const leading = order.slice(0, SLOTS).filter((label, rank) => rank < SLOTS - 1 || probs[label] >= 0.005);
    for (const label of [...this.slots.keys()]) if (!leading.includes(label)) this.slots.delete(label);
    const free = [...Array(SLOTS).keys()].filter((slot) => ![...this.slots.values()].includes(slot));
    for (const label of leading) if (!this.slots.has(label)) this.slots.set(label, free.shift());
    return leading;
  }

  of(label) {
    return this.slots.has(label) ? this.slots.get(label) : null;
  }
}

const badge = (kind, mark, words) => element("span", { class: `badge ${kind}` }, element("span", { "aria-hidden": "true" }, `${mark} `), words);

export function showVerdict(host, row, model) {
  if (row.task === "regression") {
    const [low, high] = row.interval;
    host.replaceChildren(
      element("p", { class: "big" }, fixed(row.mean)),
      element("div", {}, element("p", { class: "second" }, `between ${fixed(low)} and ${fixed(high)} with probability 90\u00a0%`)),
    );
    return;
  }
  const order = row.probs.map((_, label) => label).sort((a, b) => row.probs[b] - row.probs[a]);
  const [, runner] = order;
  const flags = element("p", { class: "badges" });
  if (row.ood !== null && row.ood !== undefined) {
    flags.append(row.ood ? badge("warn", "▲", "Out of distribution") : badge("good", "●", "In distribution"));
  }
  if (row.abstain !== null && row.abstain !== undefined) {
    flags.append(row.abstain ? badge("warn", "◆", "Abstains") : badge("good", "✓", "Answers"));
  }
  host.replaceChildren(
    element("p", { class: row.name.length > 12 ? "big long" : "big" }, row.name),
    element(
      "div",
      {},
      element("p", { class: "second" }, element("strong", { id: "probability" }, percent(row.probability)), runner === undefined ? "" : `, then ${model.classes[runner]} at ${percent(row.probs[runner])}`),
      flags,
    ),
  );
}

export function showFacts(host, answer, model) {
  const { prediction: row } = answer;
  const facts = [];
  if (row.task === "regression") {
    facts.push(["model std", fixed(row.std), "spread over the end-times"], ["noise std", fixed(row.noise_std), "of the observations"]);
  } else {
    facts.push(["entropy", fixed(row.entropy), `nats, at most ${fixed(Math.log(model.classes.length), 2)}`]);
  }
  if (row.end_time) {
    const [low, middle, high] = row.end_time;
    facts.push(["end-time T", middle.toFixed(2), low === high ? "fixed" : `median; 90 % in ${low.toFixed(2)} to ${high.toFixed(2)}`]);
  }
  if (answer.evaluations !== undefined) {
    const count = new Set(answer.times).size;
    facts.push(["evaluations", String(answer.evaluations), count > 1 ? `of the field, for all ${count} end-times` : "of the field"]);
  }
  host.replaceChildren(
    ...facts.map(([name, value, note]) => element("div", {}, element("dt", {}, name), element("dd", { "data-fact": name }, value), element("dd", { class: "unit" }, note))),
  );
}

export function showBars(host, row, model, colours) {
  const shown = row.probs.map((_, label) => label);
  const limit = 12;
  if (shown.length > limit) shown.sort((a, b) => row.probs[b] - row.probs[a]).splice(limit);
  const list = element("ul", { class: "bar-list" });
  for (const label of shown) {
    const slot = colours.of(label);
    const bar = element("span", { class: `bar ${slot === null ? "muted" : `s${slot}`}` });
    bar.style.width = `${100 * row.probs[label]}%`;
    list.append(
      element(
        "li",
        { class: label === row.label ? "first" : "" },
        element("span", { class: "bar-name" }, model.classes[label]),
        element("span", { class: "bar-track", "aria-hidden": "true" }, bar),
        element("span", { class: "bar-value", "data-class": label }, fixed(row.probs[label])),
      ),
    );
  }
  host.replaceChildren(list);
  if (row.probs.length > limit) {
    const rest = row.probs.reduce((sum, p, label) => (shown.includes(label) ? sum : sum + p), 0);
    host.append(element("p", { class: "hint" }, `${row.probs.length - limit} further classes share ${fixed(rest)}.`));
  }
}

export function showEntropy(host, row, model) {
  const most = Math.log(model.classes.length);
  const threshold = model.operating_point?.entropy_threshold;
  const track = element("div", { class: "stack", "aria-hidden": "true" });
  for (const part of ["aleatoric", "epistemic"]) {
    const piece = element("span", { class: part });
    piece.style.width = `${Math.min(100, (100 * Math.max(0, row[part])) / most)}%`;
    track.append(piece);
  }
  const ends = element("p", { class: "ends", "aria-hidden": "true" });
  if (threshold !== undefined && threshold <= most) {
    const tick = element("span", { class: "threshold" });
    tick.style.left = `${(100 * threshold) / most}%`;
    track.append(tick);
    if (threshold < most / 2) {
      const word = element("span", { class: "limit" }, "limit");
      word.style.left = `max(.85rem, ${(100 * threshold) / most}%)`;
      ends.append(word);
    }
  }
  ends.append(element("span", {}, `${most.toFixed(2)} nats: a guess`));
  const line = (part, words) =>
    element("div", {}, element("dt", {}, element("span", { class: `swatch ${part}`, "aria-hidden": "true" }), words), element("dd", { "data-part": part }, fixed(row[part])));
  host.replaceChildren(
    track,
    ends,
    element("dl", { class: "parts" }, line("aleatoric", "aleatoric"), line("epistemic", "epistemic"), element("div", { class: "sum" }, element("dt", {}, "entropy"), element("dd", { "data-part": "entropy" }, fixed(row.entropy)))),
  );
}

const SCORE_NAMES = { max_probability: "largest probability", entropy: "negative entropy", mutual_information: "negative epistemic part" };

export function showFlags(host, row, model) {
  const point = model.operating_point;
  if (!point) {
    host.replaceChildren(
      element("p", { class: "hint" }, "No operating point is stored with this run, so nothing says how much uncertainty is too much. Choose one on validation data: ", element("code", {}, "ltnode operating-point RUN"), "."),
    );
    return;
  }
  const score = SCORE_NAMES[point.ood_score] ?? point.ood_score;
  host.replaceChildren(
    element(
      "ul",
      { class: "flags" },
      element(
        "li",
        { id: "flag-abstain" },
        element("strong", {}, row.abstain ? "Abstains. " : "Answers. "),
        `Entropy ${fixed(row.entropy)} ${row.abstain ? "exceeds" : "is within"} the limit ${fixed(point.entropy_threshold)}, ${row.abstain ? `within which ${share(point.coverage)} of familiar inputs stay` : `as for ${share(point.coverage)} of familiar inputs`}.`,
      ),
      element(
        "li",
        { id: "flag-ood" },
        element("strong", {}, row.ood ? "Out of distribution. " : "In distribution. "),
        `The ${score} ${fixed(row.ood_score)} ${row.ood ? "is below" : "reaches"} the limit ${fixed(point.ood_threshold)}, ${row.ood ? `which ${share(point.ood_keeps)} of familiar inputs reach` : `as for ${share(point.ood_keeps)} of familiar inputs`}.`,
      ),
    ),
    element(
      "details",
      {},
      element("summary", {}, "How the thresholds were chosen"),
      element("p", { class: "hint" }, `On ${point.data}. The answer is right for ${percent(point.accuracy)} of them, for ${percent(point.accuracy_kept)} of those it does not abstain from.`),
    ),
  );
}

// What the page says: about a model, above a panel, about a failure.

const KINDS = {
  fixed: "a plain neural ODE that always stops at the same time: one answer, no second opinion",
  uniform: "the end-time T is uniform over the window",
  gamma: "the end-time T is uncertain, with a learnt posterior q(T) shared by all inputs",
  mixture: "the end-time T is uncertain, with a learnt mixture q(T) shared by all inputs",
  amortized: "the end-time T is uncertain, with a posterior q(T | x) of each input's own",
  none: "a model without an end-time",
};

export function about(model) {
  const kind = KINDS[model.end_time.kind] ?? "";
  return `${model.name}${model.data ? `, trained on ${model.data}` : ""}: ${kind}.`;
}

// One sentence per panel says what one sees.
export function captions(model) {
  const { kind } = model.end_time;
  if (model.task === "regression") {
    return { trajectory: "The mean that the network would give at each t. Dashed lines are the end-times that the prediction averages, drawn where q(T) puts them." };
  }
  if (kind === "fixed") {
    return {
      trajectory: "Class probabilities over time. This network reads its answer off at the dashed line, and at no other time.",
      entropy: "One end-time cannot disagree with itself: all of the uncertainty is aleatoric.",
      bars: "The answer at its one end-time.",
    };
  }
  const members = kind === "none" ? "samples" : "end-times";
  return {
    trajectory: "Each dashed line is one end-time, drawn where q(T) puts it; the prediction is the average of the dots on them. It is unsure where curves cross or lie low above the shaded q(T).",
    entropy: `Aleatoric: the ${members} agree that it is unclear. Epistemic: they disagree.`,
    bars: `The average over the ${members}.`,
  };
}

// A reason as a sentence; names of models and files keep their small letters.
export function sentence(words, models) {
  const [first] = words.split(" ");
  const named = !/^[a-z]+$/.test(first) || models.some((model) => model.name === first);
  return `${named ? words[0] : words[0].toUpperCase()}${words.slice(1)}${/[.?!]$/.test(words) ? "" : "."}`;
}

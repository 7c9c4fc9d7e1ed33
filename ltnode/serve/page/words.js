// The texts of the page: about a model, above a panel, about a failure.

const KINDS = {
  fixed: "a plain neural ODE that always stops at the same time and gives a single answer",
  uniform: "the end-time T is uniform over the window",
  gamma: "the end-time T is uncertain, with a learnt posterior q(T) that all inputs share",
  mixture: "the end-time T is uncertain, with a learnt mixture q(T) that all inputs share",
  amortized: "the end-time T is uncertain, with a separate posterior q(T | x) for each input",
  none: "a model without an end-time",
};

export const about = ({ name, data, end_time: { kind } }) => `${name}${data ? `, trained on ${data}` : ""}: ${KINDS[kind] ?? kind}.`;

// The name of a model for people; models with the same title are told apart by the names of their folders.
export const modelTitle = ({ name, title }, models) =>
  models.filter((other) => other.title === title).length > 1 ? `${title} (${name})` : title;

// One caption per panel that explains the plot.
export function captions({ task, end_time: { kind } }) {
  if (task === "regression") {
    return {
      trajectory: "The mean that the network would predict at each t. The prediction averages over the dashed lines, the end-times of q(T).",
    };
  }
  if (kind === "fixed") {
    return {
      trajectory: "Class probabilities over time. This network gives its answer at the dashed line, and at no other time.",
      entropy: "With a single end-time, nothing can disagree: all of the uncertainty is aleatoric.",
      bars: "The answer at the one end-time.",
    };
  }
  const members = kind === "none" ? "samples" : "end-times";
  return {
    trajectory:
      "Each dashed line is an end-time of q(T), and the prediction is the average of the dots on these lines. " +
      "The model is uncertain if the curves cross, or stay low, above the shaded q(T).",
    entropy: `Aleatoric: the ${members} agree that the class is unclear. Epistemic: they disagree.`,
    bars: `The average over the ${members}.`,
  };
}

// Turns a reason into a sentence; the names of models and files keep their lower-case letters.
export function sentence(words, models) {
  const [first] = words.split(" ");
  const isName = !/^[a-z]+$/.test(first) || models.some((model) => model.name === first);
  return `${isName ? words[0] : words[0].toUpperCase()}${words.slice(1)}${/[.?!]$/.test(words) ? "" : "."}`;
}

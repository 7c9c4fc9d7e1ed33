// What all panels share: the models, helpers for the document, and messages.

import { sentence } from "./words.js";

export const END_TIMES = 10; // the number of end-times that every prediction averages
export const page = { models: [], model: null };

export const byId = (id) => document.getElementById(id);

export function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export const element = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

// Shows a reason in the place for messages with this id; null hides the place.
export function say(id, reason) {
  byId(id).hidden = !reason;
  byId(id).textContent = reason ? sentence(reason, page.models) : "";
}

// Where the path leaves known ground: the distance of the state h(t) from those of training inputs, over t.

import { END_TIMES, byId, element, page } from "./page.js";
import { Plot, areaPath, bottomAxis, leftAxis, linear, linePath, svg, ticks, valueAt } from "./plot.js";
import { post } from "./api.js";
import { rightEdge } from "./trajectory.js";

const TYPICAL = 1; // The server divides by the distance of a typical training input.
const HINT = "1 is a typical training input. Where the line is far above it, the path has left known ground.";

export const profilePlot = new Plot(byId("profile"), {
  label: "Time t, distance", draw: drawProfile, read: readProfile, readout: byId("profile-readout"), hint: HINT,
});

// data: {t, profile: {t, distance}, average, unfamiliar}; null hides the plot.
export function showProfile(data) {
  byId("profile-part").hidden = !data?.profile;
  profilePlot.set(data?.profile ? data : null);
}

function drawProfile(width, height, { t, profile, average, unfamiliar }) {
  const [left, right, top, bottom] = [38, rightEdge(width, average), 8, height - 22];
  const end = t[t.length - 1];
  const highest = Math.max(2.5 * TYPICAL, 1.08 * Math.max(...profile.distance));
  const x = linear([0, end], [left, right]);
  const y = linear([0, highest], [bottom, top]);
  const known = profile.distance.map((value) => Math.min(value, TYPICAL));
  const tone = unfamiliar ? "far" : "near";
  const nodes = [
    leftAxis(y, left, right, 3),
    svg("path", { class: `away ${tone}`, d: areaPath(profile.t, known, profile.distance, x, y) }),
    svg("line", { class: "typical", x1: left, x2: right, y1: y(TYPICAL), y2: y(TYPICAL) }),
    svg("text", { class: "tiny typical-name", x: right + 6, y: y(TYPICAL) + 4 }, "typical"),
    svg("path", { class: `line ${tone}`, d: linePath(profile.t, profile.distance, x, y) }),
  ];
  for (const [m, time] of profile.t.entries()) {
    nodes.push(svg("circle", { class: `dot ${tone}`, cx: x(time), cy: y(profile.distance[m]), r: 3 }));
  }
  nodes.push(bottomAxis(x, bottom, ticks([0, end], width < 480 ? 5 : 6)));
  return { nodes, x, stops: t, top, bottom };
}

function readProfile(time, { profile }) {
  const value = valueAt(profile.t, profile.distance, time);
  return value === null ? "beyond the path" : `t = ${time.toFixed(2)}  ·  ${value.toFixed(2)} times the distance of a typical training input`;
}

// -- what makes the input unfamiliar -------------------------------------------------------------------------------------

let asked = null; // the input that the page shows now

// Remembers the input, for which the button then asks if it is unfamiliar, and forgets the last explanation.
export function offerExplanation(input, unfamiliar) {
  asked = input;
  byId("explain").hidden = !unfamiliar;
  byId("explain").disabled = false;
  byId("why").textContent = "";
  const { width, height } = byId("why-map");
  byId("why-map").getContext("2d").clearRect(0, 0, width, height);
}

byId("explain").addEventListener("click", async () => {
  const input = asked;
  byId("explain").disabled = true;
  byId("why").textContent = "Each part of the input is replaced by its training mean in turn …";
  try {
    const body = { model: page.model.name, ...input, points: 2, samples: END_TIMES, explain: true };
    const { explanation } = await post("api/trajectory", body);
    if (asked !== input) return;
    byId("why").replaceChildren(element("strong", {}, "What makes it unfamiliar: "), `${explanation.description}.`);
    if (explanation.map) paint(explanation.map);
  } catch (error) {
    if (asked === input) byId("why").textContent = error.message;
  } finally {
    if (asked === input) byId("explain").disabled = false;
  }
});

// Covers what explains the least, so that what is left is what makes the input unfamiliar.
function paint(map) {
  const canvas = byId("why-map");
  Object.assign(canvas, { width: map[0].length, height: map.length });
  const most = Math.max(1e-9, ...map.flat());
  const ink = canvas.getContext("2d");
  for (const [row, values] of map.entries()) {
    for (const [column, value] of values.entries()) {
      ink.fillStyle = `rgb(240 134 58 / ${Math.round(75 * Math.max(0, value / most))}%)`;
      ink.fillRect(column, row, 1, 1);
    }
  }
}

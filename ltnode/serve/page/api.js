// Talks to the server. Every failure becomes an ApiError with a reason that a reader can use.

export class ApiError extends Error {
  constructor(reason, code, status) {
    super(reason);
    this.code = code;
    this.status = status;
  }
}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is `ltnode serve` still running?", "offline", 0);
  }
  let body = null;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && body !== null) return body;
  const reason = body?.error?.reason ?? `The server answered ${response.status} without a reason.`;
  throw new ApiError(reason, body?.error?.code ?? "unknown", response.status);
}

// A page opened as /#token=... hands the token on with every request. What follows # is never sent by itself;
// it is kept for the tab, because links within the page write over it.
export const tokenInAddress = () => new URLSearchParams(location.hash.slice(1)).get("token");
const token = tokenInAddress() ?? sessionStorage.getItem("ltnode-token");
if (token) sessionStorage.setItem("ltnode-token", token);
const headers = token ? { Authorization: `Bearer ${token}` } : {};

export const get = (path, signal) => answer(path, { signal, headers });

export const post = (path, body, signal) =>
  answer(path, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

// Requests of which the newest counts. At most one is under way: the server would work off the others for nothing.
// A request about another subject (model, image) aborts the one under way; one about the same subject (a slider moves on)
// waits for it, so that the page follows the hand.
export class Latest {
  constructor({ wait, onBusy }) {
    Object.assign(this, { wait, onBusy, active: null, next: null, timer: 0 });
  }

  run(subject, request, onAnswer, onError, wait = this.wait) {
    if (this.active && this.active.subject !== subject) this.abort();
    clearTimeout(this.timer);
    this.next = { subject, request, onAnswer, onError, controller: new AbortController() };
    this.onBusy?.(true);
    this.timer = setTimeout(() => {
      this.timer = 0;
      if (!this.active) this.start();
    }, wait);
  }

  async start() {
    const job = this.next;
    Object.assign(this, { active: job, next: null });
    try {
      const value = await job.request(job.controller.signal);
      if (this.active === job) job.onAnswer(value);
    } catch (error) {
      if (this.active !== job || error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      // What the newer request is about is not known to be wrong.
      if (!this.next) job.onError(error);
    } finally {
      if (this.active === job) {
        this.active = null;
        if (!this.next) this.onBusy?.(false);
        else if (!this.timer) this.start();
      }
    }
  }

  abort() {
    const job = this.active;
    this.active = null;
    job?.controller.abort();
  }

  cancel() {
    clearTimeout(this.timer);
    Object.assign(this, { timer: 0, next: null });
    this.abort();
    this.onBusy?.(false);
  }
}

// Requests to the server. Every failure becomes an ApiError with a reason that the page can show.

export class ApiError extends Error {
  constructor(reason, status) {
    super(reason);
    this.status = status;
  }
}

// Handles every error except the abortion of a request by the page.
const unlessAborted = (handle) => (error) => {
  if (error.name === "AbortError") throw error;
  return handle();
};

async function request(path, options) {
  const offline = () => Promise.reject(new ApiError("The server does not answer. Is `ltnode serve` still running?", 0));
  const response = await fetch(path, options).catch(unlessAborted(offline));
  const body = await response.json().catch(unlessAborted(() => null));
  if (response.ok && body !== null) return body;
  throw new ApiError(body?.error?.reason ?? `The server answered ${response.status} without a reason.`, response.status);
}

// A page that is opened as /#token=... sends the token with every request. Browsers do not send the part after # to servers.
// We keep the token for the tab, because links within the page replace that part of the address.
export const tokenInAddress = () => new URLSearchParams(location.hash.slice(1)).get("token");
const token = tokenInAddress() ?? sessionStorage.getItem("ltnode-token");
if (token) sessionStorage.setItem("ltnode-token", token);
const headers = token ? { Authorization: `Bearer ${token}` } : {};

export const get = (path, signal) => request(path, { signal, headers });

export const post = (path, body, signal) =>
  request(path, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

// Sends requests of which only the newest matters, one at a time, so that the server does no work in vain.
// A request about another subject (model, image) aborts the pending one. A request about the same subject (a slider moves on)
// waits for the pending one, so that the page follows the slider.
export class Latest {
  constructor({ wait, onBusy }) {
    Object.assign(this, { wait, onBusy, active: null, next: null, timer: 0 });
  }

  run(subject, send, onAnswer, onError, wait = this.wait) {
    if (this.active && this.active.subject !== subject) this.abort();
    clearTimeout(this.timer);
    this.next = { subject, send, onAnswer, onError, controller: new AbortController() };
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
      const answer = await job.send(job.controller.signal);
      if (this.active === job) job.onAnswer(answer);
    } catch (error) {
      if (this.active !== job || error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      // The failure may not apply to a newer request.
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

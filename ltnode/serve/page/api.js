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

// A line of requests of which only the latest counts: a new one aborts the one before, and a late answer is dropped.
export class Latest {
  constructor({ wait, onBusy }) {
    this.wait = wait;
    this.onBusy = onBusy;
    this.controller = null;
    this.timer = 0;
  }

  run(request, onAnswer, onError, wait = this.wait) {
    this.cancel();
    const controller = new AbortController();
    this.controller = controller;
    this.onBusy?.(true);
    this.timer = setTimeout(async () => {
      try {
        const value = await request(controller.signal);
        if (this.controller === controller) onAnswer(value);
      } catch (error) {
        if (this.controller !== controller || error.name === "AbortError") return;
        if (!(error instanceof ApiError)) throw error;
        onError(error);
      } finally {
        if (this.controller === controller) {
          this.controller = null;
          this.onBusy?.(false);
        }
      }
    }, wait);
  }

  cancel() {
    clearTimeout(this.timer);
    if (this.controller) {
      this.controller.abort();
      this.controller = null;
      this.onBusy?.(false);
    }
  }
}

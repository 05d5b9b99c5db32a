// @ts-check
// The admin API: requests, errors, the session, and the live feed that all tabs of a browser share.

/**
 * @typedef {{name: string, kind: string, role: string, domains: string[], rights: string[], setup_open: boolean}} Me
 * @typedef {{query?: Record<string, any>, body?: any, text?: string, type?: string, match?: string | null, absent?: boolean,
 *   key?: string, signal?: AbortSignal}} Options
 */

/** An error of the API, or of the way to it. */
export class Problem extends Error {
  /** @param {number} status @param {any} body */
  constructor(status, body) {
    super(body?.detail ?? `the server responded with status ${status}`);
    this.status = status;
    /** @type {string} */
    this.code = body?.code ?? "unknown";
    /** Everything the server said: `problems`, `current`, `diff`, `instances`, … @type {any} */
    this.body = body ?? {};
  }

  /** The next step. */
  get next() {
    return NEXT[this.code] ?? (this.status >= 500 ? "Try again; if it stays, see the log of the server." : "");
  }
}

/** @type {Record<string, string>} */
const NEXT = {
  "offline": "Check that the server runs and that this machine reaches it.",
  "unauthorized": "Log in again.",
  "forbidden": "Ask an admin for a role that includes this.",
  "domain": "Your credential is limited to other domains; ask an admin.",
  "subjects": "Viewers see subjects masked; log in as an operator.",
  "host": "Open the page by the address that the server printed, or set admin.external_url.",
  "origin": "Open the page by the address that the server printed.",
  "code": "Use the newest link that the server printed; a code ends with the process.",
  "stale": "Read the item again, then repeat the change.",
  "reason-required": "Write a reason.",
  "prepare-rejected": "Nothing is live anywhere. Correct the rules for the instances that are named.",
  "prepare-incomplete": "Nothing is live anywhere. Wait for the instances that are silent, or publish with prepare=skip.",
  "rows-invalid": "Change these rows, or publish with them dropped.",
  "drift": "The live version was not pushed. Pull it first, or force.",
  "file-layer": "The rule is in a file of the instance; change it there.",
  "edits-git": "Rules come from Git here; change them there, or use break glass.",
  "no-database": "Set control.database on this instance, or open an instance that has one.",
  "other-database": "Another database leads this fleet; open the instance that is named.",
  "database-regressed": "Run `tollgate control adopt` once you know which database is right.",
  "database-unavailable": "Reading works. Changes work again when the database is back.",
  "store-unavailable": "Try again when the store is back.",
  "disk-full": "Free space on the disk of the server.",
  "too-many-requests": "Wait a moment.",
  "busy": "Try again in a moment.",
  "setup-done": "Log in instead.",
  "last-admin": "Add another admin first.",
};

/** @param {string} path @param {Record<string, any>} [query] */
export function url(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return `v1/${path}${text && `?${text}`}`;
}

/**
 * One request.
 * @param {string} method
 * @param {string} path without `v1/`
 * @param {Options} [options] `match` is an ETag for `If-Match` (null: `If-None-Match: *`); `key` is an Idempotency-Key
 * @returns {Promise<Response>}
 */
export async function request(method, path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["x-tollgate"] = "1";
  if (options.match) headers["if-match"] = options.match;
  if (options.match === null || options.absent) headers["if-none-match"] = "*";
  if (options.key) headers["idempotency-key"] = options.key;
  let body;
  if (options.text !== undefined) {
    headers["content-type"] = options.type ?? "text/plain";
    body = options.text;
  } else if (options.body !== undefined) {
    headers["content-type"] = "application/json";
    body = JSON.stringify(options.body);
  }
  let response;
  try {
    response = await fetch(url(path, options.query), { method, headers, body, signal: options.signal });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(0, { code: "offline", detail: "the server does not answer" });
  }
  if (response.ok) return response;
  const problem = new Problem(response.status, await response.json().catch(() => null));
  if (response.status === 401 && path !== "session" && path !== "setup") session.expire();
  throw problem;
}

/** @param {string} method */
const verb = (method) => /** @param {string} path @param {Options} [options] @returns {Promise<any>} */ async (path, options) => {
  const response = await request(method, path, options);
  return response.status === 204 ? null : response.json();
};

/** The API, by method. Each resolves to the body; GET takes its query directly. */
export const api = {
  /** @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
  get: async (path, query, signal) => (await request("GET", path, { query, signal })).json(),
  post: verb("POST"),
  put: verb("PUT"),
  delete: verb("DELETE"),
};

/**
 * One check of the caller's own; a denial is an answer, not an error.
 * @param {{domain?: string, attributes: Record<string, string>, cost?: number}} body
 */
export async function sendCheck(body) {
  try {
    return await api.post("try", { body });
  } catch (error) {
    if (error instanceof Problem && error.body.allowed === false) return error.body;
    throw error;
  }
}

/** The login of this browser. */
export const session = new (class extends EventTarget {
  /** @type {Me | null} */
  me = null;

  /** True if the caller has a right. @param {string} right */
  can(right) {
    return this.me?.rights.includes(right) ?? false;
  }

  async load() {
    this.me = await api.get("me");
  }

  /** @param {Record<string, string>} body `{view}` or `{name, password}` */
  async login(body) {
    await api.post("session", { body });
    await this.load();
    this.dispatchEvent(new Event("change"));
  }

  async logout() {
    await api.delete("session");
    this.dispatchEvent(new Event("logout"));
    this.expire();
  }

  expire() {
    const had = this.me !== null;
    this.me = null;
    if (had) this.dispatchEvent(new Event("expired"));
  }
})();

/**
 * @typedef {"connecting" | "live" | "polling" | "offline"} FeedState
 * @typedef {{rules?: string[], decisions?: boolean, filter?: string}} Wants
 */

/**
 * The live feed. One tab of a browser holds the stream, elected by a Web Lock, and relays it to the others; without locks every tab
 * has its own. While the stream is lost the tab that leads polls, and the state says so.
 */
class Feed extends EventTarget {
  /** @type {FeedState} */
  state = "connecting";
  #tab = `${Date.now()}-${Math.random()}`;
  #channel = "BroadcastChannel" in window ? new BroadcastChannel("tollgate-feed") : null;
  #leads = false;
  /** What each subscription of this tab wants. @type {Set<Wants>} */
  #own = new Set();
  /** What other tabs want, with the time they last said so. @type {Map<string, {wants: Wants, at: number}>} */
  #others = new Map();
  /** @type {EventSource | null} */
  #source = null;
  #address = "";
  #poll = 0;
  #retry = 0;
  #started = false;

  start() {
    if (this.#started) {
      this.#say();
      this.#open(true);
      return;
    }
    this.#started = true;
    if (this.#channel) this.#channel.onmessage = ({ data }) => this.#receive(data);
    addEventListener("pagehide", () => this.#send({ kind: "bye", tab: this.#tab }));
    addEventListener("pageshow", (event) => event.persisted && this.#say());
    const lead = () => {
      this.#leads = true;
      this.#send({ kind: "who" });
      this.#open(true);
      setInterval(() => this.#sweep(), 20_000);
      return new Promise(() => {});
    };
    if (navigator.locks && this.#channel) {
      navigator.locks.request("tollgate-feed", lead).catch(() => lead());
      this.#say();
      this.#send({ kind: "state?" });
    } else {
      lead();
    }
  }

  /**
   * Calls `handler` with each event of a name, until `signal` aborts.
   * Names: `totals`, `rules`, `alert`, `revision`, `decision`, `resync`.
   * @param {string} name @param {(data: any) => void} handler @param {AbortSignal} signal @param {Wants} [wants]
   */
  on(name, handler, signal, wants) {
    this.addEventListener(name, (event) => handler(/** @type {CustomEvent} */ (event).detail), { signal });
    if (wants) {
      this.#own.add(wants);
      signal.addEventListener("abort", () => {
        this.#own.delete(wants);
        this.#say();
      });
      this.#say();
    }
  }

  /** Changes what a subscription wants. @param {Wants} wants @param {Wants} to */
  change(wants, to) {
    Object.assign(wants, to);
    this.#say();
  }

  #say() {
    const wants = union([...this.#own]);
    this.#send({ kind: "wants", tab: this.#tab, wants });
    if (this.#leads) this.#open(false);
  }

  /** @param {any} message */
  #send(message) {
    this.#channel?.postMessage(message);
  }

  /** @param {any} message */
  #receive(message) {
    switch (message.kind) {
      case "event":
        this.#emit(message.name, message.data);
        break;
      case "state":
        this.#setState(message.state, false);
        break;
      case "state?":
        if (this.#leads) this.#send({ kind: "state", state: this.state });
        break;
      case "who":
        this.#say();
        break;
      case "wants":
        if (!this.#leads) break;
        this.#others.set(message.tab, { wants: message.wants, at: Date.now() });
        this.#open(false);
        break;
      case "bye":
        this.#others.delete(message.tab);
        if (this.#leads) this.#open(false);
        break;
    }
  }

  /** Forgets tabs that said nothing: they ended without a word. */
  #sweep() {
    const oldest = Date.now() - 60_000;
    for (const [tab, { at }] of this.#others) if (at < oldest) this.#others.delete(tab);
    this.#send({ kind: "who" });
    this.#open(false);
  }

  /** Opens the stream, if what is wanted changed or `anew`. @param {boolean} anew */
  #open(anew) {
    // Also without a login of its own: another tab may have logged in, and the cookie is that of the browser.
    if (!this.#leads) return;
    const wants = union([...this.#own, ...[...this.#others.values()].map((other) => other.wants)]);
    const address = url("stream", { rules: wants.rules?.join(","), decisions: wants.decisions ? 1 : "", filter: wants.filter });
    if (!anew && address === this.#address && this.#source) return;
    this.#address = address;
    this.#source?.close();
    clearTimeout(this.#retry);
    const source = new EventSource(address);
    this.#source = source;
    source.onopen = () => {
      this.#stopPolling();
      this.#setState("live", true);
    };
    source.onerror = () => {
      if (this.#source !== source) return;
      this.#startPolling();
      if (source.readyState === EventSource.CLOSED) {
        this.#source = null;
        this.#setState("polling", true);
        clearTimeout(this.#retry);
        this.#retry = window.setTimeout(() => this.#open(true), 10_000);
      }
    };
    for (const name of ["totals", "rules", "alert", "revision", "decision", "resync"]) {
      source.addEventListener(name, (event) => {
        const data = JSON.parse(/** @type {MessageEvent} */ (event).data || "{}");
        this.#emit(name, data);
        this.#send({ kind: "event", name, data });
      });
    }
  }

  #startPolling() {
    if (this.#poll) return;
    const poll = async () => {
      // On the page of the login there is nothing to read.
      if (!session.me) return;
      try {
        const series = await api.get("series", { range: "5m" });
        const at = series.start + series.step_ms * (series.series[0].values.length - 1);
        /** @type {Record<string, any>} */
        const totals = { at, polled: true };
        for (const { name, values } of series.series) totals[name] = values.at(-1) ?? 0;
        for (const [name, values] of Object.entries(series.latency ?? {})) totals[name] = values.at(-1);
        this.#emit("totals", totals);
        this.#send({ kind: "event", name: "totals", data: totals });
        this.#setState("polling", true);
      } catch (error) {
        if (/** @type {Problem} */ (error).status === 0) this.#setState("offline", true);
      }
    };
    // A short loss is repaired by the browser itself.
    this.#poll = window.setInterval(poll, 2000);
  }

  #stopPolling() {
    clearInterval(this.#poll);
    this.#poll = 0;
  }

  /** @param {string} name @param {any} data */
  #emit(name, data) {
    this.dispatchEvent(new CustomEvent(name, { detail: data }));
  }

  /** @param {FeedState} state @param {boolean} relay */
  #setState(state, relay) {
    if (relay) this.#send({ kind: "state", state });
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}

/** Everything that several subscriptions want. A filter is only sent if it is the only one: each page filters again. @param {Wants[]} all */
function union(all) {
  const filters = new Set(all.filter((wants) => wants.decisions).map((wants) => wants.filter ?? ""));
  return {
    rules: [...new Set(all.flatMap((wants) => wants.rules ?? []))].sort().slice(0, 100),
    decisions: all.some((wants) => wants.decisions),
    filter: filters.size === 1 ? [...filters][0] : "",
  };
}

export const feed = new Feed();

/** The alerts that fire now, read once for all who show them, and again when one changes. */
export const alerts = new (class extends EventTarget {
  /** @type {any[] | null} */
  firing = null;
  #timer = 0;
  #started = false;

  /** Reads them for the caller who has just logged in. */
  start() {
    this.firing = null;
    this.#read();
    if (this.#started) return;
    this.#started = true;
    session.addEventListener("expired", () => {
      clearTimeout(this.#timer);
      this.firing = null;
    });
    feed.addEventListener("alert", () => {
      clearTimeout(this.#timer);
      this.#timer = window.setTimeout(() => this.#read(), 500);
    });
  }

  async #read() {
    const { me } = session;
    if (!me) return;
    // The page of alerts says why they cannot be read.
    const found = await api.get("alerts", { state: "firing", limit: 100 }).catch(() => null);
    // What another caller may see is not for this one.
    if (session.me !== me) return;
    this.firing = found?.items ?? null;
    this.dispatchEvent(new Event("change"));
  }
})();

// Talks to the server: JSON calls and streams of server-sent events. Never touches the page.

const KEY_SLOT = "appliance.key";
// Longer than the server itself goes on trying (10 s) before it says that something cannot be done.
const ANSWER_MS = 15_000;
// A stream is never silent so long: a comment comes every `server.ping_interval_s` (10 s).
const SILENT_MS = 25_000;
const FILE_MS = 30_000;
const SLOWEST_BYTES_MS = 100;

/** The code of a request that the server did not answer in time: it may be sent again. */
export const NO_ANSWER = "no_answer";

/** A failure with a sentence for the reader. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, retryAfterS = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
  }
}

/** The key that requests bring along; null without one. */
export function keyNow() {
  return sessionStorage.getItem(KEY_SLOT);
}

export function hasKey() {
  return keyNow() !== null;
}

export function setKey(key) {
  sessionStorage.setItem(KEY_SLOT, key);
}

function headers(contentType) {
  const result = {};
  const key = sessionStorage.getItem(KEY_SLOT);
  if (key) result["Authorization"] = `Bearer ${key}`;
  if (contentType) result["Content-Type"] = contentType;
  return result;
}

/** How long a request is waited for: from its start, or from when something of it came last. */
class Patience {
  constructor(limitMs, leave = null) {
    this.limitMs = limitMs;
    this.isOver = false;
    this.abort = new AbortController();
    if (leave?.aborted) this.abort.abort();
    leave?.addEventListener("abort", () => this.abort.abort(), { signal: this.abort.signal });
    this.renew();
  }

  renew() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.isOver = true;
      this.abort.abort();
    }, this.limitMs);
  }

  end() {
    clearTimeout(this.timer);
  }

  /** What is to be said of a failure. */
  told(error, { code = NO_ANSWER } = {}) {
    return this.isOver ? new ApiError("The server does not answer. Try again in a moment.", { code }) : error;
  }
}

/** Send a request, and do all that is to be done with its answer, within a time. */
async function within(limitMs, method, path, { body, contentType = null }, read) {
  const patience = new Patience(limitMs);
  try {
    const response = await send(method, path, body, contentType, patience.abort.signal);
    if (!response.ok) throw await failure(response);
    return await read(response);
  } catch (error) {
    throw patience.told(error);
  } finally {
    patience.end();
  }
}

function json(body) {
  return body === undefined ? {} : { body: JSON.stringify(body), contentType: "application/json" };
}

async function send(method, path, body, contentType, signal) {
  try {
    return await fetch(path, {
      method,
      headers: headers(contentType),
      body,
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Your text is still here; try again in a moment.");
  }
}

async function failure(response) {
  let told = null;
  try {
    told = (await response.json()).error;
  } catch {
    told = null;
  }
  return new ApiError(told?.message ?? `The server answered ${response.status}.`, {
    status: response.status,
    code: told?.code ?? null,
    retryAfterS: Number(response.headers.get("Retry-After")) || null,
  });
}

/** One JSON call; resolves to the parsed answer, or null where there is none. */
export function call(method, path, body) {
  return within(ANSWER_MS, method, path, json(body), (answer) => (answer.status === 204 ? null : answer.json()));
}

/** Send a file as it is; resolves to the parsed answer. */
export function upload(path, file) {
  const sent = { body: file, contentType: "application/octet-stream" };
  return within(FILE_MS + file.size / SLOWEST_BYTES_MS, "POST", path, sent, (answer) => answer.json());
}

/** An image as an address for this page alone: the key goes along, which an element would not send. */
export function imageUrl(path) {
  return within(FILE_MS, "GET", path, {}, async (answer) => URL.createObjectURL(await answer.blob()));
}

/** A file's bytes, its name, and what it could not hold (a sentence, or null). */
export function download(path) {
  return within(FILE_MS, "GET", path, {}, async (answer) => {
    const name = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") ?? "")?.[1] ?? "card";
    return { blob: await answer.blob(), name, left: answer.headers.get("X-Card-Not-Carried") };
  });
}

/** One stream: yields {name, data} for every event; comments (pings) are skipped, but show that it lives. */
export async function* stream(path, body, signal) {
  const patience = new Patience(SILENT_MS, signal);
  try {
    const { body: text, contentType } = json(body);
    const response = await send("POST", path, text, contentType, patience.abort.signal);
    if (!response.ok) throw await failure(response);
    yield* events(response, patience);
  } catch (error) {
    // Not to be sent again of itself: what had come of it is shown already.
    throw patience.told(error, { code: null });
  } finally {
    patience.end();
  }
}

async function* events(response, patience) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      patience.renew();
      const { value, done } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The connection was lost in the middle of the answer.");
      });
      if (done) return;
      buffer += value;
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const event = parse(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function parse(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}

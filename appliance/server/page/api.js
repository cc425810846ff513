// Talks to the server: JSON calls and streams of server-sent events. Never touches the page.

const KEY_SLOT = "appliance.key";

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

function send(method, path, body, signal) {
  if (body === undefined) return sendBytes(method, path, undefined, null, signal);
  return sendBytes(method, path, JSON.stringify(body), "application/json", signal);
}

async function sendBytes(method, path, body, contentType, signal) {
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
export async function call(method, path, body) {
  const response = await send(method, path, body);
  if (!response.ok) throw await failure(response);
  return response.status === 204 ? null : response.json();
}

/** Send a file as it is; resolves to the parsed answer. */
export async function upload(path, file) {
  const response = await sendBytes("POST", path, file, "application/octet-stream");
  if (!response.ok) throw await failure(response);
  return response.json();
}

/** An image as an address for this page alone: the key goes along, which an element would not send. */
export async function imageUrl(path) {
  const response = await send("GET", path);
  return response.ok ? URL.createObjectURL(await response.blob()) : null;
}

/** A file's bytes, its name, and what it could not hold (a sentence, or null). */
export async function download(path) {
  const response = await send("GET", path);
  if (!response.ok) throw await failure(response);
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "card";
  return { blob: await response.blob(), name, left: response.headers.get("X-Card-Not-Carried") };
}

/** One stream: yields {name, data} for every event; comments (pings) are skipped. */
export async function* stream(path, body, signal) {
  const response = await send("POST", path, body, signal);
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
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

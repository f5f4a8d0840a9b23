// The server: JSON questions, streamed answers, the key, and what happens when nobody answers.
let key = "";
try { key = sessionStorage.getItem("loopwright-key") ?? ""; } catch { /* private window */ }

export class ServerError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export function setKey(word) {
  key = word;
  try { sessionStorage.setItem("loopwright-key", word); } catch { /* private window */ }
}

async function ask(path, body, signal) {
  const headers = { ...(body ? { "content-type": "application/json" } : {}), ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body ? JSON.stringify(body) : undefined, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  let message = `The server answered with ${response.status}.`;
  try { message = (await response.json()).error.message; } catch { /* no JSON: the status says enough */ }
  throw new ServerError(response.status, message);
}

export const get = async (path) => (await ask(path)).json();
export const post = async (path, body, signal) => (await ask(path, body, signal)).json();

// Hands each piece of a streamed completion to `take`, and returns the usage.
export async function complete(body, take, signal) {
  const response = await ask("/v1/completions", { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", usage = null;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return usage;
      const events = (held + value).split("\n\n");
      held = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
        const data = JSON.parse(event.slice(6));
        if (data.error) throw new ServerError(500, data.error.message);
        usage = data.usage ?? usage;
        if (data.choices.length) take(data.choices[0].text);
      }
    }
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") throw error;
    throw new ServerError(0, "The server went away in the middle of an answer.");
  }
}

// The newest question of a kind wins: an older one still under way is dropped.
export function latest() {
  let controller = null;
  return async (work) => {
    controller?.abort();
    const mine = (controller = new AbortController());
    try {
      return await work(mine.signal);
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) return undefined;
      throw error;
    }
  };
}

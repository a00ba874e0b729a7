// The public API, as a session of the console calls it.

let key = localStorage.getItem("console-key") ?? "";
export const signedIn = () => key !== "";

const ended = new EventTarget();
export const onEnd = (f) => ended.addEventListener("end", f);

function forget() {
  if (!key) return;
  if (localStorage.getItem("console-key") === key) localStorage.removeItem("console-key"); // another tab may have signed in since
  key = "";
  ended.dispatchEvent(new Event("end"));
}

// signIn begins a session. A request without an answer is sent again, as browsers fail those that wait for a connection when an address of
// the host comes or goes. If it arrived after all, a link's secret has been used, and that is told.
export async function signIn(secret, tries = 5) {
  let response;
  try {
    response = await fetch("session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ secret }) });
  } catch (error) {
    if (tries === 1) throw error;
    await new Promise((resolve) => setTimeout(resolve, 500));
    return signIn(secret, tries - 1);
  }
  if (!response.ok) throw new Error((await response.text()).trim());
  key = (await response.json()).key;
  localStorage.setItem("console-key", key);
}

export async function signOut() {
  await fetch("session", { method: "DELETE", headers: { "X-Console-Key": key }, signal: AbortSignal.timeout(5000) }).catch(() => {});
  forget();
}

// open makes a call; its error has the service's own message.
export async function open(method, path, body, options = {}) {
  const headers = { "X-Console-Key": key, ...options.headers };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch("/v1/" + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: options.signal, cache: "no-store" });
  if (response.status === 401 && headers["X-Console-Key"] === key) forget(); // and not a session that has begun since
  if (!response.ok) {
    const text = await response.text();
    let message = text;
    try { message = JSON.parse(text).error.message; } catch { /* not in the API's form */ }
    const error = new Error(message || "the service answered " + response.status);
    error.status = response.status;
    throw error;
  }
  return response;
}

export async function call(method, path, body) {
  const response = await open(method, path, body);
  return response.status === 204 ? null : response.json();
}

// lines reads a stream line by line until it ends.
export async function lines(response, each) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    parts.forEach(each);
  }
}

// follow receives events as long as the session lasts; after a break it goes on where it was. told is called with the link's state.
export async function follow(each, told) {
  let last = "", wait = 250;
  while (signedIn()) {
    try {
      const response = await open("GET", "events?replay=true", undefined, last ? { headers: { "Last-Event-ID": last } } : {});
      await lines(response, (line) => {
        if (!line.startsWith("data: ")) return;
        const event = JSON.parse(line.slice(6));
        if (event.kind === "open") { wait = 250; told("live"); }
        if (event.kind !== "open" || last === "") last = event.id;
        each(event);
      });
    } catch (error) {
      if (error.status === 400) last = "";
    }
    if (!signedIn()) return;
    told("lost");
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, 5000);
  }
}

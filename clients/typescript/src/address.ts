import http from "node:http";
import https from "node:https";

/** Where the service is, and how to authenticate. */
export interface Address {
    /** The service's Unix socket. By default $SANDBOX_SOCKET, or /run/daycare-sandbox/sandboxd.sock. */
    socketPath?: string | undefined;
    /** Instead of a socket, such as https://sandbox.example.org:7480. */
    url?: string | undefined;
    /** Sent with every call. Over http:// it can be read on its way. */
    token?: string | undefined;
    /** Only for https://: PEM texts. Without ca, Node's own authorities are trusted. */
    tls?: Tls | undefined;
}

export interface Tls {
    ca?: string | Buffer | undefined;
    /** A client certificate with its key, where the service asks for one. */
    cert?: string | Buffer | undefined;
    key?: string | Buffer | undefined;
}

const defaultSocket = "/run/daycare-sandbox/sandboxd.sock";
/** Less than the service's two minutes, so that no connection is used that the service is about to close. */
const idleMs = 60_000;

/** Target is a checked Address: what Node's request functions take, and a name for messages. */
export interface Target {
    /** For people: the socket's path or the URL. */
    name: string;
    isSocket: boolean;
    options: https.RequestOptions;
    agent: http.Agent;
    request: typeof http.request;
}

/** resolve checks an address. A fault in it is a TypeError that names the option. */
export function resolve(address: Address): Target {
    if (address.token !== undefined && !/^[\x21-\x7e]+$/.test(address.token)) {
        throw new TypeError("token is empty or has characters that a header cannot have: give it as it is in the service's tokens file");
    }
    const headers = address.token === undefined ? {} : { authorization: `Bearer ${address.token}` };
    if (address.url === undefined) return socketTarget(address, headers);
    if (address.socketPath !== undefined) throw new TypeError("socketPath and url are both given: give one of them");
    return urlTarget(address, address.url, headers);
}

function socketTarget(address: Address, headers: http.OutgoingHttpHeaders): Target {
    if (address.tls !== undefined) throw new TypeError("tls is given for a Unix socket: give url, or leave tls out");
    const socketPath = address.socketPath ?? (process.env["SANDBOX_SOCKET"] || defaultSocket);
    if (socketPath === "") throw new TypeError("socketPath is empty: give the path of the service's socket");
    const agent = new http.Agent({ keepAlive: true, timeout: idleMs });
    return { name: socketPath, isSocket: true, options: { socketPath, host: "sandboxd", headers }, agent, request: http.request };
}

function urlTarget(address: Address, text: string, headers: http.OutgoingHttpHeaders): Target {
    let url: URL;
    try {
        url = new URL(text);
    } catch {
        throw new TypeError(`url ${JSON.stringify(text)} is no URL: give one such as https://sandbox.example.org:7480`);
    }
    const secure = url.protocol === "https:";
    if (!secure && url.protocol !== "http:") throw new TypeError(`url ${JSON.stringify(text)} begins with ${url.protocol}: give http: or https:`);
    if (url.pathname !== "/" || url.search !== "" || url.hash !== "" || url.username !== "" || url.password !== "") {
        throw new TypeError("url has more than a host and a port: give https://HOST:PORT, and a token as token");
    }
    if (!secure && address.tls !== undefined) throw new TypeError("tls is given for an http: url: give an https: one");
    const host = url.hostname.replace(/^\[|\]$/g, "");
    const options = { host, port: url.port === "" ? (secure ? 443 : 80) : Number(url.port), headers };
    if (!secure) return { name: url.origin, isSocket: false, options, agent: new http.Agent({ keepAlive: true, timeout: idleMs }), request: http.request };
    const agent = new https.Agent({ keepAlive: true, timeout: idleMs, minVersion: "TLSv1.2", ...given(address.tls) });
    return { name: url.origin, isSocket: false, options, agent, request: https.request };
}

function given(tls: Tls | undefined): https.AgentOptions {
    const options: https.AgentOptions = {};
    for (const [name, pem] of Object.entries(tls ?? {})) {
        if (pem !== undefined && pem.length === 0) throw new TypeError(`tls.${name} is empty: give a PEM text, or leave it out`);
    }
    if (tls?.ca !== undefined) options.ca = tls.ca;
    if (tls?.cert !== undefined) options.cert = tls.cert;
    if (tls?.key !== undefined) options.key = tls.key;
    return options;
}

import { split, wire, type ExecArgs } from "./command.js";
import { SandboxError, told, unreadable } from "./error.js";
import { lines } from "./lines.js";
import { Collected, textOf } from "./output.js";
import { decode } from "./bytes.js";
import type { Transport } from "./transport.js";
import type { Schemas } from "./types.js";

/** How a command ended, and what it printed. */
export type ExecResult = Schemas["Result"] & {
    /** The output as text, with U+FFFD for what is not UTF-8. */
    stdout: string;
    stderr: string;
    /** The output as bytes, present only if they are not UTF-8. */
    stdoutBytes?: Buffer;
    stderrBytes?: Buffer;
    /** What is left out between the two ends that are kept, present only if something is. */
    stdoutCut?: Schemas["Cut"];
    stderrCut?: Schemas["Cut"];
};

/**
 * What a command printed, as it came. An exec that is attached, or has `detachOnDisconnect`, may split a character between
 * two events; any other never does.
 */
export interface OutputEvent {
    type: "stdout" | "stderr";
    /** The output as text, with U+FFFD for what is not UTF-8. */
    text: string;
    data: Buffer;
}

/** How a command ended; the last event. */
export interface ExitEvent {
    type: "exit";
    result: Schemas["Result"];
}

type WireEvent = Schemas["Event"];
type Handled = "stdout" | "stderr" | "exit" | "error" | "stdin" | "keepalive";

/** Any other event of the contract, such as `start`, which is the first one. */
export type OtherEvent = Omit<WireEvent, "type" | "data" | "encoding" | "bytes" | "result" | "error"> & { type: Exclude<WireEvent["type"], Handled> };

export type ExecEvent = OutputEvent | ExitEvent | OtherEvent;

/** Called with each piece of output. If it returns a promise, the command waits for that. */
export type OnOutput = (text: string, data: Buffer) => void | Promise<void>;

export type ExecCallArgs = ExecArgs & {
    onStdout?: OnOutput;
    onStderr?: OnOutput;
};

/** How many bytes of stdout, and of stderr, a result holds if the output also went to callbacks. */
const maxOutputBytes = 1_000_000;

/** exec runs a command and returns its result at its end. */
export async function exec(transport: Transport, path: string, args: ExecCallArgs): Promise<ExecResult> {
    const { onStdout, onStderr, ...command } = args;
    if (onStdout !== undefined || onStderr !== undefined) return await observed(transport, path, command, { stdout: onStdout, stderr: onStderr });
    const { options, body } = split(command);
    const output = await transport.json<Schemas["Output"]>({ method: "POST", path, body: wire(body) }, options);
    const { stdout, stdoutEncoding, stderr, stderrEncoding, ...result } = output;
    return { ...result, ...textOf("stdout", decode(stdout, stdoutEncoding)), ...textOf("stderr", decode(stderr, stderrEncoding)) };
}

type Observers = Record<OutputEvent["type"], OnOutput | undefined>;

async function observed(transport: Transport, path: string, args: ExecArgs, observers: Observers): Promise<ExecResult> {
    const outputs = { stdout: new Collected(maxOutputBytes), stderr: new Collected(maxOutputBytes) };
    let result: Schemas["Result"] | undefined;
    for await (const event of execStream(transport, path, args)) {
        if (isExit(event)) result = event.result;
        if (!isOutput(event)) continue;
        outputs[event.type].add(event.data);
        await observers[event.type]?.(event.text, event.data);
    }
    if (result === undefined) throw unreadable("the stream has no exit");
    const texts = { ...outputs.stdout.as("stdout"), ...outputs.stderr.as("stderr") };
    const truncated = result.truncated || texts.stdoutCut !== undefined || texts.stderrCut !== undefined;
    return { ...result, truncated, ...texts };
}

/** execStream runs a command and yields events as they happen. */
export async function* execStream(transport: Transport, path: string, args: ExecArgs): AsyncGenerator<ExecEvent, void, undefined> {
    const { options, body } = split(args);
    const headers = { accept: "application/x-ndjson" };
    const response = await transport.open({ method: "POST", path, body: wire(body), headers }, options);
    let ended = false;
    try {
        // Reads what comes after the exit as well, so that the connection can be kept.
        for await (const event of lines<WireEvent>(transport.chunks(response, options.signal))) {
            if (event.type === "error") throw told(event.error);
            const passed = received(event);
            if (passed !== undefined) yield passed;
            ended ||= event.type === "exit";
        }
    } catch (error) {
        if (!ended) throw error;
    }
    if (!ended) throw new SandboxError({ kind: "lost", message: "the stream ended before the command did: its outcome is not known" });
}

/** received returns an event as it is passed on, or undefined if it is not. */
export function received(event: WireEvent): ExecEvent | undefined {
    switch (event.type as WireEvent["type"] | "keepalive") {
        case "stdout":
        case "stderr": {
            const data = decode(event.data ?? "", event.encoding);
            return { type: event.type as OutputEvent["type"], text: data.toString(), data };
        }
        case "exit":
            if (event.result === undefined) throw unreadable("an exit event without a result");
            return { type: "exit", result: event.result };
        case "stdin":
        case "keepalive":
            return undefined;
        default:
            return event as OtherEvent;
    }
}

/** isOutput and isExit tell events apart, including events that a later contract adds. */
export function isOutput(event: ExecEvent): event is OutputEvent {
    return event.type === "stdout" || event.type === "stderr";
}

export function isExit(event: ExecEvent): event is ExitEvent {
    return event.type === "exit";
}

import { isExit, isOutput, received, type ExecEvent, type ExitEvent } from "./exec.js";
import { split, wire, type CommandArgs } from "./command.js";
import { parsed, SandboxError, told, unreadable } from "./error.js";
import { query } from "./query.js";
import type { CallOptions, Transport } from "./transport.js";
import type { Schemas } from "./types.js";
import type { Message, WebSocket } from "./websocket.js";

const stdinChannel = 0;
const stderrChannel = 2;
/** How many bytes of stdin may be sent before the service has passed them to the command: the contract's window. */
const stdinWindow = 1 << 20;
const partSize = 32 << 10;
/** How many bytes of output may wait for their reader before the command has to wait. */
const maxWaiting = 1 << 20;

/** Without `stdin`, write sends it. `signal` ends the command, or with `detachOnDisconnect` only the connection. */
export type AttachArgs = CommandArgs & CallOptions;

/** Which exec with `detachOnDisconnect` to come back to. `signal` ends only the connection. */
export interface ReattachArgs extends CallOptions {
    execId: string;
    /** How many bytes of output, stdout and stderr together, were read before: see Attached.offset. 0 by default. */
    offset?: number;
}

/** attach runs a command and returns when it has started. */
export async function attach(transport: Transport, path: string, args: AttachArgs): Promise<Attached> {
    const { options, body } = split(args);
    return await transport.retrying(options, async () => {
        const connection = await transport.upgrade(path, options.signal);
        const attached = new Attached(connection, (error) => transport.fault(error, true, options.signal), { credit: stdinWindow, offset: 0 });
        await connection.send(JSON.stringify(wire(body)));
        await attached.started;
        return attached;
    });
}

/** reattach comes back to a command, and returns when the service has said that it is there. */
export async function reattach(transport: Transport, path: string, args: ReattachArgs): Promise<Attached> {
    const { offset = 0, signal } = args;
    return await transport.retrying(args, async () => {
        const connection = await transport.upgrade(path + query({ offset }), signal);
        // The service says how much stdin there is room for after the start.
        const attached = new Attached(connection, (error) => transport.fault(error, true, signal), { credit: 0, offset });
        await attached.started;
        return attached;
    });
}

/**
 * A running command, with its stdin and signals. Iterate over it, once: its events are output and finally
 * `exit`. Unread output makes the command wait, after a mebibyte at the latest. Leaving the loop, close and the
 * AbortSignal end the command with all that it started; a command with `detachOnDisconnect` goes on, and
 * Sandbox.reattach comes back to it.
 */
export class Attached implements AsyncIterable<ExecEvent> {
    /** @internal Settles with the start, or with the end if that comes first. */
    readonly started: Promise<void>;
    readonly #connection: WebSocket;
    readonly #fault: (error: Error) => unknown;
    readonly #events: ExecEvent[] = [];
    #waiting = 0; // bytes in events
    #credit: number;
    #offset: number;
    #execId: string | undefined;
    #begun = false;
    #cut = false; // the connection has closed
    #end: { error?: unknown } | undefined;
    #changed = deferred();

    /** @internal */
    constructor(connection: WebSocket, fault: (error: Error) => unknown, at: { credit: number; offset: number }) {
        this.#connection = connection;
        this.#fault = fault;
        this.#credit = at.credit;
        this.#offset = at.offset;
        void connection.closed.then(() => {
            this.#cut = true;
            this.#wake();
        });
        this.started = this.#start();
        this.started.catch(() => {}); // attach reports it, but may still be sending
    }

    /** The id for Sandbox.reattach, if the exec has `detachOnDisconnect`. */
    get execId(): string | undefined {
        return this.#execId;
    }

    /**
     * How many bytes the command has printed, stdout and stderr together, up to the end of the last event that
     * was read: where Sandbox.reattach should go on. Output that came but was not read does not count.
     */
    get offset(): number {
        return this.#offset;
    }

    /** Writes to stdin, and waits while the command does not read. Data written after the command's end is dropped. */
    async write(data: string | Uint8Array): Promise<void> {
        const bytes = Buffer.from(data);
        for (let at = 0; at < bytes.length; ) {
            const size = Math.min(partSize, bytes.length - at);
            while (this.#credit < size && this.#end === undefined) await this.#changed.promise;
            if (this.#end !== undefined) return;
            this.#credit -= size;
            await this.#connection.send(Buffer.concat([Buffer.of(stdinChannel), bytes.subarray(at, at + size)]));
            at += size;
        }
    }

    /** Ends stdin. */
    async end(): Promise<void> {
        await this.#input({ type: "eof" });
    }

    /** Sets the size of the command's terminal, for an exec with `tty`. */
    async resize(rows: number, cols: number): Promise<void> {
        await this.#input({ type: "resize", rows, cols });
    }

    /** Sends a signal to the command's process group, such as INT. */
    async signal(name: string): Promise<void> {
        await this.#input({ type: "signal", signal: name });
    }

    /** Waits for the end and returns how the command ended. Output that has not been read is dropped. */
    async exit(): Promise<Schemas["Result"]> {
        for await (const event of this) if (isExit(event)) return event.result;
        throw unreadable("the exec has no exit");
    }

    /** Ends the command with all that it started, if it runs; one with `detachOnDisconnect` goes on. */
    close(): void {
        this.#finish({ error: new SandboxError({ kind: "closed", message: "the exec was closed before the command's end" }) });
        this.#connection.destroy();
    }

    async [Symbol.asyncDispose](): Promise<void> {
        this.close();
    }

    async *[Symbol.asyncIterator](): AsyncGenerator<ExecEvent, void, undefined> {
        try {
            for (;;) {
                const event = this.#events.shift();
                if (event !== undefined) {
                    this.#waiting -= size(event);
                    this.#offset += event.type === "lost" ? (event.lost ?? 0) : size(event);
                    this.#wake();
                    yield event;
                } else if (this.#end === undefined) {
                    await this.#changed.promise;
                } else if ("error" in this.#end) {
                    throw this.#end.error;
                } else {
                    return;
                }
            }
        } finally {
            this.close();
        }
    }

    async #input(input: Schemas["Input"]): Promise<void> {
        await this.#connection.send(JSON.stringify(input));
    }

    /** #start waits until the command has started, or has ended. Messages that keep the connection alive say neither. */
    async #start(): Promise<void> {
        void this.#pump();
        while (!this.#begun && this.#end === undefined) await this.#changed.promise;
        if (!this.#begun && this.#end !== undefined && "error" in this.#end) throw this.#end.error;
    }

    /**
     * #pump takes messages until the exit. It never fails: the reader gets the error. It waits for the reader only while
     * there is a connection; what came before that closed is not much, and how the exec ended has to be known then.
     */
    async #pump(): Promise<void> {
        try {
            for await (const message of this.#connection.messages()) {
                const event = this.#take(message);
                if (event !== undefined) return this.#finish({});
                while (this.#waiting > maxWaiting && !this.#cut && this.#end === undefined) await this.#changed.promise;
            }
            throw new Error("the connection was closed before the command's end");
        } catch (error) {
            this.#finish({ error: this.#fault(error as Error) });
        } finally {
            this.close();
        }
    }

    /** #take queues a message's event for the reader, and returns the event if it is the exit. */
    #take({ binary, data }: Message): ExitEvent | undefined {
        const event = binary ? output(data) : this.#told(parsed(data));
        if (event === undefined) return undefined;
        this.#events.push(event);
        this.#waiting += size(event);
        this.#wake();
        return isExit(event) ? event : undefined;
    }

    #told(event: Schemas["Event"]): ExecEvent | undefined {
        if (event.type === "error") throw told(event.error);
        if (event.type === "start") {
            this.#begun = true;
            this.#execId = event.execId;
        }
        if (event.type === "stdin") {
            this.#credit += event.bytes ?? 0;
            this.#wake();
        }
        return received(event);
    }

    #finish(end: { error?: unknown }): void {
        this.#end ??= end;
        this.#wake();
    }

    #wake(): void {
        this.#changed.resolve();
        this.#changed = deferred();
    }
}

function output(message: Buffer): ExecEvent {
    const data = message.subarray(1);
    return { type: message[0] === stderrChannel ? "stderr" : "stdout", text: data.toString(), data };
}

function size(event: ExecEvent): number {
    return isOutput(event) ? event.data.length : 0;
}

function deferred(): { promise: Promise<void>; resolve: () => void } {
    let resolve = () => {};
    const promise = new Promise<void>((settle) => (resolve = settle));
    return { promise, resolve };
}

import { isExit, isOutput, received, type ExecEvent, type ExitEvent } from "./exec.js";
import { split, wire, type CommandArgs } from "./command.js";
import { parsed, SandboxError, told, unreadable } from "./error.js";
import type { Transport } from "./transport.js";
import type { Schemas } from "./types.js";
import type { Message, WebSocket } from "./websocket.js";

const stdinChannel = 0;
const stderrChannel = 2;
/** How many bytes of stdin may be sent that the command has not been given yet: the contract's window. */
const stdinWindow = 1 << 20;
const partSize = 32 << 10;
/** How much output waits for its reader before the command does. */
const maxWaiting = 1 << 20;

/** Without `stdin`, that is written. `signal` ends the command. */
export type AttachArgs = CommandArgs & { signal?: AbortSignal | undefined };

/** attach runs a command and returns when it has started. */
export async function attach(transport: Transport, path: string, args: AttachArgs): Promise<Attached> {
    const { options, body } = split(args);
    const connection = await transport.upgrade(path, options.signal);
    const attached = new Attached(connection, (error) => transport.fault(error, true, options.signal));
    await connection.send(JSON.stringify(wire(body)));
    await attached.started;
    return attached;
}

/**
 * A command that runs, with its stdin and signals. It is to be iterated over, once: its events are output and
 * at last `exit`. Output that nobody reads makes the command wait, at the latest after a mebibyte. Leaving the
 * loop, close and the AbortSignal end the command with all that it started.
 */
export class Attached implements AsyncIterable<ExecEvent> {
    /** @internal Settles with the first event. */
    readonly started: Promise<void>;
    readonly #connection: WebSocket;
    readonly #fault: (error: Error) => unknown;
    readonly #events: ExecEvent[] = [];
    #waiting = 0; // bytes in events
    #credit = stdinWindow;
    #end: { error?: unknown } | undefined;
    #changed = deferred();

    /** @internal */
    constructor(connection: WebSocket, fault: (error: Error) => unknown) {
        this.#connection = connection;
        this.#fault = fault;
        this.started = this.#start();
        this.started.catch(() => {}); // attach tells, but may still be sending
    }

    /** Writes to stdin, and waits while the command does not read. What comes after the command's end is dropped. */
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

    /** Tells the size of the terminal that the command has, of an exec with `tty`. */
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

    /** Ends the command with all that it started, if it runs. */
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

    /** #start waits for the first event, and leaves the others to #pump. */
    async #start(): Promise<void> {
        const messages = this.#connection.messages();
        try {
            const first = await messages.next();
            if (first.done) throw new Error("the connection has ended");
            this.#take(first.value);
        } catch (error) {
            this.#finish({ error: this.#fault(error as Error) });
            this.close();
            throw this.#end?.error;
        }
        void this.#pump(messages);
    }

    /** #pump takes what comes until the exit. It never fails: whoever reads is told. */
    async #pump(messages: AsyncGenerator<Message, void, undefined>): Promise<void> {
        try {
            for await (const message of messages) {
                const event = this.#take(message);
                if (event !== undefined) return this.#finish({});
                while (this.#waiting > maxWaiting && this.#end === undefined) await this.#changed.promise;
            }
            throw new Error("the connection was closed before the command's end");
        } catch (error) {
            this.#finish({ error: this.#fault(error as Error) });
        } finally {
            this.close();
        }
    }

    /** #take puts a message's event where it belongs, and returns the exit. */
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

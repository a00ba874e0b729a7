import { attach, reattach, type AttachArgs, type Attached, type ReattachArgs } from "./attach.js";
import { named, type Path } from "./bytes.js";
import type { Client } from "./client.js";
import { split, wire, type ExecArgs, type ProcessStartArgs } from "./command.js";
import { exec, execStream, type ExecCallArgs, type ExecEvent, type ExecResult } from "./exec.js";
import * as files from "./files.js";
import * as processes from "./processes.js";
import { segment } from "./query.js";
import type { CallOptions, Transport } from "./transport.js";
import type { DetachedExec, Entry, Explanation, Listing, Permissions, Process, Registered, Registration, Schemas, StartedProcess, UnpackResult, WaitedProcess, WriteResult } from "./types.js";

export type OpenArgs = Registration & { id: string } & CallOptions;
export type ExplainArgs = Schemas["Explain"] & CallOptions;
/** An exec with `detachOnDisconnect` by its id. */
export type ExecIdArgs = { execId: string } & CallOptions;
export type PathArgs = { path: Path } & CallOptions;
export type LookArgs = PathArgs & Pick<Schemas["Look"], "follow" | "permissions">;
export type MkdirArgs = PathArgs & { parents?: boolean };
export type MoveArgs = { from: Path; to: Path; overwrite?: boolean } & CallOptions;
export type RemoveArgs = PathArgs & { recursive?: boolean };

/**
 * An agent's files, commands and processes. The registration fixes what the agent may do. Each exec and process
 * gets the part of it that its `permissions` name; without them it has no network and can only read the home.
 *
 * Every call takes one object and fails with a SandboxError, or with the reason of its `signal`.
 */
export class Sandbox {
    readonly id: string;
    readonly #transport: Transport;
    readonly #path: string;

    private constructor(client: Client, readonly registered: Registered) {
        this.id = registered.id;
        this.#transport = client.transport;
        this.#path = sandboxPath(registered.id);
    }

    /**
     * Registers a sandbox, or replaces what is registered under its id; doing it again changes nothing. With `warm`,
     * the `permissions` of a call that will come, the container of that call is made in the background.
     */
    static async open(client: Client, args: OpenArgs): Promise<Sandbox> {
        const { options, body } = split(args);
        const { id, ...registration } = body;
        const path = sandboxPath(id);
        return new Sandbox(client, await client.transport.json<Registered>({ method: "PUT", path, body: registration }, options));
    }

    /** Finds a sandbox that is registered. */
    static async find(client: Client, id: string, options: CallOptions = {}): Promise<Sandbox> {
        return new Sandbox(client, await client.transport.json<Registered>({ method: "GET", path: sandboxPath(id) }, options));
    }

    /** Forgets the sandbox. The user's files stay, and commands that run go on. */
    async forget(options: CallOptions = {}): Promise<void> {
        await this.#transport.json({ method: "DELETE", path: this.#path }, options);
    }

    /**
     * Freezes everything in the sandbox, its processes included, until it is resumed, even if the service is restarted.
     * A call that runs something in it resumes it, except an exec with `onlyIfRunning`, which fails with `conflict`.
     */
    async pause(options: CallOptions = {}): Promise<Registered> {
        return await this.#transport.json({ method: "POST", path: this.#path + "/pause" }, options);
    }

    /** Lets the sandbox go on where it was. */
    async resume(options: CallOptions = {}): Promise<Registered> {
        return await this.#transport.json({ method: "POST", path: this.#path + "/resume" }, options);
    }

    get userId(): string {
        return this.registered.userId;
    }

    /** The sandbox's permissions, with container paths. */
    get permissions(): Permissions {
        return this.registered.permissions;
    }

    /** Where commands run unless they say otherwise, as a container path. */
    get workingDir(): string {
        return this.registered.permissions.workingDir ?? "/home";
    }

    /** Reads a file. A text is cut at 2000 lines or 50 KiB unless `raw`; `binary` gives the bytes of any file. */
    async read(args: files.ReadArgs): Promise<files.ReadResult> {
        return files.readResult(await this.#onPath<Schemas["ReadResult"]>("/read", args));
    }

    /** Writes a whole file, or with `append` to its end. The path is as in read. */
    async write(args: files.WriteArgs): Promise<WriteResult> {
        const { options, body } = split(args);
        return await this.#post("/write", files.writeBody(body), options);
    }

    /**
     * Runs a command and returns when it has ended with all that it started. A command that fails is a result, too:
     * see `failed`. onStdout and onStderr get output as it comes.
     */
    async exec(args: ExecCallArgs): Promise<ExecResult> {
        return await exec(this.#transport, this.#path + "/exec", args);
    }

    /**
     * Runs a command and yields events as they happen: `start`, then output, finally `exit`. The command
     * starts when the first event is asked for, waits for a slow reader, and ends when the loop is left.
     */
    execStream(args: ExecArgs): AsyncGenerator<ExecEvent, void, undefined> {
        return execStream(this.#transport, this.#path + "/exec", args);
    }

    /**
     * Runs a command whose stdin and signals come while it runs, and returns when it has started. If `stdin` is
     * given, the command gets nothing else.
     */
    async attach(args: AttachArgs): Promise<Attached> {
        return await attach(this.#transport, this.#path + "/exec", args);
    }

    /**
     * Comes back to an exec with `detachOnDisconnect`, in place of any caller attached to it. The events are `start`,
     * then the output after `offset` that is still kept, which is at least the first 64 KiB and the last MiB (less
     * if it changes between stdout and stderr all the time), with an
     * event `lost` where bytes are missing, then new output. Stdin stays as it is unless something is written. A command that has ended is kept
     * for five minutes, unless it makes room for newer ones.
     */
    async reattach(args: ReattachArgs): Promise<Attached> {
        return await reattach(this.#transport, this.#exec(args), args);
    }

    /** The execs of the sandbox's user that reattach can come back to, the oldest first. */
    async execList(options: CallOptions = {}): Promise<DetachedExec[]> {
        const list = await this.#transport.json<Schemas["DetachedExecList"]>({ method: "GET", path: this.#path + "/execs" }, options);
        return list.execs;
    }

    /** Ends an exec with `detachOnDisconnect`, and returns how it has ended. */
    async execKill(args: ExecIdArgs): Promise<DetachedExec> {
        return await this.#transport.json({ method: "POST", path: this.#exec(args) + "/kill" }, args);
    }

    /** Sends a signal such as INT to the command of an `execStream`, or of an exec with `detachOnDisconnect`. */
    async execSignal({ signal, retry, ...args }: Omit<ExecIdArgs, "signal"> & Schemas["ExecSignal"]): Promise<void> {
        await this.#transport.json({ method: "POST", path: this.#exec(args) + "/signal", body: { signal } }, { retry });
    }

    /** What an exec with these grants would see and reach. Starts nothing. */
    async explain(args: ExplainArgs = {}): Promise<Explanation> {
        const { options, body } = split(args);
        return await this.#post("/explain", body, options);
    }

    /** The entries of a directory, by name. */
    async list(args: LookArgs): Promise<Listing> {
        return await this.#onPath("/list", args);
    }

    /** Says what a path is. A link at its end is followed only with `follow`. */
    async stat(args: LookArgs): Promise<Entry> {
        return await this.#onPath("/stat", args);
    }

    /** Makes a directory. With `parents`, it also makes those above it, and accepts a directory that exists. */
    async mkdir(args: MkdirArgs): Promise<void> {
        await this.#onPath("/mkdir", args);
    }

    /** Renames a file or directory; with `overwrite`, a file at the new name is replaced. */
    async move(args: MoveArgs): Promise<void> {
        const { options, body } = split(args);
        const { from, to, ...rest } = body;
        await this.#post("/move", { ...named("from", from), ...named("to", to), ...rest }, options);
    }

    /** Removes a file, or with `recursive` also a directory with everything in it. */
    async remove(args: RemoveArgs): Promise<void> {
        await this.#onPath("/remove", args);
    }

    /** Writes a file of any size from a stream. If the stream fails, nothing changes and the call fails with its error. */
    async upload(args: files.UploadArgs): Promise<WriteResult> {
        return await files.upload(this.#transport, this.#path + "/files", args);
    }

    /** Reads a file of any size, or a part of it, as a stream. */
    async download(args: files.DownloadArgs): Promise<files.Download> {
        return await files.download(this.#transport, this.#path + "/files", args);
    }

    /** Writes the entries of a tar archive below a directory. After a failure, what came before it stays. */
    async unpack(args: files.UnpackArgs): Promise<UnpackResult> {
        return await files.unpack(this.#transport, this.#path + "/archive", args);
    }

    /** Reads a directory as a tar archive, as a stream. */
    async pack(args: files.PackArgs): Promise<files.Packed> {
        return await files.pack(this.#transport, this.#path + "/archive", args);
    }

    /** Starts a process that outlives this program and the service. Returns when its command runs. */
    async processStart(args: ProcessStartArgs): Promise<StartedProcess> {
        const { options, body } = split(args);
        return await this.#post("/processes", wire(body), options);
    }

    /** The processes of the sandbox's user, including ended ones, in the order of creation. */
    async processList(options: CallOptions = {}): Promise<Process[]> {
        const list = await this.#transport.json<Schemas["ProcessList"]>({ method: "GET", path: this.#path + "/processes" }, options);
        return list.processes;
    }

    async processGet(args: processes.ProcessArgs): Promise<Process> {
        return await this.#transport.json({ method: "GET", path: this.#process(args) }, args);
    }

    /**
     * Waits until a process has ended and will not be restarted, or until it is ready. `timedOut` in the result says that
     * the time was over first.
     */
    async processWait(args: processes.ProcessWaitArgs): Promise<WaitedProcess> {
        return await processes.processWait(this.#transport, this.#process(args) + "/wait", args);
    }

    /** Stops a process for good, and returns when all of it has ended. */
    async processStop({ signal, retry, ...args }: processes.ProcessStopArgs): Promise<Process> {
        return await this.#transport.json({ method: "POST", path: this.#process(args) + "/stop", body: { signal } }, { retry });
    }

    /** Stops all processes of the sandbox's user, and returns those that were stopped. */
    async processStopAll(options: CallOptions = {}): Promise<Process[]> {
        const list = await this.#post<Schemas["ProcessList"]>("/processes/stop-all", {}, options);
        return list.processes;
    }

    /** Removes a process with its log, and stops it first if it runs. */
    async processRemove(args: processes.ProcessArgs): Promise<void> {
        await this.#transport.json({ method: "DELETE", path: this.#process(args) }, args);
    }

    /** The end of what a process has printed. */
    async processLog(args: processes.ProcessLogArgs): Promise<processes.ProcessLog> {
        return await processes.processLog(this.#transport, this.#process(args) + "/log", args);
    }

    /** The end of what a process has printed, then new output, until it has ended for good or the loop is left. */
    processFollow(args: processes.ProcessLogArgs): AsyncGenerator<processes.ProcessLogEvent, void, undefined> {
        return processes.processFollow(this.#transport, this.#process(args) + "/log", args);
    }

    #exec({ execId }: { execId: string }): string {
        return `${this.#path}/execs/${segment("execId", execId)}`;
    }

    #process({ processId }: { processId: string }): string {
        return `${this.#path}/processes/${segment("processId", processId)}`;
    }

    async #onPath<Answer>(route: string, args: PathArgs): Promise<Answer> {
        const { options, body } = split(args);
        const { path, ...rest } = body;
        return await this.#post(route, { ...named("path", path), ...rest }, options);
    }

    async #post<Answer>(route: string, body: unknown, options: CallOptions): Promise<Answer> {
        return await this.#transport.json({ method: "POST", path: this.#path + route, body }, options);
    }
}

function sandboxPath(id: string): string {
    return "/v1/sandboxes/" + segment("id", id);
}

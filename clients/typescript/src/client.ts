import { split } from "./command.js";
import { follow } from "./processes.js";
import { query, segment } from "./query.js";
import { Transport, type CallOptions, type TransportOptions } from "./transport.js";
import type { AllProcesses, Container, ContainerList, Credential, Decision, DecisionEvent, DecisionList, Health, Process, Registered, RemovedUser, Schemas } from "./types.js";

export type ClientOptions = TransportOptions;

/** What a credential is for, and its value, which is in no answer. */
export type CredentialArgs = Schemas["PutCredential"] & { name: string } & CallOptions;

/** Which decisions to return; without any of these, the latest 100 of all. */
export interface DecisionArgs extends CallOptions {
    userId?: string;
    /** A container's name, as in containers(). */
    container?: string;
    verdict?: Schemas["Verdict"];
    via?: Schemas["Via"];
    /** This name and all below it. */
    name?: string;
    /** Only decisions after the one with this seq. */
    after?: number;
    since?: Date | string;
    /** Only the latest, this many; 1000 at most. */
    limit?: number;
}

/**
 * A service, for any number of sandboxes. The client connects at the first call and keeps its connections;
 * close ends them. The constructor does no I/O; options that contradict each other are a TypeError.
 */
export class Client {
    /** @internal */
    readonly transport: Transport;

    constructor(options: ClientOptions = {}) {
        this.transport = new Transport(options);
    }

    /** The state of the service. It answers even when commands cannot run; then `problem` says why. */
    async health(options: CallOptions = {}): Promise<Health> {
        return await this.transport.json({ method: "GET", path: "/v1/health" }, options);
    }

    /** The warm containers, by name. */
    async containers(options: CallOptions = {}): Promise<Container[]> {
        return (await this.allContainers(options)).containers;
    }

    /** Like containers(), and in `unanswered` the hosts of the cluster that did not say which containers they have. */
    allContainers(options: CallOptions = {}): Promise<ContainerList> {
        return this.transport.json<ContainerList>({ method: "GET", path: "/v1/containers" }, options);
    }

    /** The durable processes of all users for whom the caller acts, by creation. Of `command` and `argv` they have the beginning. */
    async processes(options: CallOptions = {}): Promise<Process[]> {
        return (await this.allProcesses(options)).processes;
    }

    /** Like processes(), and in `unanswered` the hosts of the cluster that did not say which processes they have. */
    allProcesses(options: CallOptions = {}): Promise<AllProcesses> {
        return this.transport.json<AllProcesses>({ method: "GET", path: "/v1/processes" }, options);
    }

    /** The registered sandboxes. */
    async sandboxes(options: CallOptions = {}): Promise<Registered[]> {
        const list = await this.transport.json<Schemas["SandboxList"]>({ method: "GET", path: "/v1/sandboxes" }, options);
        return list.sandboxes;
    }

    /**
     * Ends and removes everything of a user: commands, processes, containers and sandboxes, and with `home` the
     * user's files, too. It resolves when all has ended; after an error it can be repeated.
     */
    async removeUser(userId: string, { home, ...options }: CallOptions & { home?: boolean } = {}): Promise<RemovedUser> {
        const path = "/v1/users/" + segment("userId", userId) + query({ home });
        return await this.transport.json<RemovedUser>({ method: "DELETE", path }, options);
    }

    /** Registers a credential, or replaces it; a value that is left out stays. Credentials are for callers who act for everyone. */
    async putCredential(args: CredentialArgs): Promise<Credential> {
        const { options, body } = split(args);
        const { name, ...terms } = body;
        return await this.transport.json<Credential>({ method: "PUT", path: credentialPath(name), body: terms }, options);
    }

    /** A credential without its value. */
    async credential(name: string, options: CallOptions = {}): Promise<Credential> {
        return await this.transport.json<Credential>({ method: "GET", path: credentialPath(name) }, options);
    }

    /** The credentials, by name. */
    async credentials(options: CallOptions = {}): Promise<Credential[]> {
        const list = await this.transport.json<Schemas["CredentialList"]>({ method: "GET", path: "/v1/credentials" }, options);
        return list.credentials;
    }

    /** Removes a credential. Requests get its value no more, also those of commands that run. */
    async removeCredential(name: string, options: CallOptions = {}): Promise<void> {
        await this.transport.json({ method: "DELETE", path: credentialPath(name) }, options);
    }

    /** What calls tried to reach over the network, and what was decided, oldest first. */
    async decisions(args: DecisionArgs = {}): Promise<Decision[]> {
        return (await this.allDecisions(args)).decisions;
    }

    /** Like decisions(), and in `unanswered` the hosts of the cluster that did not say which decisions they made. */
    allDecisions(args: DecisionArgs = {}): Promise<DecisionList> {
        return this.transport.json<DecisionList>({ method: "GET", path: decisionsPath(args) }, args);
    }

    /**
     * The recent decisions, then each new one as it is made, until the loop is left. An event `lost` says how many
     * were left out because the reader was too slow. It fails as `unavailable` when the service stops.
     */
    followDecisions(args: DecisionArgs = {}): AsyncGenerator<DecisionEvent, void, undefined> {
        return follow<DecisionEvent>(this.transport, { method: "GET", path: decisionsPath(args, true) }, args);
    }

    /** Closes all connections. Calls under way fail as `closed`, and their commands end. */
    close(): void {
        this.transport.close();
    }

    async [Symbol.asyncDispose](): Promise<void> {
        this.close();
    }
}

function decisionsPath({ signal: _, retry: __, ...filter }: DecisionArgs, follow?: true): string {
    return "/v1/egress/decisions" + query({ ...filter, follow });
}

function credentialPath(name: string): string {
    return "/v1/credentials/" + segment("name", name);
}

import { follow } from "./processes.js";
import { query } from "./query.js";
import { Transport, type CallOptions, type TransportOptions } from "./transport.js";
import type { Container, ContainerList, Decision, DecisionEvent, DecisionList, Health, Registered, Schemas } from "./types.js";

export type ClientOptions = TransportOptions;

/** Which decisions are meant; without any of these, the latest 100 of all. */
export interface DecisionArgs extends CallOptions {
    userId?: string;
    /** As in containers(). */
    container?: string;
    verdict?: Schemas["Verdict"];
    via?: Schemas["Via"];
    /** This name and all below it. */
    name?: string;
    /** Those after the one with this seq. */
    after?: number;
    since?: Date | string;
    /** The latest so many; 1000 at most. */
    limit?: number;
}

/**
 * A service, for as many sandboxes as there are. It connects with the first call and keeps connections;
 * close gives them up. Making one does no I/O; options that contradict each other are a TypeError.
 */
export class Client {
    /** @internal */
    readonly transport: Transport;

    constructor(options: ClientOptions = {}) {
        this.transport = new Transport(options);
    }

    /** How the service is. It answers also when commands cannot run now: `problem` says why, then. */
    async health(options: CallOptions = {}): Promise<Health> {
        return await this.transport.json({ method: "GET", path: "/v1/health" }, options);
    }

    /** The warm containers, by name. */
    async containers(options: CallOptions = {}): Promise<Container[]> {
        return (await this.allContainers(options)).containers;
    }

    /** containers(), and the hosts of the cluster that did not say which they have, as `unanswered`. */
    allContainers(options: CallOptions = {}): Promise<ContainerList> {
        return this.transport.json<ContainerList>({ method: "GET", path: "/v1/containers" }, options);
    }

    /** What is registered. */
    async sandboxes(options: CallOptions = {}): Promise<Registered[]> {
        const list = await this.transport.json<Schemas["SandboxList"]>({ method: "GET", path: "/v1/sandboxes" }, options);
        return list.sandboxes;
    }

    /** What calls wanted to reach over the network, and what became of it, oldest first. */
    async decisions(args: DecisionArgs = {}): Promise<Decision[]> {
        return (await this.allDecisions(args)).decisions;
    }

    /** decisions(), and the hosts of the cluster that did not say which are theirs, as `unanswered`. */
    allDecisions(args: DecisionArgs = {}): Promise<DecisionList> {
        return this.transport.json<DecisionList>({ method: "GET", path: decisionsPath(args) }, args);
    }

    /**
     * The recent decisions, then each as it is made, until it is left. An event `lost` says how many were left
     * out because the reader was too slow. It fails as `unavailable` when the service stops.
     */
    followDecisions(args: DecisionArgs = {}): AsyncGenerator<DecisionEvent, void, undefined> {
        return follow<DecisionEvent>(this.transport, { method: "GET", path: decisionsPath(args, true) }, args);
    }

    /** Gives all connections up. Calls that are going on fail as `closed`, and their commands end. */
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

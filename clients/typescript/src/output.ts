import { isUtf8 } from "node:buffer";

import type { Schemas } from "./types.js";

type Texts<Name extends string> = Record<Name, string> & Partial<Record<`${Name}Bytes`, Buffer>>;

/** textOf returns output as text, and also as bytes if text cannot hold them. */
export function textOf<Name extends string>(name: Name, data: Buffer): Texts<Name> {
    const text = { [name]: data.toString() };
    return (isUtf8(data) ? text : { ...text, [`${name}Bytes`]: data }) as Texts<Name>;
}

type Cut = Schemas["Cut"];
type Kept<Name extends string> = Texts<Name> & Partial<Record<`${Name}Cut`, Cut>>;

/** Collected keeps both ends of an output, each of half of the limit. */
export class Collected {
    readonly #head: Buffer[] = [];
    readonly #tail: Buffer[] = [];
    readonly #half: number;
    #headRoom: number;
    #tailSize = 0;
    #total = 0;

    constructor(limit: number) {
        this.#half = Math.floor(limit / 2);
        this.#headRoom = limit - this.#half;
    }

    add(data: Buffer): void {
        this.#total += data.length;
        const head = data.subarray(0, this.#headRoom);
        this.#headRoom -= head.length;
        if (head.length > 0) this.#head.push(head);
        const rest = data.subarray(head.length);
        if (rest.length === 0) return;
        this.#tail.push(rest);
        this.#tailSize += rest.length;
        while (this.#tailSize - this.#tail[0]!.length >= this.#half) this.#tailSize -= this.#tail.shift()!.length;
    }

    /** as returns what is kept, and where what is left out belongs. A character of which only a part is kept is left out. */
    as<Name extends string>(name: Name): Kept<Name> {
        const tail = Buffer.concat(this.#tail);
        let head = Buffer.concat(this.#head);
        let end = tail.subarray(Math.max(0, tail.length - this.#half));
        if (head.length + end.length === this.#total) return textOf(name, Buffer.concat([head, end])) as Kept<Name>;
        head = wholeCharacters(head);
        for (let back = 1; back < 4 && end.length > 0 && (end[0]! & 0xc0) === 0x80; back++) end = end.subarray(1);
        const cut: Cut = { at: head.length, bytes: this.#total - head.length - end.length };
        return { ...textOf(name, Buffer.concat([head, end])), [`${name}Cut`]: cut } as Kept<Name>;
    }
}

/** wholeCharacters returns data without a character that was cut off at its end. */
function wholeCharacters(data: Buffer): Buffer<ArrayBuffer> {
    for (let cut = 0; cut < Math.min(4, data.length); cut++) {
        const whole = data.subarray(0, data.length - cut);
        if (isUtf8(whole)) return Buffer.from(whole);
    }
    return Buffer.from(data);
}

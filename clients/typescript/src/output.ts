import { isUtf8 } from "node:buffer";

type Texts<Name extends string> = Record<Name, string> & Partial<Record<`${Name}Bytes`, Buffer>>;

/** textOf returns output as text, and also as bytes if text cannot hold them. */
export function textOf<Name extends string>(name: Name, data: Buffer): Texts<Name> {
    const text = { [name]: data.toString() };
    return (isUtf8(data) ? text : { ...text, [`${name}Bytes`]: data }) as Texts<Name>;
}

/** Collected keeps the beginning of an output. */
export class Collected {
    truncated = false;
    readonly #parts: Buffer[] = [];
    #left: number;

    constructor(limit: number) {
        this.#left = limit;
    }

    add(data: Buffer): void {
        if (data.length > this.#left) this.truncated = true;
        const part = data.subarray(0, this.#left);
        this.#left -= part.length;
        if (part.length > 0) this.#parts.push(part);
    }

    as<Name extends string>(name: Name): Texts<Name> {
        const data = Buffer.concat(this.#parts);
        return textOf(name, this.truncated ? wholeCharacters(data) : data);
    }
}

/** wholeCharacters returns data without a character that was cut off at its end. */
function wholeCharacters(data: Buffer): Buffer {
    for (let cut = 0; cut < Math.min(4, data.length); cut++) {
        const whole = data.subarray(0, data.length - cut);
        if (isUtf8(whole)) return whole;
    }
    return data;
}

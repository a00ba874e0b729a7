type Value = string | number | boolean | Date | undefined;

/** query returns the part of a path from the question mark on, without undefined values. */
export function query(values: Record<string, Value>): string {
    const given = Object.entries(values).filter(([, value]) => value !== undefined);
    if (given.length === 0) return "";
    const text = (value: Value) => encodeURIComponent(value instanceof Date ? value.toISOString() : String(value));
    return "?" + given.map(([name, value]) => `${name}=${text(value)}`).join("&");
}

/** segment returns one part of a path. A value that would lead elsewhere is a TypeError that names it. */
export function segment(name: string, value: string): string {
    if (typeof value !== "string" || value === "" || value === "." || value === "..") {
        throw new TypeError(`${name} is ${JSON.stringify(value)}: give the one that the service knows`);
    }
    return encodeURIComponent(value);
}

import path from "node:path";

/** Turbopack reads no file outside its root, and npm links `@toolscout/client` to its folder in this repository. */
export default { turbopack: { root: path.join(import.meta.dirname, "../..") } };

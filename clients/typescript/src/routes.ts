/** Types of each route, derived from the OpenAPI document, and the names of options. */

import type { paths } from "./openapi.js";

type Method = "get" | "post" | "put" | "patch" | "delete";
type Path = keyof paths & string;
type RouteOf<P extends Path> = {
  [M in Method]: paths[P] extends Record<M, object> ? `${Uppercase<M>} ${P}` : never;
}[Method];

/** A method and a path, such as `GET /servers/{server_id}`. */
export type Route = { [P in Path]: RouteOf<P> }[Path];

type OperationOf<P, M> = P extends Path ? (M extends keyof paths[P] ? paths[P][M] : never) : never;
type Operation<R extends Route> = R extends `${infer M} ${infer P}` ? OperationOf<P, Lowercase<M>> : never;
type JsonOf<T> = T extends { content: { "application/json": infer B } } ? B : never;
type Success<T> = T extends { responses: infer S } ? S[keyof S & (200 | 201 | 202)] : never;

/** A value for each `{…}` of the path. */
export type Ids<R extends string> = R extends `${string}{${string}}${infer Rest}` ? [string, ...Ids<Rest>] : [];
export type Body<R extends Route> = Operation<R> extends { requestBody?: infer B } ? JsonOf<NonNullable<B>> : never;
export type Query<R extends Route> =
  Operation<R> extends { parameters: { query?: infer Q } } ? NonNullable<Q> : never;
export type Answer<R extends Route> = JsonOf<Success<Operation<R>>>;
export type Item<R extends Route> = Answer<R> extends { items: (infer I)[] } ? I : never;

type CamelCase<S> = S extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<CamelCase<Tail>>}` : S;

/** The same fields, named in camelCase as is usual in TypeScript. */
export type Camelized<T> = { [K in keyof T as K extends string ? CamelCase<K> & string : never]: T[K] };

type SnakeCase<S> = S extends `${infer Head}${infer Tail}`
  ? `${Head extends Lowercase<Head> ? Head : `_${Lowercase<Head>}`}${SnakeCase<Tail>}`
  : "";
type Snaked<T> = { [K in keyof T as SnakeCase<K> & string]: T[K] };

/** Rename the fields of an options object for the API. What the fields contain stays as it is. */
export function toWire<T extends object>(options: T): Snaked<T> {
  const entries = Object.entries(options).map(([name, value]) => [
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    value,
  ]);
  return Object.fromEntries(entries) as Snaked<T>;
}

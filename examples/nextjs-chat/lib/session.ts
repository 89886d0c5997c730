/**
 * Return the id of the user who is signed in, or null. Replace it by the session of your sign-in, such as
 * `(await auth())?.user?.id ?? null` with Auth.js. Never read it from the body of the request: with a service key, the
 * id alone decides whose tools are found and run.
 */
export async function getUserId(_request: Request): Promise<string | null> {
  return process.env.DEMO_USER || null;
}

/**
 * The files inside the one-file build. Everywhere else they are files of the package, and this is undefined:
 * `scripts/standalone.mjs` replaces the module by one with their contents.
 */

interface Embedded {
  readonly version: string;
  /** The files of the page by name. */
  readonly page: Readonly<Record<string, string>>;
}

export const EMBEDDED: Embedded | undefined = undefined;

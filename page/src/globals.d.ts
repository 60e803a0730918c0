/** What Node has beyond browsers, for the files of `src/` that the playground runs. */

interface Performance {
  eventLoopUtilization?(): { readonly idle: number };
}

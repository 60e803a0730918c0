/** Names in an error. */
const MAX_NAMED = 20;

export function limitNames(limits: readonly { readonly name: string }[]): string {
  const named = limits.slice(0, MAX_NAMED).map(({ name }) => name);
  const more = limits.length - named.length;
  return named.join(', ') + (more > 0 ? ` and ${more} more` : '');
}

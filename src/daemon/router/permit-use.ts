/**
 * Reports a limit that needs settling and whose checks come without permits: it limits nothing.
 *
 * Without a permit nothing would end the call. So a check only peeks at calls in flight, and a `busy` limit learns of
 * no busy reply. That is right for a proxy in front of programs that take permits, and a mistake if no program does.
 */

/** A check, as far as it matters here. */
interface PermitRequest {
  readonly route: { readonly settledLimits: readonly string[] };
  readonly cost: number;
  readonly wantsPermit: boolean;
}

export class PermitUse {
  /** Called once for each limit: no permit of it was taken so far. */
  onUnused: (limit: string) => void = () => {};
  /** Limits of which a permit was taken, or that were reported: at most all that are configured. */
  readonly #known = new Set<string>();

  note({ route: { settledLimits }, cost, wantsPermit }: PermitRequest): void {
    if (cost === 0) return;
    for (const limit of settledLimits) {
      if (this.#known.has(limit)) continue;
      this.#known.add(limit);
      if (!wantsPermit) this.onUnused(limit);
    }
  }

  /** Forgets limits that are no longer configured. */
  retain(limits: readonly { readonly name: string }[]): void {
    const names = new Set(limits.map(({ name }) => name));
    for (const limit of this.#known) if (!names.has(limit)) this.#known.delete(limit);
  }
}

import type { LimitConfig } from './limits.ts';

/** A test for the name of a limit or of one of its overrides. */
export function shadowTest(limits: readonly LimitConfig[]): (name: string) => boolean {
  const shadows = new Set(limits.filter(({ shadow }) => shadow).map(({ name }) => name));
  if (shadows.size === 0) return () => false;
  return (name) => shadows.has(name.split('[', 1)[0]);
}
